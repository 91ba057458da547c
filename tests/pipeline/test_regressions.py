"""Models that were once refused, failed or went wrong, each as small as it can be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfold
from onnxfold.errors import ModelError

WIDTH = 16


def _weight(
    name: str, *shape: int, dtype: npt.DTypeLike = np.float32, spread: float = 1.0
) -> onnx.TensorProto:
    generator = np.random.default_rng(sum(name.encode()))
    return numpy_helper.from_array((spread * generator.standard_normal(shape)).astype(dtype), name)


def _model(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    element: int = onnx.TensorProto.FLOAT,
) -> onnx.ModelProto:
    """x to y, both [B, 3, WIDTH]."""
    x, y = (helper.make_tensor_value_info(name, element, ["B", 3, WIDTH]) for name in "xy")
    graph = helper.make_graph(nodes, "graph", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _scaled(bias: onnx.TensorProto, element: int, dtype: npt.DTypeLike) -> onnx.ModelProto:
    """y = ((x W + p) * s) V, whose scale can move into W and p."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("Add", ["m", "p"], ["a"]),
        helper.make_node("Mul", ["a", "s"], ["k"]),
        helper.make_node("MatMul", ["k", "V"], ["y"]),
    ]
    square = [_weight(name, WIDTH, WIDTH, dtype=dtype) for name in "WV"]
    return _model(nodes, [*square, bias, _weight("s", WIDTH, dtype=dtype)], element)


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_scale_moves_into_a_bias_of_subnormal_float16() -> None:
    bias = _weight("p", WIDTH, dtype=np.float16, spread=2.0**-16)
    model = _scaled(bias, onnx.TensorProto.FLOAT16, np.float16)
    assert "Mul" not in _operators(onnxfold.optimize(model).model)


@pytest.mark.parametrize("shape", [(3, WIDTH), (1, 3, WIDTH)])
def test_a_scale_moves_into_position_embeddings(shape: tuple[int, ...]) -> None:
    model = _scaled(_weight("p", *shape), onnx.TensorProto.FLOAT, np.float32)
    assert "Mul" not in _operators(onnxfold.optimize(model).model)


def _normalised() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("LayerNormalization", ["m", "g"], ["y"]),
    ]
    return _model(nodes, [_weight("W", WIDTH, WIDTH), _weight("g", WIDTH)])


def test_nodes_in_any_order_are_put_in_order() -> None:
    model = _normalised()
    sorted_result = onnxfold.optimize(model).model
    model.graph.node.reverse()
    assert onnxfold.optimize(model).model == sorted_result


def test_nodes_of_a_body_in_any_order_are_put_in_order() -> None:
    bodies = {}
    for branch in ("then_branch", "else_branch"):
        output = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, ["B", 3, WIDTH])
        nodes = list(_normalised().graph.node)
        nodes[1].output[0] = "r"
        bodies[branch] = helper.make_graph(nodes[::-1], branch, [], [output])
    choice = helper.make_node("If", ["c"], ["y"], **bodies)
    condition = numpy_helper.from_array(np.array(True), "c")
    model = _model([choice], [_weight("W", WIDTH, WIDTH), _weight("g", WIDTH), condition])
    assert onnxfold.optimize(model).report["inspect"]["summary"]["foldable"] == 2


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    model = _normalised()
    model.graph.node[0].input[0] = "y"
    path = tmp_path / "cycle.onnx"
    onnx.save(model, path)
    for given in (model, path):
        with pytest.raises(ModelError, match="read their own results"):
            onnxfold.inspect(given)


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize(("scale", "bias"), [("4", "0"), ("1,1,1,4", "4"), ("4", "1,1,1,4")])
def test_a_norm_whose_scale_or_bias_does_not_fit_stays_as_it_is(
    target: str, scale: str, bias: str
) -> None:
    """ONNX Runtime takes a bias of no elements for none, and refuses more axes than x has."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N,3,4] x) => (float[N,3,4] y) {
            h = LayerNormalization(x, g, b)  y = MatMul(h, V)
        }""")
    shapes = {"g": scale, "b": bias, "V": "4,4"}
    for name, text in shapes.items():
        shape = [int(dim) for dim in text.split(",")]
        model.graph.initializer.append(_weight(name, *shape))
    result = onnxfold.optimize(model, target=target, check=None)
    assert [node.op_type for node in result.model.graph.node] == ["LayerNormalization", "MatMul"]
    assert list(result.model.graph.node[0].input) == ["x", "g", "b"]
    kept = {t.name: t.SerializeToString() for t in model.graph.initializer}
    assert {t.name: t.SerializeToString() for t in result.model.graph.initializer} == kept


_SPELLED = """m = ReduceMean<axes=[-1]>(h)
            d = Sub(h, m)  q = Mul(d, d)  v = ReduceMean<axes=[-1]>(q)  s = Sqrt(v)
            n = Div(d, s)"""


@pytest.mark.parametrize(
    ("nodes", "folds"),
    [
        ("h = MatMul(x, W) y = LayerNormalization(h, h, c)", 0),
        ("h = MatMul(x, W) y = LayerNormalization(h, c, h)", 0),
        # Right to fold, as c is constant.
        ("h = Identity(c) z = LayerNormalization(c, c, c) y = Add(z, x)", 1),
        (f"h = MatMul(x, W) {_SPELLED} y = Mul(n, h)", 0),
        (f"h = MatMul(x, W) {_SPELLED} y = Add(n, h)", 0),
    ],
)
def test_a_norm_that_is_scaled_by_what_it_normalises_sees_its_mean(nodes: str, folds: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[{WIDTH}] x) => (float[{WIDTH}] y) {{
            {nodes}
        }}""")
    model.graph.initializer.extend([_weight("W", WIDTH, WIDTH), _weight("c", WIDTH)])
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == folds


@pytest.mark.parametrize("external", [False, True])
def test_names_on_disk_that_are_no_text(tmp_path: Path, external: bool) -> None:
    """ONNX Runtime takes paths as UTF-8 only; then it is given the model itself."""
    source = tmp_path / os.fsdecode(b"m\xff.onnx")
    try:
        onnx.save(
            _normalised(), tmp_path / "m.onnx", save_as_external_data=external, size_threshold=0
        )
        (tmp_path / "m.onnx").rename(source)
    except OSError:
        pytest.skip("this file system has no such names")
    output = tmp_path / os.fsdecode(b"o\xff.onnx")
    result = onnxfold.optimize(source, output, save_as_external_data=external)
    assert result.verification is not None
    assert result.verification.passed
    assert onnxfold.verify(source, output).passed


@pytest.mark.parametrize(("filled", "folds"), [("", 1), ("<value = float[1] {0.5}>", 0)])
def test_a_stream_that_starts_from_zeros_folds(filled: str, folds: int) -> None:
    """What TorchScript writes for DETR's decoder: its first norm is of 0 + a linear layer."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[B, 3, {WIDTH}] x) => (float[B, 3, {WIDTH}] y) {{
            zero = Constant<value = int64[1] {{0}}>()
            single = Constant<value = int64[1] {{1}}>()  sizes = Shape(x)
            batch = Gather(sizes, zero)  times = Concat<axis = 0>(batch, single, single)
            queries = Tile(q, times)  size = Shape(queries)
            start = ConstantOfShape{filled}(size)
            m = MatMul(x, W)  h = Add(start, m)  y = LayerNormalization(h, c)
        }}""")
    model.graph.initializer.extend(
        [_weight("W", WIDTH, WIDTH), _weight("c", WIDTH), _weight("q", 1, 3, WIDTH)]
    )
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == folds
    if not folds:
        (norm,) = result.report["inspect"]["norms"]
        assert norm["reason"]["code"] == "dynamic_weight"


def test_a_new_weight_takes_no_name_that_the_edit_frees() -> None:
    """The proof tells values by their names; the name of x - mean(x) was free for ones after it."""
    freed = f"ones.{WIDTH}"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 11]>
        agraph (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y, float[N,{WIDTH}] a) {{
            h = MatMul(x, W)  m = ReduceMean<axes=[-1], keepdims=1>(h)
            "{freed}" = Sub(h, m)
            a = LayerNormalization("{freed}", c)  k = MatMul(a, V)  b = LayerNormalization(k, g)
            y = MatMul(b, W)
        }}""")
    weights = [_weight("W", WIDTH, WIDTH), _weight("V", WIDTH, WIDTH)]
    model.graph.initializer.extend([*weights, _weight("c", WIDTH), _weight("g", WIDTH)])
    result = onnxfold.optimize(model)
    assert "left_out" not in result.report
    assert len(result.plan.folds) == 2


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ("d = Div(h, k) e = Erf(d) o = Add(e, k) p = Mul(h, o) g = Mul(p, k)", "activation"),
        ("e = Sigmoid(h) g = Mul(h, e)", "activation"),
        ("e = MatMul(x, V) r = Sigmoid(e) g = Mul(h, r)", "varies_along_fiber"),
        ("e = Mul(s, k) p = Mul(h, k) g = Mul(p, e)", "varies_along_fiber"),
    ],
    ids=["GELU", "SiLU", "a gate", "an input"],
)
def test_a_function_that_is_spelled_out_is_called_one(nodes: str, code: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[B, 3, {WIDTH}] x, float[B, 3, {WIDTH}] s) => (float[B, 3, {WIDTH}] y) {{
            h = MatMul(x, W)
            {nodes}
            y = LayerNormalization(g, c)
        }}""")
    model.graph.initializer.extend(
        [*(_weight(name, WIDTH, WIDTH) for name in "WV"), _weight("c", WIDTH), _weight("k")]
    )
    (norm,) = onnxfold.inspect(model)["norms"]
    assert norm["reason"]["code"] == code


def test_large_weights_of_branches_hide_no_shape() -> None:
    """Weights of more than a few KiB are left out of the inference, in bodies as elsewhere."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[B, 3, 64] x, bool c) => (float[B, 3, 64] y) {
            y = If(c)<then_branch = first () => (float[B, 3, 64] a) {
                h = MatMul(x, W) n = LayerNormalization(h, g) a = Tanh(n)
            }, else_branch = second () => (float[B, 3, 64] b) {
                k = MatMul(x, V) m = LayerNormalization(k, f) b = Sigmoid(m)
            }>
        }""")
    bodies = [attribute.g for attribute in model.graph.node[0].attribute]
    for body, (weight, gamma) in zip(bodies, ("Wg", "Vf"), strict=True):
        body.initializer.extend([_weight(weight, 64, 64), _weight(gamma, 64)])
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == 2
    assert result.verification is not None
    assert result.verification.passed


def test_a_weight_that_every_reader_has_a_copy_of_is_not_kept() -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[B, 3, {WIDTH}] x) => (float[B, 3, {WIDTH}] y) {{
            a = MatMul(x, W) p = Mul(a, s) u = Tanh(p) b = MatMul(u, W) q = Mul(b, t) y = Tanh(q)
        }}""")
    model.graph.initializer.extend(
        [_weight("W", WIDTH, WIDTH), _weight("s", WIDTH), _weight("t", WIDTH)]
    )
    result = onnxfold.optimize(model)
    assert len(result.plan.scales) == 2
    graph = result.model.graph
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_without_a_proof_the_report_is_what_it_is_with_one(target: str) -> None:
    """The version that is reported on was spelled for the target, in place: other names."""
    path = Path(__file__).parent / "fixtures" / "deferred.onnx"
    given = onnx.load(path)
    proved, edited = (
        onnxfold.optimize(given, target=target, defer="all", defer_means=True, check=check)
        for check in (0, None)
    )
    assert edited.report["inspect"] == proved.report["inspect"]
    assert edited.model.SerializeToString() == proved.model.SerializeToString()


def test_a_weight_with_other_rows_than_its_input_has_channels_is_told_of(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "g", "b"], ["n"]),
        helper.make_node("MatMul", ["n", "V"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    weights = [_weight("W", WIDTH, WIDTH), _weight("V", WIDTH - 1, WIDTH)]
    path = tmp_path / "damaged.onnx"
    onnx.save(_model(nodes, [*weights, _weight("g", WIDTH), _weight("b", WIDTH)]), path)
    with pytest.raises(ModelError, match=r"damaged.onnx: not valid ONNX: .*MatMul.*ncompatible"):
        onnxfold.optimize(path, check=None)
