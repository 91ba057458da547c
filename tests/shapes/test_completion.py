"""Shapes after a Reshape to computed sizes, which onnx's inference does not find."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxfold
from onnxfold.shapes import infer
from onnxfold.shapes.symbolic import SymbolicShapes

CONSTANTS = """
    zero = Constant<value = int64[1] {0}>()  two = Constant<value = int64[1] {2}>()
    rest = Constant<value = int64[1] {-1}>()
"""
# What paddle2onnx 1 writes to flatten an image, and to put the channels last.
FLATTEN = """
    sizes = Shape(x)  kept = Slice(sizes, zero, two, zero)  target = Concat<axis=0>(kept, rest)
    flat = Reshape(x, target)  rows = Transpose<perm=[0,2,1]>(flat)
"""


def _model(
    body: str, *, opset: int = 12, weights: Mapping[str, tuple[int, ...]] | None = None
) -> onnx.ModelProto:
    imports = f'["" : {opset}, "com.microsoft" : 1]'
    proto = parser.parse_model(
        f"<ir_version: 7, opset_import: {imports}>\n"
        f"g (float[n,8,h,w] x) => (float[n,r,8] y) {{ {CONSTANTS}{FLATTEN}{body} }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in (weights or {}).items():
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int | str | None, ...] | None]:
    view = infer(ir.from_proto(proto))
    return {ref: view.shape(value) for ref, value in view.by_ref().items()}


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_sizes_are_followed_through_shape_slice_and_concat(opset: int) -> None:
    shapes = _shapes(_model("y = Neg(rows)", opset=opset))
    assert shapes["flat"] is not None
    assert shapes["flat"][:2] == ("n", 8)
    assert shapes["rows"] == (shapes["flat"][0], shapes["flat"][2], 8)


def test_numbers_take_the_place_of_symbols_that_onnx_made_up() -> None:
    """[n, channels, -1], which simplifiers leave of the patches of an image model."""
    proto = _model("y = Neg(rows)", opset=17)
    for axis, size in ((2, 4), (3, 6)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    (made_up,) = (
        info.type.tensor_type.shape.dim
        for info in onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.value_info
        if info.name == "flat"
    )
    assert [dim.dim_value for dim in made_up][1:] == [8, 0]
    shapes = _shapes(proto)
    assert [shapes[name][1:] for name in ("flat", "rows") if shapes[name]] == [(8, 24), (24, 8)]


# As many rows of 24 by 8 as an operator chooses; onnx only infers the 8.
CHOSEN = """
    chosen = Constant<value = bool[1] {1}>()  images = Compress<axis=0>(x, chosen)
    chosen_sizes = Shape(images)  chosen_kept = Slice(chosen_sizes, zero, two, zero)
    chosen_target = Concat<axis=0>(chosen_kept, rest)  columns = Reshape(images, chosen_target)
    tokens = Transpose<perm=[0,2,1]>(columns)
"""


def _of_chosen(body: str, weights: Mapping[str, tuple[int, ...]] | None = None) -> onnx.ModelProto:
    proto = _model(CHOSEN + body, opset=17, weights=weights)
    for axis, size in ((2, 4), (3, 6)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    return proto


@pytest.mark.parametrize(("known", "axis"), [(("unk__3", 24, 8), 1), (("images", "unk__3", 8), 0)])
def test_what_is_put_in_later_has_the_numbers_and_names_of_what_it_reads(
    known: tuple[str, int | str, int], axis: int
) -> None:
    """onnx, which does not see shapes with made-up symbols, infers neither the second time."""
    model = ir.from_proto(_of_chosen("y = Neg(tokens)"))
    tokens = infer(model).by_ref()["tokens"]
    tokens.shape = ir.Shape(known)
    later = ir.node("Add", [tokens, tokens], name="later")
    made = tokens.producer()
    assert made is not None
    model.graph.insert_after(made, later)
    view = infer(model)
    assert view.shape(later.outputs[0]) == view.shape(tokens)
    assert view.dim(later.outputs[0], axis) == known[axis]


def test_what_is_declared_with_a_rank_alone_has_the_numbers_of_what_it_reads() -> None:
    """As tf2onnx declares results after a Reshape whose shape onnx does not infer."""
    body = """
        first = Slice(sizes, zero, two, zero)  count = ReduceProd<axes=[0]>(first)
        wide = Concat<axis=0>(count, rest)  matrix = Reshape(x, wide)  made = Gemm(matrix, W)
        y = Unsqueeze<axes=[0]>(made)
    """
    proto = _model(body, weights={"W": (6, 8)})
    for axis, size in enumerate((2, 8, 2, 3)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    told = onnx.helper.make_tensor_value_info("made", onnx.TensorProto.FLOAT, [None, None])
    proto.graph.value_info.append(told)
    assert _shapes(proto)["made"] == (16, 8)


def test_what_a_rule_tells_onnx_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Reshape to computed sizes, for which onnx makes up a symbol."""
    asked: list[str] = []
    real = onnx.shape_inference.infer_node_outputs

    def counting(schema: onnx.defs.OpSchema, *rest: object, **options: object) -> object:
        asked.append(schema.name)
        return real(schema, *rest, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", counting)
    shapes = _shapes(_model("y = Neg(rows)", opset=17))
    assert shapes["flat"] == ("n", 8, shapes["rows"][1] if shapes["rows"] else None)
    assert not asked


def test_what_is_behind_is_inferred_operator_by_operator() -> None:
    body = """
        p = MatMul(rows, W)  a, b = Split<axis=-1>(p)
        t = com.microsoft.FusedMatMul<transB=1>(a, b)  s = Softmax(t)  m = MatMul(s, b)
        h = com.microsoft.QuickGelu(m)  i = Slice(h, zero, two, two)  y = Identity(rows)
    """
    shapes = _shapes(_model(body, weights={"W": (8, 12)}))
    flat = shapes["flat"]
    assert flat is not None
    n, _, r = flat
    assert shapes["p"] == (n, r, 12)
    assert shapes["a"] == shapes["b"] == shapes["m"] == shapes["h"] == (n, r, 6)
    assert shapes["t"] == shapes["s"] == (n, r, r)
    assert shapes["i"] == (n, r, 2)


def test_what_cannot_be_followed_stays_unknown() -> None:
    body = "odd = com.microsoft.Unheard(rows)\nz = Neg(odd)\nv = MatMul(z, z)\ny = Identity(rows)"
    shapes = _shapes(_model(body))
    assert shapes["odd"] is None
    assert shapes["z"] is None
    assert shapes["v"] is None


def test_norms_behind_a_computed_reshape_fold_and_are_proved() -> None:
    body = """
        p = MatMul(rows, W)  h = Add(p, b)  n = LayerNormalization<axis=-1>(h, g, b)
        s = Shape(n)  first = Slice(s, zero, two, zero)
        heads = Concat<axis=0>(first, two, rest)  split = Reshape(n, heads)
        back = Concat<axis=0>(first, rest)  joined = Reshape(split, back)  q = MatMul(joined, W)
        k = Add(h, q)  m = LayerNormalization<axis=-1>(k, g, b)  y = MatMul(m, W)
    """
    weights = {"W": (8, 8), "b": (8,), "g": (8,)}
    proto = _model(body, opset=17, weights=weights)
    result = onnxfold.optimize(proto, inputs=("x:2,8,3,4",))
    assert result.report["inspect"]["summary"]["foldable"] == 2
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed


def test_a_spectrum_has_as_many_frequencies_as_its_window_tells() -> None:
    body = """
        step = Constant<value_int = 4>()  wave = ReduceMean<axes=[2], keepdims=0>(rows)
        spectrum = STFT(wave, step, window)  y = Identity(rows)
    """
    shapes = _shapes(_model(body, opset=17, weights={"window": (20,)}))
    spectrum = shapes["spectrum"]
    assert spectrum is not None
    assert spectrum[2:] == (11, 2)
    assert not isinstance(spectrum[1], int)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("h = Cast<to=6>(eight)\nk = Cast<to=6>(three)\nq = Div(h, k)", 2),
        ("h = Cast<to=1>(eight)\nk = Cast<to=1>(three)\nq = Div(h, k)", 2),
        ("h = Cast<to=1>(eight)\nk = Cast<to=1>(two)\nq = Div(h, k)", 4),
    ],
    ids=["of integers", "of floats", "of floats without rest"],
)
def test_a_quotient_of_sizes_counts_as_integers_do(body: str, size: int) -> None:
    parts = f"""
        first = Constant<value = int64[1] {{1}}>()  eight = Gather(sizes, first)
        three = Constant<value = int64[1] {{3}}>()
        {body}
        back = Cast<to=7>(q)  shape = Concat<axis=0>(kept, back, rest)  odd = Reshape(x, shape)
        y = Identity(rows)
    """
    view = infer(ir.from_proto(_model(parts, opset=17)))
    dims = SymbolicShapes(view).dims(view.by_ref()["odd"])
    assert dims is not None
    assert dims[2] == size  # 8 / 3 = 2.67 becomes 2 in a Cast


def test_a_reduction_over_no_axes_that_is_to_do_nothing_keeps_the_shape() -> None:
    body = """
        none = Slice(zero, zero, zero)  same = ReduceSum<noop_with_empty_axes=1>(rows, none)
        all = ReduceSum(rows)  y = Identity(rows)
    """
    shapes = _shapes(_model(body, opset=17))
    assert shapes["same"] == shapes["rows"]
    assert shapes["all"] == (1, 1, 1)


# What TorchScript writes for x.chunk(2, dim=1), where the batch is open.
CHUNK = """
    sizes = Shape(x)  channels = Gather<axis=0>(sizes, one)  more = Add(channels, one)
    half = Div(more, two)  end = Mul(half, two)  first = Slice(x, zero, half, one)
    second = Slice(x, half, end, one)
"""


@pytest.mark.parametrize(("channels", "halves"), [(8, (4, 4)), (7, (4, 3))])
def test_numbers_and_names_are_followed_through_chunks(
    channels: int, halves: tuple[int, int]
) -> None:
    body = CHUNK + "w = Conv(first, W)  joined = Concat<axis=1>(w, second)  y = Relu(joined)"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g (float[n,{channels},6,6] x) => (float[n,c,6,6] y) {{"
        f" one = Constant<value = int64[1] {{1}}>() {CONSTANTS} {body} }}"
    )
    weight = np.ones((5, halves[0], 1, 1), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "W"))
    shapes = _shapes(proto)
    assert shapes["first"] == ("n", halves[0], 6, 6)
    assert shapes["second"] == ("n", halves[1], 6, 6)
    assert shapes["w"] == ("n", 5, 6, 6)
    assert shapes["joined"] == ("n", 5 + halves[1], 6, 6)


def test_numbers_are_followed_through_a_tensor_that_is_filled_and_measured() -> None:
    """What TorchScript writes for Swin's mask: zeros of the padded size, then places in it."""
    body = """
        pairs = Constant<value = int64[4,2] {0, 0, 0, 0, 0, 0, 3, 0}>()
        pads = Reshape(pairs, rest)  square = Constant<value = int64[4] {2, 4, 4, 8}>()
        image = Reshape(x, square)  padded = Pad(image, pads)  large = Shape(padded)
        side = Slice(large, two, rest)  zeros = ConstantOfShape(side)  edges = Shape(zeros)
        step = Constant<value = int64 {1}>()  origin = Constant<value = int64 {0}>()
        edge = Gather(edges, origin)  places = Range(origin, edge, step)  y = Identity(rows)
    """
    shapes = _shapes(_model(body, opset=17))
    assert shapes["padded"] == (2, 4, 7, 8)
    assert shapes["zeros"] == (7,)
    assert shapes["places"] == (7,)


def test_sizes_are_followed_through_a_tile_by_a_computed_batch() -> None:
    """TorchScript's code for the queries of DETR: one set for each image, and zeros as well."""
    body = """
        first = Constant<value = int64[1] {0}>()  single = Constant<value = int64[1] {1}>()
        open = Shape(open_batch)  batch = Gather(open, first)
        times = Concat<axis=0>(batch, single, single)  queries = Tile(set, times)
        measured = Shape(queries)  zeros = ConstantOfShape(measured)
        twice = Concat<axis=0>(single, batch, single)  unknown = Tile(set, twice)
        y = Identity(rows)
    """
    proto = _model(body, opset=17, weights={"set": (1, 7, 32)})
    proto.graph.input.add().CopyFrom(
        helper.make_tensor_value_info("open_batch", TensorProto.FLOAT, ["n", 3])
    )
    shapes = _shapes(proto)
    queries, zeros, unknown = (shapes[name] or () for name in ("queries", "zeros", "unknown"))
    assert queries[1:] == zeros[1:] == (7, 32)
    assert (unknown[0], unknown[2]) == (1, 32)
    assert not any(isinstance(size, int) for size in (queries[0], zeros[0], unknown[1]))


def test_a_size_that_nobody_knows_has_one_name_wherever_it_goes() -> None:
    """As after Keras' Tensordot, which measures its operands; and in a second look."""
    body = """
        some = Compress<axis=1>(rows, chosen)  measured = Shape(some)
        flattened = Reshape(some, rest)  again = Reshape(flattened, measured)
        y = Add(again, some)
    """
    proto = _model(body)
    proto.graph.input.add().CopyFrom(
        helper.make_tensor_value_info("chosen", TensorProto.BOOL, ["r"])
    )
    model = ir.from_proto(proto)
    for view in (infer(model), infer(model)):
        values = view.by_ref()
        assert view.shape(values["again"]) == view.shape(values["some"])
        assert None not in (view.shape(values["some"]) or (None,))


def test_what_onnx_has_inferred_and_a_tool_kept_hides_nothing() -> None:
    """Converters to half precision keep inferred shapes, with symbols that onnx made up."""
    body = """
        tokens = MatMul(rows, W)  grid = Constant<value = int64[4] {0, 4, 4, 16}>()
        image = Reshape(tokens, grid)  back = Transpose<perm=[0,3,1,2]>(image)
        flattened = Shape(back)  batch = Slice(flattened, zero, one)
        again = Concat<axis=0>(batch, deep, rest)  columns = Reshape(back, again)
        h = Relu(columns)  y = Identity(rows)
    """
    numbers = "one = Constant<value = int64[1] {1}>() deep = Constant<value = int64[1] {16}>() "
    proto = _model(numbers + body, opset=17, weights={"W": (8, 16)})
    told = onnx.shape_inference.infer_shapes(proto)
    assert any("unk__" in str(info) for info in told.graph.value_info)
    shapes = _shapes(told)
    assert shapes == _shapes(proto)
    assert shapes["h"] == ("n", 16, 16)


def test_no_symbol_is_written_that_onnx_makes_up() -> None:
    body = """
        norm = LayerNormalization<axis=-1>(h, gamma)  y = MatMul(norm, V)
    """
    first = "h = MatMul(rows, W)"
    made = {"W": (8, 8), "gamma": (8,), "V": (8, 8)}
    told = onnx.shape_inference.infer_shapes(_model(first + body, opset=17, weights=made))
    declared = _symbols(told)
    assert any(symbol.startswith("unk__") for symbol in declared)
    result = onnxfold.optimize(told)
    assert result.plan.folds
    assert _symbols(result.model) <= declared


def _symbols(proto: onnx.ModelProto) -> set[str]:
    values = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim} - {""}


def test_products_of_sizes_and_their_quotients_have_names() -> None:
    """What TorchScript writes for Bloom: batch and heads are one axis, and two again."""
    body = """
        heads = Constant<value = int64[1] {4}>()  width = Constant<value = int64[1] {8}>()
        open = Shape(h)  first = Gather<axis=0>(open, zero)  both = Mul(first, heads)
        merged = Concat<axis=0>(both, rest, width)  joined = Reshape(h, merged)
        again = Shape(joined)  sum = Gather<axis=0>(again, zero)  apart = Div(sum, heads)
        four = Concat<axis=0>(apart, heads, rest, width)  split = Reshape(joined, four)
        odd = Div(first, heads)  y = Identity(rows)
    """
    view = infer(ir.from_proto(_with_stream(body)))
    symbolic = SymbolicShapes(view)
    values = view.by_ref()
    assert symbolic.dims(values["joined"]) == ("n*4", "t", 8)
    assert symbolic.dims(values["split"]) == ("n", 4, "t", 8)
    assert symbolic.vector(values["odd"]) is None


def _with_stream(body: str) -> onnx.ModelProto:
    proto = _model(body, opset=17)
    stream = helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", "t", 32])
    proto.graph.input.add().CopyFrom(stream)
    return proto


@pytest.mark.parametrize("layer", ["Gemm(a, w)", "Gemm<transB=1>(a, t)", "MatMul(a, w)"])
def test_rows_that_a_layer_takes_together_are_taken_apart_again(layer: str) -> None:
    """PyTorch's torch.addmm(b, x.view(-1, 4), W).view(*x.shape[:-1], -1)."""
    body = f"""
        sizes = Shape(x)  last = Constant<value = int64[2] {{-1, 4}}>()
        zero = Constant<value = int64[1] {{0}}>()  two = Constant<value = int64[1] {{2}}>()
        rest = Constant<value = int64[1] {{-1}}>()  kept = Slice(sizes, zero, two)
        a = Reshape(x, last)
        p = {layer}
        target = Concat<axis=0>(kept, rest)  y = Reshape(p, target)
    """
    graph = f"g (float[n,m,4] x) => (float[n,m,r] y) {{{body}}}"
    proto = parser.parse_model(f'<ir_version: 7, opset_import: ["" : 13]> {graph}')
    name, shape = ("t", (6, 4)) if "transB" in layer else ("w", (4, 6))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    assert _shapes(proto)["y"] == ("n", "m", 6)


def test_the_sums_of_calls_have_sizes_too_so_that_a_second_run_makes_the_same_calls() -> None:
    """onnx infers a sum as [unk, unk, 8], while its operands show 24 rows."""
    body = """
        first = MatMul(tokens, W)  inner = Add(tokens, first)
        norm = LayerNormalization<axis=-1>(inner, gamma)  second = MatMul(norm, V)
        outer = Add(inner, second)  last = LayerNormalization<axis=-1>(outer, gamma)
        y = MatMul(last, U)
    """
    made = {"W": (8, 8), "V": (8, 8), "U": (8, 8), "gamma": (8,)}
    first = onnxfold.optimize(_of_chosen(body, made), target="kernels")
    calls = [node.op_type for node in first.model.graph.node if node.domain == "onnxfold"]
    assert calls == ["AddLayerNormAffineWithSum", "AddLayerNormAffine"]
    shapes = _shapes(first.model)
    assert shapes["inner"] == shapes["norm"]
    assert shapes["inner"] is not None
    assert shapes["inner"][1:] == (24, 8)
    assert not onnxfold.optimize(first.model, target="kernels").report["changed"]
