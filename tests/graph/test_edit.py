"""What edits keep: names, notes at nodes, and everything with further readers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor, drop_weight, set_input, sweep
from onnxfold.graph.operands import known_producer
from onnxfold.operators.new_nodes import Lowered, NewNodes

_WEIGHT = "float[4] w = {1, 2, 3, 4}"


def _editor(text: str) -> tuple[Editor, dict[str, ir.Value]]:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    edit = Editor(ModelInfo(ir.from_proto(proto)))
    return edit, edit.info.by_ref()


def _operators(edit: Editor) -> list[str]:
    return [node.op_type for node in edit.model.graph]


_READ = """
g (float[4] x, float[4] default) => (float[4] y, float[4] kept)
<float[4] w = {1, 2, 3, 4}, float[4] v = {1, 1, 1, 1}, float[4] default = {0, 0, 0, 0}> {
  c = Constant <value = float[4] {1, 2, 3, 4}> ()
  d = Constant <value = float[4] {4, 3, 2, 1}> ()  n = Neg (x)
  sum = Sum (n, c, d, w, v, default)  y = Add (x, d)  kept = Add (x, v)
}
"""


def test_what_is_swept_takes_the_constants_along_that_nothing_else_reads() -> None:
    edit, values = _editor(_READ)
    sweep([known_producer(values["sum"])])
    assert _operators(edit) == ["Constant", "Neg", "Add", "Add"]
    assert sorted(edit.model.graph.initializers) == ["default", "v"]


def test_what_is_read_is_neither_swept_nor_dropped() -> None:
    edit, values = _editor(_READ)
    sweep(known_producer(values[name]) for name in ("n", "c", "y"))
    for value in (*values.values(), None):
        drop_weight(value)
    assert len(_operators(edit)) == 6
    assert sorted(edit.model.graph.initializers) == ["default", "v", "w"]


def test_a_default_that_callers_may_override_is_not_dropped() -> None:
    edit, values = _editor(
        f"g (float[4] x, float[4] d) => (float[4] y) <{_WEIGHT}, float[4] d = {{0, 0, 0, 0}}> "
        "{ y = Neg (x) }"
    )
    for value in values.values():
        drop_weight(value)
    assert list(edit.model.graph.initializers) == ["d"]


def test_a_constant_expression_that_nothing_reads_goes_with_all_that_only_it_reads() -> None:
    edit, values = _editor(
        f"g (float[4] x) => (float[4] y) <{_WEIGHT}> "
        "{ e = Neg (w)  c = Mul (e, e)  n = Neg (x)  s = Add (n, n)  y = Add (x, c) }"
    )
    addition = known_producer(values["y"])
    edit.drop_if_unread(values["c"])
    assert len(_operators(edit)) == 5
    set_input(addition, 1, values["x"])
    for name in ("c", "s"):
        edit.drop_if_unread(values[name])
    assert _operators(edit) == ["Neg", "Add", "Add"]
    assert not edit.model.graph.initializers


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("[fc] y = MatMul (x, x)", "fc"),
        ("y = MatMul (x, x)", "y"),
        ("[parts] y, z = Split (x)", "y"),
    ],
)
def test_nodes_behind_a_value_are_named_by_the_node_that_computes_it_alone(
    made: str, name: str
) -> None:
    edit, values = _editor(f"g (float[n,n] x) => (float[n,m] y) {{ {made} }}")
    negated = ir.node("Neg", [values["y"]])
    edit.put_behind(values["y"], [negated, ir.node("Exp", negated.outputs)])
    _, first, last = edit.model.graph
    assert (first.name, last.name) == (f"{name}.bias0", f"{name}.bias")
    results = [node.outputs[0] for node in edit.model.graph]
    assert [value.name for value in results] == ["y.product", "y.bias", "y"]
    # Only the result has sizes that are named nowhere before it.
    assert [str(value.shape) for value in (results[0], results[2])] == ["[n,None]", "[n,m]"]


def test_a_node_in_the_place_of_another_has_its_notes() -> None:
    edit, values = _editor("g (float[4] x) => (float[4] y) { y = Neg (x) }")
    old = known_producer(values["y"])
    old.doc_string, old.metadata_props["layer"] = "told", "3"
    new = NewNodes(17)
    edit.stand_in(Lowered.of(new, (values["y"], new.op("Abs", values["x"]))), old, [old])
    (node,) = edit.model.graph
    assert (node.op_type, node.doc_string, node.metadata_props) == ("Abs", "told", {"layer": "3"})
    assert node.outputs[0].name == "y"


def test_new_weights_have_free_names_and_integers_come_first() -> None:
    edit, values = _editor(f"g (float[4] x) => (float[4] y) <{_WEIGHT}> {{ y = Add (x, w) }}")
    old, new = known_producer(values["y"]), NewNodes(17)
    scaled = new.op("Mul", values["x"], new.weight("w", np.ones(4, np.float32)))
    result = new.op("Reshape", scaled, new.integers("sizes", [4]))
    edit.stand_in(Lowered.of(new, (values["y"], result)), old, [old])
    made = ir.to_proto(edit.model)
    onnx.checker.check_model(made, full_check=True)
    assert [tensor.name for tensor in made.graph.initializer] == ["w.2"]
    assert _operators(edit) == ["Constant", "Mul", "Reshape"]


def test_nodes_behind_an_input_stand_before_all_others_and_behind_their_constants() -> None:
    edit, values = _editor("g (float[4] x) => (float[4] y) { y = Neg (x) }")
    new = NewNodes(17)
    result = new.op("Reshape", values["x"], new.integers("sizes", [4]))
    edit.insert_behind(values["x"], Lowered.of(new))
    set_input(known_producer(values["y"]), 0, result)
    onnx.checker.check_model(ir.to_proto(edit.model), full_check=True)
    assert _operators(edit) == ["Constant", "Reshape", "Neg"]
