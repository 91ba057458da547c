"""Streams times a power of two: float32 as before, float16 finite and right, and refusals."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

import onnxfold
from onnxfold.errors import DataError, ModelError, UsageError
from tests.builders import Array
from tests.passes.basis.wide_streams import (
    FEEDS,
    LARGE,
    WIDE,
    WIDTH,
    WORDS,
    Builder,
    between_streams,
    wide_stream,
)
from tests.sessions import outputs
from tests.soundness.float64 import evaluate

DIGITS = Path("models/digits_vit/digits_vit.onnx")
FLOAT16_ERROR = 2e-2  # of logits of size 10: a few roundings of 2^-11 in each of two blocks

VISIBLE = 0.1  # infinite numbers, and those that the converter has cut to 1e4


def run(model: onnx.ModelProto) -> list[Array]:
    return outputs(model, FEEDS)


def in_float16(model: onnx.ModelProto) -> list[Array]:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    return run(convert_float_to_float16(copy, keep_io_types=True))


def error(expected: list[Array], got: list[Array]) -> float:
    pairs = zip(expected, got, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def scaled(model: onnx.ModelProto, **options: Any) -> onnxfold.Result:
    return onnxfold.optimize(model, **{"scale_streams": "auto", "fuse_affine": "never", **options})


@pytest.mark.parametrize(("name", "form"), list(zip(WIDE, cycle(("auto", "layer")))))
def test_float16_holds_a_scaled_stream(name: str, form: str) -> None:
    model = WIDE[name]
    expected = evaluate(model, FEEDS)
    assert not error(expected, in_float16(model)) < VISIBLE
    result = scaled(model, norm_form=form)
    assert "left_out" not in result.report
    assert result.proof is not None
    assert result.proof.passed
    every = result.report["scaled_streams"]["streams"]
    streams = [each for each in every if each["exponent"]]
    assert len(streams) == (3 if name == "between streams" else 1)
    opened = {"activation first": ["e"], "post-norms, bare": ["post0", "post1"]}
    assert streams[-1]["inserted"] == opened.get(name, [])
    for stream in streams:
        assert stream["exponent"] >= np.log2(LARGE) - 16
        assert all(value["after"] <= 65504 / 8 for value in stream["values"])
    assert error(expected, evaluate(result.model, FEEDS)) < 1e-6
    assert error(expected, run(result.model)) < 1e-5
    half = in_float16(result.model)
    assert error(expected, half) < FLOAT16_ERROR


def test_a_scale_of_so_many_bits_is_that_of_every_stream() -> None:
    result = scaled(WIDE["layer"], scale_streams=20, check=0)
    (stream,) = result.report["scaled_streams"]["streams"]
    assert stream["exponent"] == 20
    assert stream["values"][0]["after"] == stream["values"][0]["before"] * 2.0**-20


def test_copies_of_a_shared_bias_are_proved_by_their_readers() -> None:
    result = scaled(between_streams(shared=True), scale_streams=12)
    assert not result.report["scaled_streams"]["refusals"]
    assert "left_out" not in result.report


@pytest.mark.parametrize("reshaped", [False, True])
def test_a_norm_that_no_output_needs_starts_no_stream_of_its_own(reshaped: bool) -> None:
    model = onnx.ModelProto.FromString(WIDE["layer"].SerializeToString())
    value = "x1"
    if reshaped:
        shape = onnx.numpy_helper.from_array(np.array([0, 0, 2, WIDTH // 2]), "pairs")
        model.graph.initializer.append(shape)
        model.graph.node.append(onnx.helper.make_node("Reshape", ["x1", "pairs"], ["apart"]))
        value = "apart"
    ones = onnx.numpy_helper.from_array(np.ones(WIDTH // (1 + reshaped), np.float32), "ones")
    model.graph.initializer.append(ones)
    model.graph.node.append(onnx.helper.make_node("LayerNormalization", [value, "ones"], ["idle"]))
    result = scaled(model, scale_streams=12, check=None)
    (stream,) = result.report["scaled_streams"]["streams"]
    assert stream["exponent"] == 12
    assert error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < 1e-6


def test_a_tied_table_that_is_too_large_to_store_twice_stays() -> None:
    model = WIDE["tied at once"]
    result = scaled(model, allow_split=0, check=0)
    (stream,) = result.report["scaled_streams"]["streams"]
    assert stream["inserted"] == ["x0"]
    assert error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < 1e-6


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_floats_are_scaled_too(dtype: int) -> None:
    """Epsilon stands in an attribute of 32 bits, and the weights in the type of the model."""
    model = cast_to(wide_stream("layer", 1.0), dtype)
    result = scaled(model, scale_streams=4, check=0, norm_form="layer")
    (stream,) = result.report["scaled_streams"]["streams"]
    # Three numbers of float16 are so small already that they lose digits.
    assert (stream["exponent"], stream["subnormal"]) == (4, 3 * (dtype == TensorProto.FLOAT16))
    assert error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < 1e-6


def cast_to(model: onnx.ModelProto, dtype: int) -> onnx.ModelProto:
    """Return a model of another float type."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for output in made.graph.output:
        output.type.tensor_type.elem_type = dtype
    return made


def test_a_margin_leaves_as_many_bits() -> None:
    exponents = [
        scaled(WIDE["rms pieces"], scale_margin=margin, check=0).report["scaled_streams"][
            "streams"
        ][0]["exponent"]
        for margin in (0, 3, 5)
    ]
    assert exponents == [exponents[0], exponents[0] + 3, exponents[0] + 5]


def test_a_stream_in_range_stays_as_it_is() -> None:
    model = wide_stream("rms pieces", size=1.0)
    result = scaled(model, check=0)
    (stream,) = result.report["scaled_streams"]["streams"]
    assert stream["exponent"] == 0
    assert stream["norms"] == ["norm0", "norm1", "last"]
    assert not result.changed


def test_data_reaches_where_drawn_inputs_do_not(tmp_path: Path) -> None:
    model = wide_stream("rms pieces", size=1.0)
    table = next(t for t in model.graph.initializer if t.name == "table")
    array = numpy_helper.to_array(table).copy()
    array[31] *= 1e6
    table.CopyFrom(numpy_helper.from_array(array, "table"))
    np.savez(tmp_path / "plain.npz", ids=np.array([[1, 2]]))
    np.savez(tmp_path / "rare.npz", ids=np.array([[1, 31]]))
    ids = {"ids": np.array([[1, 2, 3]])}
    streams = [
        scaled(model, check=1, inputs=ids, data=tmp_path / name).report["scaled_streams"]
        for name in ("plain.npz", "rare.npz")
    ]
    assert [each["streams"][0]["exponent"] for each in streams] == [0, 8]
    assert "rare.npz" in streams[1]["data"]


def test_every_stream_of_the_file_is_found_again_when_it_is_scaled_back() -> None:
    """Times 2^-20 and then times 2^20 by hand: the weights are those of the export, bit by bit."""
    model = WIDE["rms pieces"]
    result = scaled(model, scale_streams=20, check=0)
    (stream,) = result.report["scaled_streams"]["streams"]
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}
        for m in (model, result.model)
    )
    for name in stream["weights"]:
        assert np.array_equal(after[name] * np.float32(2.0**20), before[name])


def add_output(model: onnx.ModelProto, name: str) -> None:
    shape = ["batch", "time", WIDTH]
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def refused(model: onnx.ModelProto, **options: Any) -> str:
    with pytest.raises(ModelError) as raised:
        scaled(model, **options)
    return str(raised.value)


def test_an_epsilon_that_underflows_is_refused() -> None:
    said = refused(WIDE["layer"], scale_streams=60)
    assert "epsilon of norm 'norm0.node', 1e-05, would become" in said
    assert "float cannot hold" in said


def test_an_output_that_is_of_the_stream_is_refused() -> None:
    model = onnx.ModelProto.FromString(WIDE["layer"].SerializeToString())
    add_output(model, "x1")
    assert "'x1' is an output of its graph" in refused(model)


def test_a_reader_that_is_not_linear_is_refused_by_its_name() -> None:
    model = onnx.ModelProto.FromString(WIDE["layer"].SerializeToString())
    model.graph.node.append(helper.make_node("Sigmoid", ["x1"], ["gate"], name="gating"))
    add_output(model, "gate")
    assert "Sigmoid 'gating' reads 'x1' in full" in refused(model)


def test_a_stream_times_itself_is_refused() -> None:
    b = Builder(1.0)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH, size=1e5), "ids"], "x0")
    product = b.node("Mul", [x, x], "product")
    b.node("MatMul", [b.norm("rms pieces", x, "n"), b.weight("head", WIDTH, 4)], "logits")
    b.node("MatMul", [product, b.weight("probe", WIDTH, 4)], "probed")
    assert "multiplies the stream by itself" in refused(b.model({"logits": 4, "probed": 4}))


def test_a_stream_that_is_the_gamma_of_its_norm_is_refused() -> None:
    b = Builder(1.0)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH, size=1e5), "ids"], "x0")
    row = b.node("ReduceSum", [x, b.constant("axes", [0, 1], np.int64)], "row", keepdims=0)
    n = b.norm("layer", row, "n")
    for node in b.nodes:
        node.input[:] = ["row" if name == "n.gamma" else name for name in node.input]
    b.node("MatMul", [n, b.weight("head", WIDTH, 4)], "logits")
    model = b.model({"logits": 4})
    del model.graph.output[0].type.tensor_type.shape.dim[:2]
    assert "has what it reads as its gamma or beta too" in refused(model)


def test_statistics_that_are_read_are_refused() -> None:
    model = onnx.ModelProto.FromString(WIDE["layer"].SerializeToString())
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    norm.output.extend(["mean"])
    model.graph.output.append(
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", "time", 1])
    )
    assert "statistics" in refused(model)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((1, 4, 2), np.int64), "ids"),
        (np.zeros((1, 4), np.float32), "ids"),
    ],
)
def test_bad_data_is_refused(tmp_path: Path, array: Array, says: str) -> None:
    np.savez(tmp_path / "bad.npz", ids=array)
    with pytest.raises(DataError, match=says):
        scaled(WIDE["layer"], data=tmp_path / "bad.npz", output=tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_data_with_nan_is_refused(tmp_path: Path) -> None:
    image = np.zeros((1, 1, 8, 8), np.float32)
    image[0, 0, 3, 4] = np.nan
    np.savez(tmp_path / "bad.npz", images=image)
    with pytest.raises(DataError, match="row 0 has NaN in input 'images'"):
        scaled(onnx.load(DIGITS), data=tmp_path / "bad.npz")


def test_data_that_nothing_is_measured_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="data= is for scale_streams=, split_gamma= and drop_means="
    ):
        scaled(WIDE["layer"], scale_streams="off", data=tmp_path / "any.npz")


@pytest.mark.parametrize("chosen", ["on", "0", "-3", "121", "1.5", "nan", ""])
def test_what_is_no_scale_is_refused(chosen: str) -> None:
    with pytest.raises(UsageError, match="scale_streams= takes"):
        scaled(WIDE["layer"], scale_streams=chosen)
