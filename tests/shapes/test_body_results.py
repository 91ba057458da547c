"""Shapes of what If, Loop and Scan compute, where onnx's inference gives up inside of a body."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnxfold
from onnxfold.shapes import infer
from onnxfold.shapes.claims import check_claims

# A body's own result lacks a declared shape; its Reshape target is more than onnx follows.
_HEADS = "t = Reshape(n, sizes) r = Reshape(t, joined)"
_CONSTANTS = (
    "sizes = Constant<value = int64[4] {0,-1,2,3}>() joined = Constant<value = int64[3] {0,-1,6}>()"
)


def _model(nodes: str, *, inputs: str = "float[2,3,6] x", opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
        f"g ({inputs}) => (float[a,b,c] y) {{ {_CONSTANTS} {nodes} y = Neg(h) }}"
    )


def _unshaped(graph: onnx.GraphProto) -> None:
    """Take the shapes of what bodies give away."""
    for node in graph.node:
        for attribute in node.attribute:
            for value in attribute.g.output:
                value.type.tensor_type.ClearField("shape")
            _unshaped(attribute.g)


def _shape(proto: onnx.ModelProto, name: str = "h") -> tuple[int | None, ...] | None:
    """Return the sizes that are known in numbers."""
    _unshaped(proto.graph)
    view = infer(ir.from_proto(proto))
    shape = view.shape(view.by_ref()[name])
    return None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)


def _if(other: str) -> str:
    branches = (f"n = Neg(x) {_HEADS} q = Identity(r)", other)
    first, second = (f"b{i} () => (float q) {{ {text} }}" for i, text in enumerate(branches))
    return f"h = If (c) <then_branch = {first}, else_branch = {second}>"


_LOOP = (
    "m = Constant<value = int64 {2}>() k = Constant<value = bool {1}>() "
    "h, all = Loop (m, k, x) <body = b (int64 i, bool go, float[2,3,6] n) => "
    f"(bool more, float next, float each) {{ more = Identity(go) {_HEADS} "
    "next = Tanh(r) each = Neg(t) }>"
)


def _scan(axis: int) -> str:
    return (
        "first = Constant<value = float[2] {0, 0}>() pairs = Constant<value = int64[2] {2,9}>() "
        "last, all = Scan (first, x) <body = b (float[2] s, float[3,6] e) => "
        "(float z, float each) { z = Neg(s) "
        "w = Reshape(e, pairs) each = Neg(w) }, "
        f"num_scan_inputs = 1, scan_output_axes = [{axis}]> h = Neg(all)"
    )


def test_both_branches_tell_what_an_if_gives() -> None:
    inputs = "float[2,3,6] x, bool c"
    same = _if(f"n = Tanh(x) {_HEADS} q = Identity(r)")
    assert _shape(_model(same, inputs=inputs)) == (2, 3, 6)
    other = _if("u = Constant<value = int64[3] {2,9,2}>() r = Reshape(x, u) q = Identity(r)")
    assert _shape(_model(other, inputs=inputs)) == (2, None, None)
    flat = _if("u = Constant<value = int64[1] {-1}>() r = Reshape(x, u) q = Identity(r)")
    model = _model(flat, inputs=inputs)
    assert _shape(model) == (2, 3, 6)  # the other branch lacks the output's rank
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert _shape(model) is None


def test_a_state_of_a_loop_is_what_it_was_or_what_the_body_gives() -> None:
    assert _shape(_model(_LOOP)) == (2, 3, 6)
    assert _shape(_model(_LOOP), "all") == (None, 2, 3, 2, 3)
    other = _LOOP.replace("k, x)", "k, z)")
    assert _shape(_model(other, inputs="float[2,5,6] z, float[2,3,6] x")) == (2, None, 6)


@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 2, 9)), (1, (2, 7, 9)), (-1, (2, 9, 7))])
def test_results_of_a_scan_are_stacked_along_an_axis(axis: int, shape: tuple[int, ...]) -> None:
    assert _shape(_model(_scan(axis), inputs="float[7,3,6] x"), "all") == shape
    assert _shape(_model(_scan(axis)), "last") == (2,)


def test_norms_behind_a_body_fold_in_the_first_run() -> None:
    """They folded in the second run alone, which read the shape that the first one wrote."""
    proto = _model(f"{_LOOP} p = MatMul(h, W) h2 = LayerNormalization<axis=-1>(p, G)")
    proto.graph.node[-1].input[0] = "h2"
    rng = np.random.default_rng(0)
    for name, shape in (("W", (6, 6)), ("G", (6,))):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _unshaped(proto.graph)
    result = onnxfold.optimize(proto)
    assert result.report["inspect"]["summary"]["foldable"] == 1
    again = onnxfold.optimize(result.model)
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(
        deterministic=True
    )


def test_a_centred_value_behind_a_body_is_proved_to_be_centred() -> None:
    """What computes the mean of an If's result cannot be run with the If."""
    branches = (f"n = {f}(x) {_HEADS} q = Identity(r)" for f in ("Neg", "Tanh"))
    first, second = (f"b{i} () => (float q) {{ {text} }}" for i, text in enumerate(branches))
    nodes = (
        f"i = If (c) <then_branch = {first}, else_branch = {second}> "
        "t = ReduceSum<keepdims=1>(i, last) m = Div(t, six) b = Sub(i, m) v = Mul(b, b) "
        "e = ReduceMean<axes=[-1]>(v) a = Add(e, six) r = Sqrt(a) d = Div(b, r) "
        "p = MatMul(x, W) s = Add(d, p) h = LayerNormalization<axis=-1>(s, G)"
    )
    proto = _model(nodes, inputs="float[2,3,6] x, bool c")
    rng = np.random.default_rng(0)
    made = {"W": rng.standard_normal((6, 6)), "G": rng.standard_normal(6), "six": np.array(6.0)}
    arrays = {name: array.astype(np.float32) for name, array in made.items()}
    for name, array in (arrays | {"last": np.array([-1])}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _unshaped(proto.graph)
    result = onnxfold.optimize(proto)
    assert "left_out" not in result.report
    assert result.report["inspect"]["summary"]["foldable"] == 1


def test_types_and_shapes_are_followed_in_bodies_that_onnx_does_not_enter() -> None:
    """As in the decoder of ONNX Runtime's BeamSearch, whose norms fold."""
    body = (
        "d (int64[B,T] ids, float[B,T,6] past) => (float[B,T,6] logits) {"
        " small = Cast<to = 6>(ids)"
        " n, i, s = com.microsoft.EmbedLayerNormalization(small, , words, places, , g, b)"
        " p = MatMul(n, W) j = Add(s, p) q = LayerNormalization<axis = -1>(j, g, b)"
        " logits = MatMul(q, W) }"
    )
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    proto = parser.parse_model(
        f"{head} g (int32[B,T] ids, int32[1] length) => (int32[B,R,L] sequences)"
        f" {{ sequences = com.microsoft.BeamSearch<decoder = {body}>(ids, length) }}"
    )
    rng = np.random.default_rng(0)
    shapes = {"words": (5, 6), "places": (7, 6), "g": (6,), "b": (6,), "W": (6, 6)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = onnxfold.optimize(proto, check=0)
    assert result.report["inspect"]["summary"]["foldable"] == 2


def _cut_into(heads: int) -> str:
    """Return the nodes of a branch, whose names every branch has."""
    return (
        "first = Constant<value = int64[1] {0}>() "
        f"rest = Constant<value = int64[2] {{{heads},{8 // heads}}}>() "
        "sizes = Shape(x) batch = Gather(sizes, first) target = Concat<axis = 0>(batch, rest) "
        "cut = Reshape(x, target)"
    )


_BRANCHES_OF_ONE_NAMING = f"""<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[n, 8] x) => (float[a, b, d] y) {{
  y = If (c) <
    then_branch = left () => (float[n, 2, 4] cut) {{ {_cut_into(2)} }},
    else_branch = right () => (float[n, 4, 2] cut) {{ {_cut_into(4)} }}
  >
}}"""


def test_results_of_one_name_in_two_branches_have_sizes_of_their_own() -> None:
    proto = parser.parse_model(_BRANCHES_OF_ONE_NAMING)
    _unshaped(proto.graph)
    told = infer(ir.from_proto(proto)).model
    branches = [attribute.as_graph() for attribute in told.graph[0].attributes.values()]
    shapes = {graph.name: graph.outputs[0].shape for graph in branches}
    assert shapes == {"left": ["n", 2, 4], "right": ["n", 4, 2]}
    assert {graph.outputs[0].name for graph in branches} == {"cut"}


def test_what_branches_of_one_naming_declare_is_no_contradiction() -> None:
    proto = parser.parse_model(_BRANCHES_OF_ONE_NAMING)
    assert not check_claims(ir.from_proto(proto)).claims
