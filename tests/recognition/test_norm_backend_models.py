"""ONNX's own node tests for every norm operator, with their expansions into functions."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import pytest

from onnxfold.norms import NormForm
from tests.recognition.replay import FLOAT32_BOUND, replay, sites_of, values_of

MODULES = (
    "groupnormalization",
    "instance_normalization",
    "layernormalization",
    "lpnormalization",
    "meanvariancenormalization",
    "rmsnormalization",
)


def cases():
    """Import the modules that hold the cases; importing registers them (all modules: 25 s)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of them divides zero by zero on purpose
        for module in MODULES:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    registered = {case.name: case for case in node_cases._NodeTestCases}
    return sorted(registered.items())


CASES = cases()


@pytest.mark.parametrize(
    "stem", ["test_layer_normalization", "test_rms_normalization", "test_group_norm", "test_mvn"]
)
def test_an_operator_with_a_body_has_cases_and_their_expansions(stem):
    plain = {name for name, _ in CASES if name.startswith(stem) and "_expanded" not in name}
    assert plain
    assert {f"{name}_expanded" for name in plain} <= {name for name, _ in CASES}


def test_the_operators_without_a_body_have_cases():
    """onnx defines no function for InstanceNormalization and LpNormalization."""
    for op_type, stem in (
        ("InstanceNormalization", "test_instancenorm"),
        ("LpNormalization", "test_l2"),
    ):
        assert not onnx.defs.get_schema(op_type).has_function
        assert any(name.startswith(stem) for name, _ in CASES)


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_one_site_that_replays(name, case):
    model = case.model
    arrays = [_array(item) for item in case.data_sets[0][0]]
    feeds = dict(zip([value.name for value in model.graph.input], arrays, strict=True))
    sites = sites_of(model)
    if name.startswith("test_l1"):
        assert sites == ()
        return
    assert len(sites) == 1
    (site,) = sites
    assert (site.form is NormForm.DECOMPOSED) == ("_expanded" in name)
    values = values_of(model, feeds)
    error = np.max(np.abs(replay(site, values) - values[site.output.name]))
    assert error < FLOAT32_BOUND


def _array(item):
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
