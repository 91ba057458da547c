"""Sizes that a model computes from shapes, by quotients: a random number in their place is none."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.proof.neighbourhood import Neighbourhood
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error


def _patches(back: str = "z = Identity(r)") -> ir.Model:
    """Halves of [B, 8, 6], as MobileViT takes patches apart: 8 is rounded up to a multiple of 2."""
    body = f"""
        s = Shape(x)  b = Gather(s, i0)  t = Gather(s, i1)  f = Cast<to=11>(t)  h = Div(f, two)
        c = Ceil(h)  m = Mul(c, two)  k = Cast<to=7>(m)  q = Div(k, itwo)
        ub = Unsqueeze(b, i00)  uq = Unsqueeze(q, i00)  sizes = Concat<axis=0>(ub, vtwo, uq, last)
        n = LayerNormalization<axis=-1>(x, gamma)  r = Reshape(n, sizes)
        {back}  y = MatMul(z, V)
    """
    made = weights(gamma=(6,), V=(6, 3)) | {
        "i0": np.array(0), "i1": np.array(1), "i00": np.array([0]), "two": np.array(2.0),
        "itwo": np.array(2), "vtwo": np.array([2]), "last": np.array([-1]),
        "rows": np.array([-1, 4]), "turned": np.array([-1, 2, 6, 4]),
    }  # fmt: skip
    return graph(body, "double[B,8,6] x", "double[B,2,T,3] y", made)


def test_a_gamma_crosses_a_reshape_whose_sizes_are_quotients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _patches()
    result = onnxfold.optimize(model, check=0)
    assert "left_out" not in result.report
    assert len(result.plan.fusions) == 1
    assert error(model, result.model) < 1e-12
    monkeypatch.setattr(
        Neighbourhood, "_is_size", lambda self, value: self._match.is_constant(value)
    )
    assert onnxfold.optimize(model, check=0).report["left_out"][0]["name"] == "affine"


def test_a_gamma_crosses_channels_that_are_merged_with_an_open_axis() -> None:
    """Between the two Reshapes gamma has a number for each of B 2 6 rows, which no size has."""
    back = """
        p = Transpose<perm=[0,1,3,2]>(r)  w = Reshape(p, rows)  a = Reshape(w, turned)
        z = Transpose<perm=[0,1,3,2]>(a)
    """
    model = _patches(back)
    result = onnxfold.optimize(model, check=0)
    assert "left_out" not in result.report
    assert len(result.plan.fusions) == 1
    assert error(model, result.model) < 1e-12
