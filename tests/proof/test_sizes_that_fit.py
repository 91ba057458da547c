"""Sizes for which an operator is undefined are no draws: the proof looks for others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxfold.check.reference import Precision, UnsupportedOperator, run
from onnxfold.options import Target
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
