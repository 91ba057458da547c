"""Moves of gamma and beta that are refused: forced, they fail the proof and the verification."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.check import ModelSource
from onnxfold.check.compare import verify
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import forced, fuse

LN = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
RMS = "n = SimplifiedLayerNormalization<axis=-1>(x, gamma)"
BOTH = f"{LN} k = LayerNormalization<axis=-1>(x, gamma2, beta) a = MatMul(n, W) "
JOINED = "c = Add(a, b) d = Mul(c, e) y = Add(d, k)"
SHAPES = {"gamma": (6,), "gamma2": (6,), "beta": (6,), "W": (6, 6), "V": (6, 6), "b": (6,),
          "K": (5, 6, 3), "k5": (5,), "F": (6, 6)}  # fmt: skip
FIXED: Mapping[str, Array] = {
    "pads": np.array([0, 1, 0, 0, 2, 0]),
    "seven": np.array(0.7, np.float32),
}
# What is allowed, and the like of it that is not.
CONTROLS = {
    "a residual reads the norm": (
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        f"{LN} m = MatMul(n, W) a = Add(m, b) y = Add(a, n)",
    ),
    "the norm is an output": (
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
    ),
    "a Pad with another number than 0": (
        f"{RMS} p = Identity(n) y = MatMul(p, W)",
        f"{RMS} p = Pad(n, pads, seven) y = MatMul(p, W)",
    ),
    "a Pad that adds zeros, and a beta": (
        f"{LN} p = Identity(n) m = MatMul(p, W) y = Add(m, b)",
        f"{LN} p = Pad(n, pads) m = MatMul(p, W) y = Add(m, b)",
    ),
    "a weight of two norms with their own gammas": (
        BOTH + "e = MatMul(k, V) " + JOINED,
        BOTH + "e = MatMul(k, W) " + JOINED,
    ),
    "a Conv with padding and a beta": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv(t, K, k5)",
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<pads=[1,1]>(t, K, k5)",
    ),
    "a MatMul on the wrong side": (f"{RMS} y = MatMul(n, F)", f"{RMS} y = MatMul(F, n)"),
}


def _model(body: str, outputs: str = "float[] y") -> ir.Model:
    made = {name: array.astype(np.float32) for name, array in weights(**SHAPES).items()} | FIXED
    model = graph(body, "float[B,6,6] x", outputs, made)
    for value in model.graph.outputs:
        value.shape = None
    return model


@pytest.mark.parametrize("case", CONTROLS)
def test_what_is_refused_fails_the_proof_and_the_verification_when_it_is_forced(case: str) -> None:
    allowed, refused = (
        _model(body, "float[] y, float[] n" if refused and "output" in case else "float[] y")
        for refused, body in enumerate(CONTROLS[case])
    )
    right = fuse(allowed, limit=0)
    fusions = right.decision.fusions[:1]
    assert fusions
    assert right.proof.passed
    assert verify(ModelSource(allowed), ModelSource(right.model), samples=1).passed
    assert fusions[0].output not in {f.output for f in fuse(refused, limit=0).decision.fusions}
    wrong = forced(refused, fusions)
    assert not wrong.proof.passed
    verification = verify(ModelSource(refused), ModelSource(wrong.model), samples=1)
    assert not verification.passed
    assert verification.noise_ratio > 1e3
