"""Norms around a DeformConv: its weight is centered as a Conv's, and takes gamma, but no beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import onnxfold
from tests.graphs import Array, graph, weights
from tests.soundness.float64 import relative_error

BOUND = 1e-12  # float64 throughout
_SHAPES = {"O": (8, 4, 2, 2), "W": (6, 4, 2, 2), "G": (6, 2, 2, 2), "c": (6,), "g": (6,), "b": (6,)}
_SHAPES |= {"P": (8, 6, 2, 2), "V": (5, 6, 2, 2), "M": (4, 4, 2, 2)}
_NORM = (
    "t = Transpose<perm=[0, 2, 3, 1]>(d) n = LayerNormalization<axis=-1>(t, g, b) "
    "u = Transpose<perm=[0, 3, 1, 2]>(n) "
)
_BEFORE = "o = Conv(x, O) d = DeformConv<{}>(x, {}) " + _NORM + "y = Relu(u)"
_AFTER = "d = Conv(x, W) " + _NORM + "p = Conv(u, P) y = DeformConv(u, V, p)"


def _model(body: str) -> ir.Model:
    made = {name: each for name, each in weights(**_SHAPES).items() if name in body}
    return graph(body, "double[3,4,4,5] x", "double y", made, opset=19)


def _run(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    return cast("list[Array]", ReferenceEvaluator(ir.to_proto(model)).run(None, dict(feeds)))


def _rows() -> Array:
    x = np.random.default_rng(0).standard_normal((3, 4, 4, 5))
    x[0], x[1] = 3.0, x[1] + 1e3
    return x


@pytest.mark.parametrize("target", ["onnx", "kernels"])
@pytest.mark.parametrize("operands", ["W, o, c", "W, o", "W, o, c, k"])
def test_a_norm_after_it_folds(operands: str, target: str) -> None:
    body = _BEFORE.format("group=1", operands)
    body = f"k = Conv(x, M) {body}" if operands.endswith("k") else body
    model = _model(body)
    result = onnxfold.optimize(model, target=target, fold="always")
    assert len(result.plan.folds) == 1
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed
    feeds = {"x": _rows()}
    if target == "onnx":
        assert relative_error(_run(model, feeds), _run(result.model, feeds)) < BOUND


def test_groups_of_channels_do_not_have_the_mean_of_all() -> None:
    result = onnxfold.inspect(_model(_BEFORE.format("group=2", "G, o, c")), fold="always")
    (norm,) = result["norms"]
    assert not norm["foldable"]
    assert norm["reason"]["code"] == "grouped_convolution"


def test_a_norm_before_it_gives_it_gamma() -> None:
    model = _model(_AFTER.replace("g, b)", "g)"))
    result = onnxfold.optimize(model, fold="always", fuse_affine="always")
    (norm,) = result.report["inspect"]["norms"]
    assert (norm["action"], norm["gamma_fused"]) == ("rms", True)
    assert result.proof is not None
    assert result.proof.passed
    feeds = {"x": _rows()}
    assert relative_error(_run(model, feeds), _run(result.model, feeds)) < BOUND


def test_beta_stays_before_it() -> None:
    result = onnxfold.optimize(_model(_AFTER), fold="always", fuse_affine="always")
    (norm,) = result.report["inspect"]["norms"]
    assert (norm["action"], norm["beta_fused"]) == ("rms", False)
    assert "moves its positions" in norm["affine_reason"]["sentence"]


def test_beta_moved_to_its_bias_is_another_function() -> None:
    """What lies beyond the border is 0, not beta."""
    made, rng = weights(**_SHAPES), np.random.default_rng(1)
    x = rng.standard_normal((2, 6, 4, 5))
    p = 2 * rng.standard_normal((2, 8, 3, 4))
    moved = {"V": made["V"], "q": made["V"].sum((2, 3)) @ made["b"]}
    kept = {"V": made["V"], "q": np.zeros(5)}
    beta = np.broadcast_to(made["b"].reshape(1, -1, 1, 1), x.shape)
    found = []
    for at, arrays in ((np.add(x, beta), kept), (x, moved)):
        taken = "double[2,6,4,5] s, double[2,8,3,4] p"
        model = graph("y = DeformConv(s, V, p, q)", taken, "double y", arrays, opset=19)
        found.append(_run(model, {"s": at, "p": p}))
    assert relative_error(*found) > 0.01
