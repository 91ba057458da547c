"""Small models to serve, each for one question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "DATATYPES",
    "TABLE_ROWS",
    "cross_row",
    "every_type",
    "failing",
    "large",
    "scaled",
    "slow",
    "table",
    "two_inputs",
    "wide",
    "write",
    "write_external",
]

DATATYPES = {
    "BOOL": TensorProto.BOOL,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Save under another name first, so that a reader never sees half a file."""
    beside = path.with_suffix(".new")
    onnx.save(model, beside)
    beside.replace(path)
    return path


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "served", inputs, outputs, constants or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _floats(name: str, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def every_type() -> onnx.ModelProto:
    """Give back one input of every datatype: FP32 as FP32_out."""
    return _model(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in DATATYPES],
        [helper.make_tensor_value_info(n, kind, ["batch", 3]) for n, kind in DATATYPES.items()],
        [
            helper.make_tensor_value_info(f"{n}_out", kind, ["batch", 3])
            for n, kind in DATATYPES.items()
        ],
    )


def scaled(factor: float) -> onnx.ModelProto:
    """y = factor x, rows of 4."""
    return _model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [_floats("x", "batch", 4)],
        [_floats("y", "batch", 4)],
        [numpy_helper.from_array(np.float32(factor), "factor")],
    )


TABLE_ROWS = 1 << 20  # 16 megabytes: a file of that size is mapped, not read


def table(value: float) -> onnx.ModelProto:
    """Rows of a table that holds one value."""
    return _model(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [_floats("y", "batch", 4)],
        [numpy_helper.from_array(np.full((TABLE_ROWS, 4), value, np.float32), "table")],
    )


def write_external(model: onnx.ModelProto, path: Path) -> Path:
    """Save with the data in a file of its own, which another model of its name replaces whole."""
    data = path.with_suffix(".data")
    data.unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    return path


def wide() -> onnx.ModelProto:
    """y = x, a megabyte."""
    return _model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [_floats("x", "batch", 1 << 18)],
        [_floats("y", "batch", 1 << 18)],
    )


def cross_row() -> onnx.ModelProto:
    """Softmax over the batch: its rows must never be stacked with other requests'."""
    return _model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        [_floats("x", "batch", 4)],
        [_floats("y", "batch", 4)],
    )


def failing() -> onnx.ModelProto:
    """A table of 5 rows; an index outside of it is refused by ONNX Runtime."""
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    return _model(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [_floats("y", "batch", "length", 2)],
        [numpy_helper.from_array(table, "table")],
    )


def two_inputs() -> onnx.ModelProto:
    """y = a + b, and z = a - b."""
    return _model(
        [
            helper.make_node("Add", ["a", "b"], ["y"]),
            helper.make_node("Sub", ["a", "b"], ["z"]),
        ],
        [_floats("a", "batch", "n"), _floats("b", "batch", "n")],
        [_floats("y", "batch", "n"), _floats("z", "batch", "n")],
    )


def large() -> onnx.ModelProto:
    """Repeats a number four megabytes long."""
    return _model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        [_floats("x", 1)],
        [_floats("y", 1024, 1024)],
        [numpy_helper.from_array(np.array([1024, 1024]), "shape")],
    )


def slow() -> onnx.ModelProto:
    """Multiplies a 256x256 matrix by itself as often as the input `trips` says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["m", "m"], ["m_next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            _floats("m", 256, 256),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), _floats("m_next", 256, 256)],
    )
    return _model(
        [helper.make_node("Loop", ["trips", "true", "start"], ["y"], body=body)],
        [helper.make_tensor_value_info("trips", TensorProto.INT64, [])],
        [_floats("y", 256, 256)],
        [
            numpy_helper.from_array(np.asarray(True), "true"),
            numpy_helper.from_array(np.eye(256, dtype=np.float32), "start"),
        ],
    )
