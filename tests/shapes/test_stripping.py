"""Which of the types and shapes that inference fills in stay in the file."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from onnxfold.graph.dims import Shape
from onnxfold.graph.traversal import declared_shape
from onnxfold.shapes import infer, strip_types

_MODEL = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[n, 4] x) => (float[a, b] y) {
  h = Neg (x)  known = Relu (h)  rows = Constant <value = int64[2] {-1, 2}> ()
  odd = own.Odd (known)
  y = RESULT
}
"""


def _stripped(told: onnx.ValueInfoProto | None = None) -> ir.Model:
    proto = parser.parse_model(_MODEL.replace("RESULT", "Neg (known)"))
    if told is not None:
        proto.graph.value_info.append(told)
    like = ir.from_proto(proto)
    view = infer(like.clone())
    strip_types(view.model, like)
    return view.model


def _values(model: ir.Model) -> dict[str | None, ir.Value]:
    return {value.name: value for node in model.graph for value in node.outputs}


def test_what_was_not_declared_is_not_in_the_file() -> None:
    values = _values(_stripped())
    assert [values[name].type for name in ("h", "known")] == [None] * 2
    assert [values[name].shape for name in ("h", "known")] == [None] * 2


@pytest.mark.parametrize("with_type", [True, False])
def test_what_a_model_declares_by_its_type_or_its_shape_stays(with_type: bool) -> None:
    told = helper.make_tensor_value_info("h", TensorProto.FLOAT, None)
    if not with_type:
        told = onnx.ValueInfoProto(name="h")
        told.type.tensor_type.shape.dim.add(dim_param="n")
        told.type.tensor_type.shape.dim.add(dim_value=4)
    h = _values(_stripped(told))["h"]
    assert h.dtype is ir.DataType.FLOAT
    assert declared_shape(h) == ("n", 4)


@pytest.mark.parametrize(
    ("result", "declared", "shape"),
    [
        ("Neg (known)", ["a", "b"], ("a", 4)),
        ("Neg (known)", [None, None], ("n", 4)),
        ("Flatten <axis = 0> (known)", ["a", "b"], (1, "b")),
        ("Concat <axis = 0> (known, known)", [None, None], (None, 4)),
        ("Reshape (known, rows)", [None, None], (None, 2)),
        ("own.Odd (known)", ["a", None], ("a", None)),
    ],
)
def test_an_output_has_the_sizes_that_are_known_and_names_that_the_file_had(
    result: str, declared: list[str | None], shape: Shape
) -> None:
    """None has a name that inference made up: a reader of the file might make up the same one."""
    like = ir.from_proto(parser.parse_model(_MODEL.replace("RESULT", result)))
    like.graph.outputs[0].shape = ir.Shape(declared)
    view = infer(like.clone())
    strip_types(view.model, like)
    assert declared_shape(view.model.graph.outputs[0]) == shape
