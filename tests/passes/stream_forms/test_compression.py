"""Streams of mean 0 lose their last channel, where every part of them can do without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.compress import apply
from onnxfold.passes.stream_forms.plan import Shortened
from onnxfold.passes.stream_forms.stream import follows
from onnxfold.pipeline.finalize import define_functions
from onnxfold.shapes import infer
from onnxfold.target import Target
from tests.passes.centred_stream import FEEDS, B, C, CentredStream, T, activation, between, halved
from tests.passes.stream_forms.compressing import (
    PLAN,
    ROUNDING,
    compressed_by,
    is_right,
    is_wrong,
    prove,
    reason_of,
    shapes_of_weights,
    to_crms,
)
from tests.sessions import outputs
from tests.soundness.float64 import evaluate, relative_error

DIGITS = Path(__file__).parents[3] / "models" / "digits_vit" / "digits_vit.onnx"


def test_every_writer_loses_its_last_channel_and_the_function_stays() -> None:
    model = CentredStream().model()
    compressed = is_right(model, "table", "W", "b")
    assert shapes_of_weights(compressed)["W"] == (5, C - 1)
    old = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for tensor in compressed.graph.initializer:
        if tensor.name in ("table", "W", "b"):
            assert np.array_equal(numpy_helper.to_array(tensor), old[tensor.name][..., :-1])


def test_the_plan_of_these_tests_is_right_where_nothing_is_wrong() -> None:
    model = CentredStream().model()
    result, shown = compressed_by(model, PLAN)
    assert not shown.failures
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) < ROUNDING


def test_a_second_run_changes_nothing() -> None:
    once = is_right(CentredStream().model(), "table", "W", "b")
    assert not to_crms(once).changed


def test_layer_norms_are_folded_first() -> None:
    graph = CentredStream("table", "W", "b")
    model = graph.model()
    for node in model.graph.node:
        node.op_type = node.op_type.replace("RMSNormalization", "LayerNormalization")
    compressed = is_right(model, "table", "W", "b")
    assert "LayerNormalization" not in {node.op_type for node in compressed.graph.node}


@pytest.mark.parametrize("weight", ["table", "W", "b"])
def test_one_number_of_a_shorter_weight_that_is_another_fails_the_proof(weight: str) -> None:
    before = prepare(ir.from_proto(CentredStream().model())).info
    edit = Editor(before, copy=True)
    apply(edit, PLAN, Settings(convert_to=Conversion.CRMS))
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    value = edit.model.graph.initializers[weight]
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    assert not prove(before, ModelInfo(edit.model), PLAN).failures
    array[(-1,) * array.ndim] += 1e-6
    value.const_value = ir.tensor(array, name=weight)
    assert prove(before, ModelInfo(edit.model), PLAN).failures


@pytest.mark.parametrize("weight", ["table", "W", "b"])
def test_a_weight_with_a_mean_is_named_and_cutting_it_is_wrong(weight: str) -> None:
    model = CentredStream(weight).model()
    reason = reason_of(model)
    assert reason["code"] == "has_mean"
    assert reason["nodes"] == [weight]
    is_wrong(model)


def test_an_activation_in_the_stream_is_named_and_compressing_it_is_wrong() -> None:
    model = CentredStream().model(activation)
    reason = reason_of(model)
    assert reason["code"] == "activation"
    assert reason["nodes"] == ["relu"]
    is_wrong(model, replace(PLAN, values=(*PLAN.values, Shortened("relu", 2))))


@pytest.mark.parametrize(("read", "code"), [("h", "exact_reader"), ("table", "shared_weight")])
def test_what_another_node_reads_in_full_keeps_its_channel(read: str, code: str) -> None:
    size = f"size = ReduceSumSquare<keepdims=0>({read})"
    model = CentredStream().model(between(size, "size", reads="h"))
    reason = reason_of(model)
    assert reason["code"] == code
    assert reason["nodes"] == ["size"]
    is_wrong(model)


def test_a_stream_that_is_an_output_keeps_its_channel() -> None:
    model = CentredStream().model(between("", "h", reads="h"))
    reason = reason_of(model)
    assert reason["code"] == "graph_output"
    assert reason["nodes"] == ["h"]
    is_wrong(model)


def test_a_quantised_weight_is_refused() -> None:
    nodes = between(
        "Q = DequantizeLinear(quantised, scale) f = MatMul(x, four) g = MatMul(f, Q) i = Add(h, g)",
        quantised=np.arange(-C * 2, C * 2, dtype=np.int8).reshape(4, C),
        scale=0.1,
        four=np.full((5, 4), 0.5),
    )
    assert reason_of(CentredStream().model(nodes))["code"] == "quantised"


_reversed = between(
    "turned = Slice(h, start, end, axis, step)", start=[-1], end=[-(2**62)], axis=[2], step=[-1]
)


def test_a_stream_whose_channels_are_turned_around_keeps_them_all() -> None:
    """Its last channel is the first after the Slice; the proof refused the whole pass."""
    reason = reason_of(CentredStream().model(_reversed))
    assert (reason["code"], reason["nodes"]) == ("unknown_op", ["turned"])


def test_a_stream_whose_number_of_channels_a_slice_names_keeps_them_all() -> None:
    named = between("named = Slice(h, start, end, axis)", start=[0], end=[C], axis=[2])
    reason = reason_of(CentredStream().model(named))
    assert (reason["code"], reason["nodes"]) == ("unknown_op", ["named"])


@pytest.mark.parametrize(
    ("body", "ones", "code"),
    [
        ("second = RMSNormalization<axis=-2>(h, ones)", (T, C), "no_cheaper_form"),
        (
            "t = Transpose<perm=[0,2,1]>(h) second = RMSNormalization<axis=-1>(t, ones)",
            (T,),
            "unknown_op",
        ),
    ],
)
def test_a_norm_over_other_axes_reads_every_channel(
    body: str, ones: tuple[int, ...], code: str
) -> None:
    second = between(body, "second", reads="h", ones=np.ones(ones))
    result = to_crms(CentredStream().model(second))
    assert not result.changed
    reasons = {row["name"]: row["reason"] for row in result.report["inspect"]["norms"]}
    assert (reasons["n"]["code"], reasons["n"]["nodes"]) == ("unknown_op", ["second"])
    assert reasons["second"]["code"] == code


@pytest.mark.parametrize(("entry", "told"), [(0, False), (1, False), (2, True), (-1, True)])
def test_an_entry_of_a_shape_follows_the_axis_that_it_is_of(entry: int, told: bool) -> None:
    """Axis 2 of x is shortened, and nothing of z."""
    text = f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[B,T,8] x, float[B,T,8] z) => (int64[1] y, int64[3] sizes_of_z) {{
      k = Constant<value_ints = [{entry}]>() sizes = Shape(x) y = Gather(sizes, k)
      sizes_of_z = Shape(z)
    }}"""
    info = infer(ir.from_proto(onnx.parser.parse_model(text)))
    values = info.by_ref()
    channels = {values["x"]: 2}
    assert follows(info, values["y"], 0, channels) is told
    assert follows(info, values["sizes"], 2, channels)
    assert not follows(info, values["sizes_of_z"], 2, channels)


def test_other_streams_of_the_model_are_compressed_all_the_same() -> None:
    second = between(
        "other = MatMul(x, W2) second = RMSNormalization<axis=-1>(other, gamma) "
        "y2 = MatMul(second, head)",
        "y2",
        W2=CentredStream().weights["W"][:, ::-1].copy(),
    )

    def both(graph: CentredStream) -> str:
        second(graph)
        return _reversed(graph)

    result = to_crms(CentredStream().model(both))
    assert shapes_of_weights(result.model)["W2"] == (5, C - 1)
    assert shapes_of_weights(result.model)["W"] == (5, C)


_OPEN = """<ir_version: 10, opset_import: ["" : 23]>
g (double[batch,3,5] x, int64[1] d) => (double[batch,3,c] y) {
  rest = Constant<value = int64[2] {-1, 3}>()  shape = Concat<axis = 0>(rest, d)
  h = MatMul(x, W)  told = Reshape(h, shape)  one = Constant<value = double[1] {1.0}>()
  gamma = Expand(one, d)
  [n] n = RMSNormalization<axis = -1>(told, gamma)
  y = Identity(n)
}"""


def test_channels_whose_number_an_input_tells_are_refused() -> None:
    model = onnx.parser.parse_model(_OPEN)
    W = np.random.default_rng(0).standard_normal((5, C))
    W -= W.mean(axis=1, keepdims=True)
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    reason = reason_of(model)
    assert reason["code"] == "dynamic_fiber"
    assert "the size of a normalized axis is not known" in reason["sentence"]


def test_a_factor_and_a_class_token_go_along() -> None:
    is_right(CentredStream().model(halved), "table", "W", "b")
    token = np.random.default_rng(3).standard_normal((1, 1, C))
    joined = between(
        "tokens = Expand(token, batch) joined = Concat<axis=1>(tokens, h)",
        token=token - token.mean(),
        batch=[B, 1, 1],
    )
    is_right(CentredStream().model(joined), "table", "W", "b", "token")


def test_what_is_centred_at_run_time_enters_by_one_slice() -> None:
    centred = between(
        "r = Relu(h) mean = ReduceMean(r, axes) c = Sub(r, mean) doubled = Mul(c, two)",
        axes=[-1],
        two=2.0,
    )
    compressed = is_right(CentredStream("table", "W", "b").model(centred))
    assert [node.op_type for node in compressed.graph.node].count("Slice") == 1


@pytest.mark.parametrize("number", [1, C - 1])
def test_a_stream_whose_rest_is_a_multiple_is_compressed(number: int) -> None:
    assert to_crms(CentredStream().model(), multiple_of=number).changed


def test_a_stream_of_two_channels_keeps_one() -> None:
    graph = CentredStream()
    for name in ("table", "W", "b"):
        one = graph.weights[name][..., :1]
        graph.weights[name] = np.concatenate([one, -one], axis=-1)
    for name in ("gamma", "head"):
        graph.weights[name] = graph.weights[name][:2]
    compressed = is_right(graph.model(), "table", "W", "b")
    assert shapes_of_weights(compressed)["table"][1] == 1


@pytest.mark.parametrize("number", [2, C, 2 * (C - 1)])
def test_a_stream_whose_rest_is_no_multiple_stays_and_says_so(number: int) -> None:
    result = to_crms(CentredStream().model(), multiple_of=number)
    assert not result.changed
    reason = result.report["inspect"]["norms"][0]["reason"]
    assert reason["code"] == "unaligned"
    assert f"{C - 1} is not a multiple of {number}" in reason["sentence"]
    assert reason["nodes"] == ["h"]


def test_kernels_get_calls_of_crms_norm() -> None:
    model = CentredStream().model()
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    result = to_crms(model, target="kernels")
    calls = [node.op_type for node in result.model.graph.node if node.domain == "onnxfold"]
    assert calls == ["CRMSNormFullScale"]


@pytest.mark.parametrize("target", Target)
def test_every_target_reports_its_crms_norms_and_can_be_converted_back(target: Target) -> None:
    model = ir.to_proto(ir.load(DIGITS))
    result = to_crms(model, target=target)
    rows = result.report["inspect"]["norms"]
    assert [row["action"] for row in rows] == ["crms"] * len(rows)
    assert len(onnxfold.inspect(result.model)["norms"]) == len(rows)
    back = onnxfold.convert(result.model, to="rms", check=0)
    assert back.report["inspect"]["summary"]["decompressed"] == len(rows)


@pytest.mark.parametrize("target", Target)
def test_no_scale_moves_where_nothing_is_compressed(target: Target) -> None:
    """A factor could move into a weight next to the stream, which only compression needs."""

    beside = between("q = MatMul(h, head) scaled = Mul(q, half)", "scaled", reads="h", half=0.5)
    model = CentredStream("table", "W", "b").model(beside)
    result = to_crms(model, target=target)
    assert not result.changed
    assert result.report["inspect"]["summary"]["scales_fused"] == 0
    planned = to_crms(model, target=target, dry_run=True)
    assert planned.report["inspect"]["summary"]["scales_fused"] == 0


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_half_floats_lose_no_more_than_before(shift: float) -> None:
    """All numbers of a grid that a mean is taken from are rounded alike: their sum erred the more.

    The channel left out erred 100 times as much as others, and linear layers 4 times.
    """
    rng, width, rows = np.random.default_rng(0), 512, 16
    weights = {
        "W": rng.standard_normal((64, width)) / 8,
        "b": rng.standard_normal(width) + shift,
        "g": 1 + rng.random(width) / 8,
        "head": rng.standard_normal((width, 64)) / width**0.5,
    }
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float16[{rows},64] x) => '
        f"(float16[{rows},{width}] n, float16[{rows},64] y) {{\n"
        "m = MatMul(x, W)\n h = Add(m, b)\n n = LayerNormalization<axis=-1>(h, g)\n"
        "y = MatMul(n, head)\n}"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float16), name) for name, array in weights.items()
    )
    result = to_crms(model)
    assert result.changed
    feeds = {"x": rng.standard_normal((rows, 64)).astype(np.float16)}
    truth, whole, shorter = (
        evaluate(model, feeds),
        outputs(model, feeds),
        outputs(result.model, feeds),
    )
    for t, before, after in zip(truth, whole, shorter, strict=True):
        old, new = (np.abs(each - t).max(axis=0) for each in (before, after))
        assert new.max() < 2 * old.max()
        assert np.sqrt((new**2).mean()) < 1.5 * np.sqrt((old**2).mean())
