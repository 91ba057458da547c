from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    RuntimeException,
)

from onnxfold.operators.functions import DOMAIN, VERSION
from onnxfold.runtime.library import register
from tests.calls import call_model, output_forms, random_inputs
from tests.custom_ops.harness import assert_outputs_right, kernel_session, run, run_op
from tests.oracle import Array

FLOAT = ir.DataType.FLOAT


def session(model: onnx.ModelProto, threads: int = 1, optimized: str = "") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if optimized:
        options.optimized_model_filepath = optimized
    register(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def graph_model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "n"])
        for name in (*inputs, *outputs)
    }
    return helper.make_model(
        helper.make_graph(
            list(nodes), "g", [infos[name] for name in inputs], [infos[name] for name in outputs]
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, VERSION)],
        ir_version=8,
    )


def norm_node(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    return helper.make_node(
        name, list(inputs), list(outputs), domain=DOMAIN, axes=[-1], axis=-1, epsilon=1e-5
    )


def test_the_kernel_takes_the_place_of_the_body(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    model = call_model("AddRMSNormScaleWithSum", ("rows", 24), FLOAT)
    session(model, optimized=str(path))
    assert [node.op_type for node in onnx.load(path).graph.node] == ["AddRMSNormScaleWithSum"]


@pytest.mark.parametrize("name", ["RMSNorm", "AddLayerNormWithSum", "CRMSNormFull"])
def test_a_free_dimension_without_a_name_is_not_minus_one(name: str) -> None:
    """Exporters split heads by a shape with unknown and computed elements."""
    model = call_model(name, (2, None, 24), FLOAT)
    del model.graph.output[:]
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["Y"], ["front"], end=2),
            helper.make_node("Concat", ["front", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["Y", "target"], ["out"]),
        ]
    )
    rest = onnx.numpy_helper.from_array(np.array([1, -1]), "rest")
    model.graph.initializer.append(rest)
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    inputs = random_inputs(name, (2, 5, 24), FLOAT)
    (out,) = session(model).run(None, inputs)
    assert out.shape == (2, 5, 1, 24 + (name == "CRMSNormFull"))


def test_an_input_without_a_shape_says_nothing_of_the_output() -> None:
    model = graph_model([norm_node("RMSNorm", ["x"], ["y"])], ["x"], ["y"])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    (y,) = session(model).run(None, {"x": np.ones((2, 3, 4), np.float32)})
    assert y.shape == (2, 3, 4)


def test_shapes_are_inferred_through_the_kernels(tmp_path: Path) -> None:
    nodes = [
        norm_node("AddLayerNormWithSum", ["x", "r"], ["y", "s"]),
        helper.make_node("Shape", ["s"], ["shape"], start=1),
        helper.make_node("Expand", ["y", "shape"], ["out"]),
    ]
    model = graph_model(nodes, ["x", "r"], ["out"])
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_value = 3
        info.type.tensor_type.shape.dim[1].dim_value = 16
    path = tmp_path / "optimized.onnx"
    session(model, optimized=str(path))
    assert "Shape" not in [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("rank", [3, "unknown"])
def test_unknown_dims_stay_unknown_behind_the_kernel(rank: int | str) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "given"], ["a"]),
        norm_node("RMSNorm", ["a"], ["y"]),
        helper.make_node("Shape", ["y"], ["two"], end=2),
        helper.make_node("Concat", ["two", "rest"], ["back"], axis=0),
        helper.make_node("Reshape", ["y", "back"], ["out"]),
    ]
    model = graph_model(nodes, ["x"], ["out"])
    model.graph.input.append(helper.make_tensor_value_info("given", onnx.TensorProto.INT64, [rank]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "rest"))
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    given = np.array([2, 3, 4], np.int64)
    (out,) = session(model).run(None, {"x": x, "given": given})
    assert out.shape == (2, 3, 4)
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.reshape(6, 4), expected, rtol=4e-7, atol=0)


@pytest.mark.parametrize(
    ("name", "expected"), [("AddRMSNormWithSum", 2), ("AddRMSNorm", 1), ("AddLayerNormWithSum", 2)]
)
def test_working_in_place_changes_no_bit(name: str, expected: int) -> None:
    outputs = ["y", "s"][:expected]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Mul", ["r", "x"], ["b"]),
        norm_node(name, ["a", "b"], outputs),
    ]
    rng = np.random.default_rng(0)
    feed = {key: rng.standard_normal((37, 129)).astype(np.float32) for key in ("x", "r")}
    in_place = session(graph_model(nodes, ["x", "r"], outputs)).run(None, feed)
    # Where the terms are outputs of the graph themselves, nothing may be written over them.
    model = graph_model(nodes, ["x", "r"], [*outputs, "a", "b"])
    apart = session(model).run(None, feed)
    for one, other in zip(in_place, apart[:expected], strict=True):
        assert one.tobytes() == other.tobytes()
    np.testing.assert_array_equal(apart[expected], feed["x"] * feed["x"])
    np.testing.assert_array_equal(apart[expected + 1], feed["r"] * feed["x"])


def test_a_term_that_is_read_again_is_not_overwritten() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        norm_node("AddRMSNorm", ["a", "a"], ["y"]),
        norm_node("RMSNorm", ["a"], ["z"]),
        helper.make_node("Add", ["y", "z"], ["w"]),
        helper.make_node("Add", ["w", "a"], ["out"]),
    ]
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    out = session(graph_model(nodes, ["x"], ["out"])).run(None, {"x": x})[0]
    a = (x * x).astype(np.float64)
    unit = a / np.sqrt(np.mean(a * a, axis=-1, keepdims=True) + 1e-5)
    # RMS of 2a is the RMS of a except for epsilon, 1e-5 of these rows' mean square.
    np.testing.assert_allclose(out, 2 * unit + a, rtol=2e-5)


def test_one_tensor_as_both_terms_is_doubled() -> None:
    nodes = [norm_node("AddLayerNormWithSum", ["x", "x"], ["y", "s"])]
    x = np.random.default_rng(2).standard_normal((4, 33)).astype(np.float32)
    y, s = session(graph_model(nodes, ["x"], ["y", "s"])).run(None, {"x": x})
    np.testing.assert_array_equal(s, x + x)
    assert abs(y.mean(axis=-1)).max() < 1e-6


@pytest.mark.parametrize("name", ["RMSNormScale", "AddBiasLayerNormAffineWithSum", "CRMSNormFull"])
def test_bits_do_not_depend_on_threads_repetition_or_batch(name: str) -> None:
    shape = (400, 257)
    inputs = random_inputs(name, shape, FLOAT)
    model = call_model(name, ("rows", 257), FLOAT, with_body=False)
    sessions = [session(model, threads) for threads in (1, 2, 4)]
    first = [array.tobytes() for array in sessions[0].run(None, inputs)]
    for candidate in sessions:
        for _ in range(3):
            assert [array.tobytes() for array in candidate.run(None, inputs)] == first
    row = {key: v[7:8] if key in ("X", "residual") else v for key, v in inputs.items()}
    alone = sessions[0].run(None, row)
    whole = sessions[0].run(None, inputs)
    assert [a.tobytes() for a in alone] == [w[7:8].tobytes() for w in whole]


def test_concurrent_runs_with_different_shapes_do_not_disturb_each_other() -> None:
    name = "AddLayerNormAffineWithSum"
    shared = session(call_model(name, ("rows", 129), FLOAT, with_body=False), threads=2)
    feeds = [random_inputs(name, (40 * (i + 1), 129), FLOAT, seed=i) for i in range(8)]
    expected = [[array.tobytes() for array in shared.run(None, feed)] for feed in feeds]
    barrier = threading.Barrier(8)

    def work(i: int) -> bool:
        barrier.wait()
        runs = ([array.tobytes() for array in shared.run(None, feeds[i])] for _ in range(40))
        return all(result == expected[i] for result in runs)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_eighty_sessions_from_four_threads_outlive_their_options() -> None:
    name = "RMSNormScale"
    model = call_model(name, ("rows", 40), FLOAT, with_body=False)
    inputs = random_inputs(name, (6, 40), FLOAT)

    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: session(model), range(80)))
    results = {s.run(None, inputs)[0].tobytes() for s in sessions}
    assert len(results) == 1


def test_sessions_share_options_that_were_registered_twice() -> None:
    options = ort.SessionOptions()
    register(options)
    register(options)
    model = call_model("RMSNorm", ("rows", 8), FLOAT, with_body=False).SerializeToString()
    for _ in range(3):
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def test_a_row_that_starts_off_its_alignment_is_right() -> None:
    name, n = "AddLayerNormAffineWithSum", 100
    for dtype in (FLOAT, ir.DataType.FLOAT16):
        inputs = random_inputs(name, (3, n), dtype)
        expected = run_op(name, inputs)
        for offset in (1, 2, 4, 8):  # bytes
            moved = {key: off_by(array, offset) for key, array in inputs.items()}
            got = run(kernel_session(name, dtype), moved, output_forms(name, moved))
            assert [a.tobytes() for a in got] == [e.tobytes() for e in expected]


def off_by(array: Array, offset: int) -> Array:
    buffer = bytearray(offset) + array.tobytes()
    return np.ndarray(array.shape, array.dtype, buffer, offset)


def test_operands_of_wrong_shape_are_refused_by_name() -> None:
    name = "AddBiasLayerNormAffine"
    good = random_inputs(name, (3, 10), FLOAT)
    wrong = {
        "residual": np.zeros((10, 3), np.float32),
        "linear_bias": np.zeros(9, np.float32),
        "scale": np.zeros(11, np.float32),
        "bias": np.zeros(1, np.float32),
    }
    for key, array in wrong.items():
        with pytest.raises(InvalidArgument, match=f"onnxfold {name}: {key} must have"):
            kernel_session(name, FLOAT).run(None, good | {key: array})
    short = {"X": good["X"], "scale": np.zeros(10, np.float32)}
    with pytest.raises(InvalidArgument, match="scale must have"):
        kernel_session("CRMSNormFullScale", FLOAT).run(None, short)
    with pytest.raises(InvalidArgument, match="X has fewer axes"):
        kernel_session("RMSNorm", FLOAT, rank=1, axes=2).run(None, {"X": np.zeros(4, np.float32)})


@pytest.mark.parametrize(("scale", "bias"), [(11, 10), (10, 1)])
def test_constants_of_wrong_size_are_refused_by_name(scale: int, bias: int) -> None:
    node = norm_node("LayerNormAffine", ["x", "scale", "bias"], ["y"])
    model = graph_model([node], ["x"], ["y"])
    for name, size in (("scale", scale), ("bias", bias)):
        constant = onnx.numpy_helper.from_array(np.ones(size, np.float32), name)
        model.graph.initializer.append(constant)
    wrong = "scale" if scale != 10 else "bias"
    with pytest.raises(InvalidArgument, match=f"onnxfold LayerNormAffine: {wrong} must have"):
        session(model).run(None, {"x": np.zeros((3, 10), np.float32)})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"axes": [-1], "epsilon": 1e-5}, "attribute axis is missing"),
        ({"axes": [-1], "axis": -1}, "attribute epsilon is missing"),
        ({"axes": [-1], "axis": 1.0, "epsilon": 1e-5}, "attribute axis is missing or has another"),
        ({"axes": [-1], "axis": 1, "epsilon": 1e-5}, "axis must count from the end"),
        ({"axes": [-1], "axis": -1, "epsilon": -1e-5}, "epsilon must be finite"),
        ({"axes": [-1], "axis": -1, "epsilon": float("nan")}, "epsilon must be finite"),
        ({"axes": [-1], "axis": -1, "epsilon": float("inf")}, "epsilon must be finite"),
    ],
)
def test_bad_attributes_are_refused_when_the_model_loads(
    attributes: dict[str, Any], message: str
) -> None:
    node = helper.make_node("RMSNorm", ["x"], ["y"], domain=DOMAIN, **attributes)
    with pytest.raises(RuntimeException, match=f"onnxfold RMSNorm: .*{message}"):
        session(graph_model([node], ["x"], ["y"]))


def test_the_names_of_ops_that_do_not_exist_are_refused() -> None:
    with pytest.raises(Fail, match="RMSNormal"):
        session(graph_model([norm_node("RMSNormal", ["x"], ["y"])], ["x"], ["y"]))


@pytest.mark.parametrize("exponent", [-20, -1, 3, 17])
def test_rms_norm_does_not_see_a_power_of_two(exponent: int) -> None:
    for name in ("RMSNorm", "CRMSNorm", "CRMSNormFull", "LayerNorm"):
        inputs = random_inputs(name, (5, 77), FLOAT)
        moved = {"X": inputs["X"] * np.float32(2.0**exponent)}
        one, other = (run_op(name, feed, epsilon=0.0)[0] for feed in (inputs, moved))
        assert one.tobytes() == other.tobytes()


def test_centring_twice_is_centring() -> None:
    x = random_inputs("Center", (6, 311), FLOAT)["X"] + np.float32(100)
    once = run_op("Center", {"X": x})[0]
    twice = run_op("Center", {"X": once})[0]
    assert np.abs(once - twice).max() <= np.spacing(np.float32(np.abs(x).max()))


def test_crms_norm_is_the_rms_norm_of_the_completed_row() -> None:
    stored = random_inputs("CRMSNorm", (4, 63), FLOAT)["X"]
    full = np.concatenate([stored, -stored.sum(axis=-1, keepdims=True)], axis=-1)
    y = run_op("RMSNorm", {"X": full})[0]
    np.testing.assert_allclose(run_op("CRMSNorm", {"X": stored})[0], y[:, :-1], rtol=4e-6)
    np.testing.assert_allclose(run_op("CRMSNormFull", {"X": stored})[0], y, rtol=4e-6, atol=4e-6)


def test_float16_neighbours_may_be_computed_in_float32() -> None:
    # ONNX Runtime lacks a float16 Add on the CPU: it casts around it and may move our node too.
    model = call_model("AddRMSNormScaleWithSum", ("rows", 24), ir.DataType.FLOAT16)
    model.graph.node.append(helper.make_node("Add", ["Y", "Sum"], ["out"]))
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("out", TensorProto.FLOAT16, ["rows", 24])
    )
    inputs = random_inputs("AddRMSNormScaleWithSum", (3, 24), ir.DataType.FLOAT16)
    out = session(model).run(None, inputs)[0]
    y, total = run_op("AddRMSNormScaleWithSum", inputs)
    # Without the roundings between, the result differs by one of each.
    bound = 2.0**-10 * (np.abs(y.astype(np.float32)) + 3 * np.abs(total.astype(np.float32)) + 1)
    difference = out.astype(np.float32) - (y.astype(np.float32) + total.astype(np.float32))
    assert (np.abs(difference) <= bound).all()


def test_one_model_may_hold_several_element_types() -> None:
    nodes = [
        norm_node("RMSNorm", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["h"], to=TensorProto.FLOAT16),
        norm_node("LayerNorm", ["h"], ["g"]),
        helper.make_node("Cast", ["g"], ["y"], to=TensorProto.FLOAT),
    ]
    x = np.random.default_rng(3).standard_normal((4, 50)).astype(np.float32)
    y = session(graph_model(nodes, ["x"], ["y"])).run(None, {"x": x})[0]
    centred = x - x.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True))
    # Two roundings to float16 of values up to 4; epsilon is a part in 1e5.
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2 * 4 * 2.0**-11)


def test_assertions_of_this_suite_can_fail() -> None:
    inputs = random_inputs("AddLayerNormWithSum", (2, 20), FLOAT)
    y, total = run_op("AddLayerNormWithSum", inputs)
    assert_outputs_right("AddLayerNormWithSum", inputs, [y, total])
    y[1, 3] += np.float32(1e-4)
    with pytest.raises(AssertionError, match="1 of 40 wrong, first at"):
        assert_outputs_right("AddLayerNormWithSum", inputs, [y, total])
    y[1, 3] = np.nan
    with pytest.raises(AssertionError, match="1 of 40 wrong, first at"):
        assert_outputs_right("AddLayerNormWithSum", inputs, [y, total])
