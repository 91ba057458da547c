"""What an element of a sequence is, and which tensors are taken apart along an axis."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxfold.graph.sequences import behind_unbind, inserted_elements, is_unbind
from onnxfold.graph.traversal import all_nodes

_GROWN = """
g (float[n,4] x, int64 k, bool c, seq(float[n,4]) given) => (float[A,n,4] y) {
  empty = SequenceEmpty ()  pair = SequenceConstruct (x, x)
  first, second = Loop (k, c, START, x) <
    body = b (int64 i, bool on, seq(float[n,4]) s, float[n,4] h)
      => (bool o, seq(float[n,4]) grown, float[n,4] next) {
      o = Identity (on)  next = Neg (h)
      grown = GROW
  }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (first)
}
"""


def _outputs(start: str, grow: str) -> dict[str, ir.Value]:
    text = _GROWN.replace("START", start).replace("GROW", grow)
    model = ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
    inputs = {str(value.name): value for value in model.graph.inputs}
    made = {str(v.name): v for node in all_nodes(model) for v in node.outputs}
    return inputs | made


@pytest.mark.parametrize(
    ("start", "grow", "found"),
    [
        ("empty", "SequenceInsert (s, next)", ["next"]),
        ("pair", "SequenceInsert (s, next)", []),
        ("given", "SequenceInsert (s, next)", []),
        ("empty", "SequenceInsert (given, next)", []),
        ("empty", "Identity (s)", []),
        ("empty", "SequenceConstruct (s)", []),
    ],
)
def test_a_sequence_that_a_loop_grows_from_none_has_what_is_inserted(
    start: str, grow: str, found: list[str]
) -> None:
    values = _outputs(start, grow)
    assert [element.name for element in inserted_elements(values["first"])] == found


def test_elements_are_known_of_a_sequence_that_a_node_makes_of_tensors() -> None:
    values = _outputs("empty", "SequenceInsert (s, next)")
    assert inserted_elements(values["pair"]) == [values["x"]] * 2
    for name in ("given", "second", "empty", "y"):
        assert inserted_elements(values[name]) == [], name
    assert inserted_elements(None) == []


@pytest.mark.parametrize(
    ("operands", "attributes", "unbound"),
    [
        ("x", "keepdims = 0", True),
        ("x, one", "keepdims = 0", True),
        ("x, two", "keepdims = 0", False),
        ("x, ones", "keepdims = 0", False),
        ("x, k", "keepdims = 0", False),
        ("x, one", "keepdims = 1", False),
        ("x", "axis = 0", False),
    ],
)
def test_a_tensor_is_unbound_where_each_part_is_one_step_without_the_axis(
    operands: str, attributes: str, unbound: bool
) -> None:
    model = ir.from_proto(
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[3,4] x, int64 k) => (seq(float[4]) y)
            <int64 one = {{1}}, int64 two = {{2}}, int64[3] ones = {{1, 1, 1}}> {{
              y = SplitToSequence <{attributes}> ({operands})
            }}"""
        )
    )
    assert is_unbind(model.graph[0]) == unbound


@pytest.mark.parametrize("call", ["aten_unbind", "outer"])
def test_what_a_function_unbinds_is_seen_behind_its_calls(call: str) -> None:
    """As dynamo wrote it until torch 2.6; onnx infers elements with the axis there too."""
    text = f"""<ir_version: 8, opset_import: ["" : 18, "f" : 1]>
        g (float[2,4] x) => (float[4] y, float[2,4] z) {{
          parts = f.{call} (x)
          first = Constant <value = int64 {{0}}> ()  y = SequenceAt (parts, first)
          z = f.plain (x)
        }}
        <domain: "f", opset_import: ["" : 18]> aten_unbind (a) => (s) {{
          one = Constant <value = int64 {{1}}> ()
          s = SplitToSequence <axis = 0, keepdims = 0> (a, one)
        }}
        <domain: "f", opset_import: ["" : 18, "f" : 1]> outer (a) => (s) {{
          s = f.aten_unbind (a)
        }}
        <domain: "f", opset_import: ["" : 18]> plain (a) => (s) {{
          s = Neg (a)
        }}"""
    model = ir.from_proto(parser.parse_model(text))
    assert {value.name for value in behind_unbind(model)} == {"y"}
