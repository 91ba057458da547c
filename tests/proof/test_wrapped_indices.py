"""Embeddings whose indices are computed from the model's inputs."""

from __future__ import annotations

from onnx import parser

import onnxfold

# Keras counts negative indices from the end, as numpy does: Less has two axes and is drawn.
WRAPPED = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[B, 3] ids) => (float[B, 3, 4] y)
<float[5, 4] table = {1.5, 2, -0.3, 4, 5, -6, 7, 8, 9, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3.5, 5},
 float[4] gamma = {1.5, -2.0, 0.5, 1.0}, float[4] beta = {0.25, 0.5, -1.0, 2.0},
 int64 none = {0}, int64 rows = {5}> {
    negative = Less (ids, none)
    one = Cast <to = 7> (negative)
    offset = Mul (one, rows)
    index = Add (ids, offset)
    x = Gather (table, index)
    y = LayerNormalization <axis = -1> (x, gamma, beta)
}
"""


def test_a_table_that_is_read_at_computed_indices_is_centred() -> None:
    result = onnxfold.optimize(parser.parse_model(WRAPPED))
    assert "left_out" not in result.report
    assert len(result.plan.folds) == 1
