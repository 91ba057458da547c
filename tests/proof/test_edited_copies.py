"""Constants that one pass edited and rounded, and of which the next pass made copies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.relation import EQUAL
from onnxfold.weights.edited import EditedTensor
from tests.passes.affine.affine_graphs import graph, weights

_ROWS, _N = 6, 16


def _model() -> ir.Model:
    """A norm whose gamma and beta, of three axes, take the factor behind a sum of rows."""
    made = weights(W=(5, _N), gamma=(1, 1, _N), beta=(1, 1, _N))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    made |= {"eps": np.array(1e-5, np.float32), "of_rows": np.array(1 / _ROWS, np.float32)}
    made |= {"rows": np.array([1]), "last": np.array([-1])}
    body = (
        "h = MatMul(x, W) t = ReduceMean<axes=[-1]>(h) c = Sub(h, t) s = Mul(c, c) "
        "q = ReduceMean<axes=[-1]>(s) e = Add(q, eps) r = Sqrt(e) n = Div(c, r) "
        "g = Mul(n, gamma) b = Add(g, beta) z = ReduceSum<keepdims=0>(b, rows) y = Mul(z, of_rows)"
    )
    return graph(body, f"float[2,{_ROWS},5] x", f"float[2,{_N}] y", made)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_norm_whose_gamma_took_a_factor_is_proved_to_fold(target: str) -> None:
    result = onnxfold.optimize(_model(), target=target)
    assert "left_out" not in result.report
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["scales_fused"]) == (1, 1)


def test_only_an_edited_constant_of_the_original_alone_is_taken_as_it_is_stored() -> None:
    plain = ir.tensor(np.array([1.5], np.float32), name="gamma")
    edited = EditedTensor(plain, (), "gamma")
    exact, copy = np.array([1.5 + 1e-12]), ir.Value(name="copy")
    assert _leaf(_stored(plain), None, exact).as_stored().array is exact
    assert _leaf(_stored(edited), copy, exact).as_stored().array is exact
    assert _leaf(_stored(edited), None, None).as_stored().array is None
    taken = _leaf(_stored(edited), None, exact).as_stored().array
    assert taken is not None
    assert taken.tolist() == [1.5]


def _stored(tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name="gamma", const_value=tensor)
    ir.Graph([], [], nodes=[], initializers=[value])
    return value


def _leaf(u: ir.Value, v: ir.Value | None, array: np.ndarray | None) -> Leaf:
    return Leaf(u, v, EQUAL, (1,), ir.DataType.FLOAT, array=array)
