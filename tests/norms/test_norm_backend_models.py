"""ONNX's own node tests for every norm operator, with their expansions into functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from onnxfold.norms import NormForm
from tests.norms.replay import replay, sites_of, values_of

OPERATORS = {
    "LayerNormalization": 2e-6,
    "RMSNormalization": 2e-6,
    "GroupNormalization": 2e-6,
    "InstanceNormalization": 2e-6,
    "MeanVarianceNormalization": 2e-6,
    "LpNormalization": 2e-6,
}


def cases():
    found = {}
    for operator in OPERATORS:
        for case in collect_testcases(operator):
            plain = case.name.removeprefix("test_").replace("_", "")
            if any(plain.startswith(prefix) for prefix in _prefixes()):
                found[case.name] = case
    return sorted(found.items())


def _prefixes():
    return (
        "layernormalization",
        "rmsnormalization",
        "groupnormalization",
        "instancenorm",
        "mvn",
        "l2normalization",
        "lpnormalization",
    )


CASES = cases()


def test_every_operator_has_cases():
    names = " ".join(name for name, _ in CASES)
    for word in ("layer_norm", "rms_norm", "group_norm", "instancenorm", "mvn", "_expanded"):
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
    assert error < OPERATORS["LayerNormalization"]


def _array(item):
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
