"""An inlined body gets names that differ from later bodies', as runtimes require."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.graph.inlining import inline
from tests.sessions import session

BRANCHES = (
    "y = If(c) <then_branch = t () => (float[4,8] p) { v4 = Neg(n)  p = Relu(v4) },"
    " else_branch = e () => (float[4,8] q) { v4 = Abs(n)  q = Exp(v4) }>"
)
FUNCTION = (
    '<domain: "own", opset_import: ["" : 18]> Twice (a) => (b) { v4 = Add(a, a)  b = Neg(v4) }'
)


def _model(before: str, function: str = "") -> onnx.ModelProto:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "own" : 1]>\n'
        f"graph (float[4,8] x, bool c) => (float[4,8] y) {{"
        f" h = MatMul(x, W)  {before}  {BRANCHES} }}"
        f"\n{function}"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("W", (8, 8)), ("G", (8,))):
        array = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


@pytest.mark.parametrize(
    "model",
    [
        _model("n = LayerNormalization<axis=-1>(h, G)"),
        _model("m = own.Twice(h)  n = LayerNormalization<axis=-1>(m, G)", FUNCTION),
    ],
)
def test_a_body_may_have_the_names_of_what_is_inlined_in_front_of_it(
    model: onnx.ModelProto,
) -> None:
    made = onnxfold.optimize(model).model
    assert made.graph.node[-1].op_type == "If"
    session(made)


def test_a_second_run_inlines_beside_what_the_first_one_has_inlined_in_bodies() -> None:
    model = _model("n = LayerNormalization<axis=-1>(h, G)")
    branch = next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    norm = onnx.helper.make_node("LayerNormalization", ["v4", "G"], ["r"], axis=-1)
    branch.node.insert(1, norm)
    branch.node[-1].input[0] = "r"
    rms = onnxfold.optimize(model).model
    again = onnxfold.convert(onnxfold.convert(rms, to="crms").model, to="rms").model
    session(again)


def test_nodes_and_values_have_their_names_and_a_number_where_those_are_taken() -> None:
    function = FUNCTION.replace("v4 = Add", "[first] v4 = Add")
    calls = "m = own.Twice(h)  t = own.Twice(m)  n = own.Twice(t)"
    model = ir.from_proto(_model(calls, function))
    inline(model, lambda _: True)
    inlined = [node for node in model.graph if node.op_type in ("Add", "Neg")]
    assert [node.name for node in inlined] == [
        *("first", "node", "first_2", "node_2", "first_3", "node_3")
    ]
    # The branches after the calls contain v4.
    sums = [node.outputs[0].name for node in inlined if node.op_type == "Add"]
    assert sums == ["v4_2", "v4_3", "v4_4"]


def test_what_computes_an_unread_result_of_a_call_does_not_stay() -> None:
    """What nobody reads outside of calls does."""
    function = FUNCTION.replace("=> (b) {", "=> (b, v, w) { v = Exp(a) w = Abs(v)")
    model = ir.from_proto(_model("n, unread, u = own.Twice(h)  dead = Abs(u)", function))
    inline(model, lambda _: True)
    kinds = [node.op_type for node in model.graph]
    assert kinds == ["MatMul", "Exp", "Abs", "Add", "Neg", "Abs", "If"]
    model = ir.from_proto(_model("n, unread, u = own.Twice(h)  dead = Abs(h)", function))
    inline(model, lambda _: True)
    assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Neg", "Abs", "If"]
