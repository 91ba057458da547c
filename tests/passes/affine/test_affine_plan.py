"""What the plan says of gamma and beta: reasons, counts, and a JSON form that can be read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onnxfold.passes.affine.source import AffineSource, source_of
from onnxfold.passes.base import Settings
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.recognition import find_norms
from onnxfold.report.document import inspection
from onnxfold.shapes import infer
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import fuse

LN = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
X = "double[B,4,6] x"


def _weights(**more: tuple[int, ...]) -> dict[str, Array]:
    return weights(gamma=(6,), beta=(6,), W=(6, 6), V=(6, 6), b=(6,), c=(6,), **more)


REASONS = {
    "y = Add(n, x)": "exact_reader",
    "m = MatMul(n, W) a = Add(m, b) t = Tanh(n) y = Add(a, t)": "activation",
    "y = Identity(n)": "graph_output",
    "y = MatMul(n, W)": "shift_cannot_cross",
    "t = Transpose<perm=[0,2,1]>(x) y = MatMul(n, t)": "dynamic_weight",
    "y = MatMul(F, n)": "fiber_broken",
    "u = MatMul(x, V) g = Mul(n, u) m = MatMul(g, W) y = Add(m, b)": "shift_cannot_cross",
    "j = Concat<axis=1>(n, x) m = MatMul(j, W) y = Add(m, b)": "exact_reader",
    "a = Softmax(n) m = MatMul(a, W) y = Add(m, b)": "exact_reader",
    "m = MatMul(n, W) a = Add(m, b) u = MatMul(x, W) y = Add(a, u)": "shared_weight",
}


@pytest.mark.parametrize("body", REASONS)
def test_a_norm_that_keeps_its_affine_says_why_and_names_the_node(body: str) -> None:
    constants = _weights(F=(4, 4))
    model = graph(f"{LN} {body}", X, "double[B,4,6] y", constants)
    if "Transpose" in body:
        model.graph.outputs[0].shape = None
    fused = fuse(model, limit=0)
    assert fused.moved == (0, 0)
    assert fused.reason == REASONS[body]
    ((_, refusal),) = fused.decision.refusals
    assert refusal.nodes


def test_a_plan_with_fusions_and_scales_is_read_back_equal() -> None:
    model = graph(
        f"{LN} m = MatMul(n, W) a = Add(m, b) s = Mul(a, c) r = Reshape(s, shape) y = Relu(r)",
        X,
        "double[B,4,6] y",
        {k: v for k, v in _weights().items() if k != "V"} | {"shape": np.array([0, 0, 6])},
    )
    plan = decide_all(prepare(model), Settings()).plan
    assert plan.fusions
    assert plan.scales
    assert not plan.empty
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert "gamma and beta of" in str(plan)


def test_the_report_counts_what_moved_and_describes_the_model_as_it_came() -> None:
    model = graph(
        f"{LN} m = MatMul(n, W) a = Add(m, b) k = LayerNormalization<axis=-1>(a, gamma, beta) "
        "y = Add(k, x)",
        X,
        "double[B,4,6] y",
        {k: v for k, v in _weights().items() if k not in ("V", "c")},
    )
    document = inspection(decide_all(prepare(model), Settings()).findings)
    assert document["summary"]["gamma_fused"] == document["summary"]["beta_fused"] == 1
    assert document["model"]["nodes"] == len(model.graph)
    first, second = document["norms"]
    assert first["gamma_fused"]
    assert first["beta_fused"]
    assert first["affine_reason"] is None
    assert not second["gamma_fused"]
    assert second["affine_reason"]["code"] == "exact_reader"
    without = inspection(decide_all(prepare(model), Settings(), without=AFFINE_PASSES).findings)
    assert without["summary"]["gamma_fused"] == 0


@pytest.mark.parametrize(("small", "warned"), [(1e-3, True), (0.1, False)])
def test_a_gamma_that_widens_the_range_of_columns_is_reported(small: float, warned: bool) -> None:
    constants = _weights() | {"gamma": np.array([1.0, small, 1.0, 1.0, 1.0, 1.0])}
    constants["W"] = np.eye(6)  # each column has one row, so its maximum is that row's gamma
    model = graph(
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        X,
        "double[B,4,6] y",
        {name: constants[name] for name in ("gamma", "beta", "W", "b")},
    )
    document = inspection(decide_all(prepare(model), Settings(range_limit=16.0)).findings)
    assert len(document["range_warnings"]) == warned
    for warning in document["range_warnings"]:
        assert warning["weight"] == "W"
        assert warning["range_before"] == 1.0
        assert warning["widening"] == pytest.approx(1000, rel=1e-12)


def test_gamma_and_beta_are_read_from_operands_of_any_shape() -> None:
    made = {
        "gamma": np.arange(1.0, 25.0).reshape(4, 6),
        "beta": np.array([2.0]),
        "W": np.ones((6, 2)),
    }
    model = graph(
        "n = LayerNormalization<axis=1>(x, gamma, beta) y = MatMul(n, W)",
        X,
        "double[B,4,2] y",
        made | {"beta": np.full((4, 6), 2.0)},
    )
    view = infer(prepare(model).model)
    (site,) = find_norms(view)
    source = source_of(view, site)
    assert isinstance(source, AffineSource)
    assert source.channels.axes == (1, 2)
    assert source.gamma is not None
    assert source.beta is not None
    assert np.array_equal(source.gamma, np.arange(1.0, 25.0))
    assert np.array_equal(source.beta, np.full(24, 2.0))
