"""Sizes for which an operator is undefined are rejected: the proof searches for others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.check.reference import Precision, UnsupportedOperator, run
from onnxfold.target import Target
from tests.soundness.folding import fold

_TEXT = """
<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
attention (float[1,S,3] x, float[1,2,8] k) => (y) {
  q = MatMul (x, W)
  a = com.microsoft.GroupQueryAttention <num_heads=1, kv_num_heads=1> (q, k, v, "", "", last, total)
  y = LayerNormalization <axis=-1> (a, gamma)
}
"""


def _model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(_TEXT)
    rng = np.random.default_rng(0)
    shapes = {"W": (3, 8), "v": (1, 2, 8), "gamma": (8,)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays |= {"last": np.array([1], np.int32), "total": np.array(2, np.int32)}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


def test_more_queries_than_keys_are_refused() -> None:
    feeds = {"x": np.ones((1, 3, 3), np.float32), "k": np.ones((1, 2, 8), np.float32)}
    with pytest.raises(UnsupportedOperator, match="more queries than keys"):
        run(ir.from_proto(_model()), feeds, precision=Precision.FLOAT64)


def test_an_attention_whose_number_of_keys_is_stored_is_proved_for_as_many_queries() -> None:
    folded = fold(_model(), Target.ONNX)
    assert folded.proof.passed, folded.proof.failures
    assert len(folded.plan.folds) == 1


# More Casts than a region reaches back.
_CASTS = "".join(f"  c{n + 1} = Cast <to={6 + n % 2}> (c{n})\n" for n in range(10))
_PADDED = f"""
<ir_version: 9, opset_import: ["": 17]>
window (float[B,16,8] x) => (y) {{
  n = LayerNormalization <axis=-1> (x, gamma, beta)  grid = Reshape (n, sides)  s = Shape (grid)
  height = Gather (s, one)  over = Mod (height, side)  missing = Sub (side, over)
  below = Mod (missing, side)  amounts = Concat <axis=0> (zeros, below, zeros, zero)
  rows = Reshape (amounts, pairs)  turned = Slice (rows, last, first, zero, last)
  c0 = Transpose <perm=[1,0]> (turned)
{_CASTS}
  pads = Reshape (c10, flat)  wide = Pad (grid, pads)  p = MatMul (wide, W)  y = Add (p, bias)
}}
"""


def test_a_pad_by_amounts_that_are_turned_round_as_pairs_is_proved() -> None:
    """As PyTorch exports Swin: of these sides every amount is 0, and beta passes."""
    model = onnx.parser.parse_model(_PADDED)
    rng = np.random.default_rng(0)
    shapes = {"W": (8, 4), "gamma": (8,), "beta": (8,), "bias": (4,)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    numbers = {"sides": [0, 4, 4, 8], "one": [1], "side": [2], "zeros": [0, 0, 0]}
    numbers |= {"zero": [0], "pairs": [-1, 2], "last": [-1], "first": [-9], "flat": [-1]}
    arrays |= {name: np.array(given, np.int64) for name, given in numbers.items()}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    report = onnxfold.optimize(model, check=0).report
    assert "left_out" not in report
    proof = report["proof"]
    assert (proof["passed"], proof["scaled_weights"], proof["shifted_biases"]) == (True, 1, 1)
