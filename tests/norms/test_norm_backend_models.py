"""ONNX's own node tests for every norm operator, with their expansions into functions."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import pytest

from onnxfold.norms import NormForm
from tests.norms.replay import replay, sites_of, values_of

BOUND = 2e-6  # float32 models: outputs of order 1 after about ten roundings of 6e-8
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


def test_every_operator_has_cases():
    names = " ".join(name for name, _ in CASES)
    for word in (
        "layer_norm",
        "rms_norm",
        "group_norm",
        "instancenorm",
        "mvn",
        "l2norm",
        "_expanded",
    ):
        assert word in names


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
    assert error < BOUND


def _array(item):
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
