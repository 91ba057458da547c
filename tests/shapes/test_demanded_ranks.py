"""Ranks that follow from readers: after a squeeze of an axis of unknown size."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.shapes import infer
from tests.sessions import outputs

# As PyTorch writes x.squeeze(1): a rank of 3, or of 4 where the size is not 1.
_SQUEEZED = """
    at = Constant<value = int64 {1}>() one = Constant<value = int64 {1}>()
    sizes = Shape(x) size = Gather<axis=0>(sizes, at) single = Equal(size, one)
    h = If (single) <
        then_branch = a () => (s) { axes = Constant<value = int64[1] {1}>() s = Squeeze(x, axes) },
        else_branch = b () => (i) { i = Identity(x) }>
"""


def _model(
    nodes: str, *, inputs: str = "float[b,s,t,6] x", squeezed: str = _SQUEEZED
) -> onnx.ModelProto:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g ({inputs}) => (float[n,t,4] y) {{ {squeezed} {nodes} }}"
    )
    rng = np.random.default_rng(0)
    shapes = {"W": (6, 6), "V": (6, 4), "B": (6,), "K": (5, 6, 3), "G": (6,)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _rank(model: onnx.ModelProto, *, declared: bool = False) -> int | None:
    if not declared:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    view = infer(ir.from_proto(model))
    return view.rank(view.by_ref()["h"])


@pytest.mark.parametrize(
    ("readers", "rank"),
    [
        ("y = Transpose<perm=[0,2,1]>(h)", 3),
        ("r = Relu(h) y = Transpose<perm=[0,3,1,2]>(r)", 4),
        ("n = LayerNormalization(h, G) m = MatMul(n, W) y = Transpose<perm=[1,0,2]>(m)", 3),
        ("t = Transpose<perm=[0,2,1]>(h) y = Conv(t, K)", 3),
        ("y = Conv(h, K)", 3),
        ("p = Softmax(h) q = Gather<axis=1>(p, at) r = Relu(q) y = Transpose<perm=[1,0]>(r)", 3),
        ("p = Gather<axis=1>(h, at1) y = Transpose<perm=[3,2,1,0]>(p)", 4),
        ("p = Slice(h, at1, at1) q = Neg(p) y = Transpose<perm=[2,1,0]>(q)", 3),
        ("p, rest = Split<axis=0>(h) q = Neg(p) y = Transpose<perm=[2,1,0]>(q)", 3),
        ("r = Reshape(x, three) y = Concat<axis=0>(r, h)", 3),
        ("y = Gemm(h, W)", None),  # neither branch is possible: the model never runs
        ("y = Relu(h)", None),
        ("y = MatMul(V, h)", None),
        ("u = Unsqueeze(h, at1) y = Transpose<perm=[0,1,2,3]>(u)", None),
    ],
)
def test_readers_tell_the_rank(readers: str, rank: int | None) -> None:
    at = "at1 = Constant<value = int64[1] {0}>() three = Constant<value = int64[3] {0,-1,6}>()"
    assert _rank(_model(f"{at} {readers}")) == rank


@pytest.mark.parametrize(
    ("readers", "rank"),
    [
        ("y = Gemm(h, W)", 2),
        ("y = Gemm(W, h)", 2),
        ("y = Gemm(W, W, h)", None),
        ("y = Transpose(h)", None),
        ("t = Transpose(h) y = Gemm(t, W)", 2),
    ],
)
def test_a_rank_is_known_where_no_branch_has_one(readers: str, rank: int | None) -> None:
    """Which axes are squeezed is an input here."""
    squeezed = _SQUEEZED[: _SQUEEZED.index("h = If")] + "h = Squeeze(x, axes)"
    model = _model(readers, inputs="float[b,s,t,6] x, int64[k] axes", squeezed=squeezed)
    assert _rank(model) == rank


def test_each_result_of_an_if_has_its_own_branches() -> None:
    two = _SQUEEZED.replace("h = If", "g, h = If").replace(
        "() => (s) {", "() => (n, s) { n = Neg(x)"
    )
    two = two.replace("() => (i) {", "() => (p, i) { p = Neg(x)")
    assert _rank(_model("y = Transpose<perm=[0,2,1]>(h)", squeezed=two)) == 3


def test_sizes_are_those_of_the_branch() -> None:
    view = infer(ir.from_proto(_model("y = Transpose<perm=[0,2,1]>(h)")))
    values = view.by_ref()
    assert view.shape(values["h"])[2] == 6
    assert view.shape(values["y"])[1] == 6


def test_what_leads_to_a_declared_output_has_no_higher_rank() -> None:
    """A residual sum may broadcast what it adds to: a rank of 3 at the most, so not 4."""
    nodes = "m = MatMul(h, W) r = Add(m, B) s = Add(h, r) y = MatMul(s, V)"
    assert _rank(_model(nodes)) is None
    assert _rank(_model(nodes), declared=True) == 3


def test_a_sum_alone_does_not_tell_a_rank() -> None:
    """What is added to three axes may have two or three of its own."""
    squeezed = _SQUEEZED.replace("x, axes", "x, many").replace("Identity(x)", "Squeeze(x, few)")
    axes = "few = Constant<value = int64[1] {1}>() many = Constant<value = int64[2] {1,2}>()"
    nodes = "q = Add(h, z) y = Transpose<perm=[0,2,1]>(q)"
    graph = f"g (float[b,s,t,6] x, float[n,t,6] z) => (float y) {{ {axes} {squeezed} {nodes} }}"
    model = onnx.helper.make_model(
        parser.parse_graph(graph), opset_imports=[onnx.helper.make_opsetid("", 17)]
    )
    view = infer(ir.from_proto(model))
    assert [view.rank(view.by_ref()[name]) for name in "hq"] == [None, 3]


@pytest.mark.parametrize(
    "readers",
    [
        "dead = Transpose<perm=[0,2,1]>(h) y = Relu(h)",
        "y = If (single) <then_branch = c () => (p) { p = Transpose<perm=[0,2,1]>(h) },"
        " else_branch = d () => (q) { q = Relu(h) }>",
    ],
    ids=["a dead one", "one in a body"],
)
def test_readers_that_need_not_run_tell_nothing(readers: str) -> None:
    assert _rank(_model(readers)) is None


@pytest.mark.parametrize("size", [1, 2])
def test_a_norm_behind_a_squeeze_of_an_unknown_size_folds(size: int) -> None:
    """Whichever branch runs: that the output has the declared rank is believed, and told."""
    model = _model("m = MatMul(h, W) s = Add(m, B) n = LayerNormalization(s, G) y = MatMul(n, V)")
    made = onnxfold.optimize(model)
    assert len(made.plan.folds) == 1
    assert made.report["inspect"]["claimed_shapes"]["count"] == 1
    x = {"x": np.random.default_rng(1).standard_normal((2, size, 3, 6)).astype(np.float32)}
    old, new = (outputs(each, x)[0] for each in (model, made.model))
    # Rows of 6 channels in float32, of numbers of the order of 1: some 2^5 roundings of 2^-24.
    np.testing.assert_allclose(new, old, rtol=0, atol=2.0**-19 * np.abs(old).max())
