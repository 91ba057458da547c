"""Constants that one pass edited and rounded, and the next pass copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.relation import EQUAL
from onnxfold.weights.edited import EditedTensor

# Two blocks of a convolution and a norm, and the mean of the rows, by jax2tf and tf2onnx: the
# second norm's gamma takes the factor of the mean, and is copied into another shape.
_EXPORT = Path(__file__).parent / "fixtures" / "jax2tf_convolutions.onnx"


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_norm_whose_gamma_took_a_factor_is_proved_to_fold(target: str) -> None:
    result = onnxfold.optimize(ir.load(_EXPORT), target=target)
    assert "left_out" not in result.report
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["scales_fused"]) == (2, 1)


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
