"""Elements of unbound tensors are picked from the tensor, and claimed shapes of them forgotten."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxfold.passes.prepare.direct_reads import pick_from_tensors
from onnxfold.shapes import infer


def test_a_shape_that_was_claimed_as_if_the_axis_were_still_there_is_forgotten() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[B,3,4] x, int64 k) => (float[B,3] y) <float[B,3,1] step, float[B,3,1] other> {
              one = Constant<value = int64 {1}>()
              steps = SplitToSequence<axis = 2, keepdims = 0>(x, one)
              step = SequenceAt(steps, k) other = Neg(step) y = Relu(other)
            }"""
        )
    )
    assert len(pick_from_tensors(model)) == 1
    assert not [node for node in model.graph if node.op_type.startswith("S")]
    info = infer(model)
    assert [info.shape(info.by_ref()[name]) for name in ("step", "other", "y")] == [("B", 3)] * 3
