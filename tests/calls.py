"""Models of one call of an onnxfold op, and seeded inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.operators.bodies import function, setting_of
from onnxfold.operators.functions import DOMAIN, SIGNATURES, VERSION, Output, Statistics, call
from tests.oracle import Array

__all__ = ["LEVELS", "NUMPY_TYPES", "call_model", "input_shapes", "output_forms", "random_inputs"]

NUMPY_TYPES = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.DOUBLE: np.dtype(np.float64),
}
# The largest magnitude of a code, by type.
LEVELS = {ir.DataType.INT8: 127.0, ir.DataType.UINT8: 127.0, ir.DataType.FLOAT8E4M3FN: 448.0}
_OF_ROWS = ("row_scale", "row_epsilon")
_SINGLE = ("y_scale", "y_zero_point")


def input_shapes(name: str, shape: Sequence[int], axes: int) -> dict[str, tuple[int, ...]]:
    """The shape of each input of op `name` where X has this shape."""
    block = tuple(shape[len(shape) - axes :])
    full = SIGNATURES[name].statistics is Statistics.CRMS_FULL
    scale = (block[0] + 1,) if full else block
    special = {"X": tuple(shape), "residual": tuple(shape), "scale": scale, "bias": scale}
    special |= dict.fromkeys(_OF_ROWS, (*shape[: len(shape) - axes], *(1,) * axes))
    special |= dict.fromkeys(_SINGLE, ())
    return {key: special.get(key, block) for key in SIGNATURES[name].inputs}


def random_inputs(
    name: str,
    shape: Sequence[int],
    dtype: ir.DataType,
    *,
    axes: int = 1,
    seed: int = 0,
    code: ir.DataType = ir.DataType.INT8,
) -> dict[str, Array]:
    """Normal rows; a scale around one; positive numbers of rows; steps that fit the codes.

    A row quantized by its own scale has zero point 0, or 128 for unsigned bytes.
    """
    rng = np.random.default_rng(seed)
    offset = {"scale": 1.0}
    inputs = {
        key: np.asarray(offset.get(key, 0.0) + rng.standard_normal(size), NUMPY_TYPES[dtype])
        for key, size in input_shapes(name, shape, axes).items()
    }
    for key in set(_OF_ROWS) & set(inputs):
        inputs[key] = np.asarray(0.25 + np.abs(inputs[key].astype(np.float32)), np.float32)
    if "y_scale" in inputs:
        inputs["y_scale"] = np.asarray(4.0 / LEVELS[code], NUMPY_TYPES[dtype])
    if "y_zero_point" in inputs:
        odd = 3 if "y_scale" in inputs else 0
        zero = {ir.DataType.INT8: -odd, ir.DataType.UINT8: 128 + odd}.get(code, 0)
        inputs["y_zero_point"] = np.asarray(zero, code.numpy())
    return inputs


def output_forms(
    name: str, inputs: Mapping[str, Array], axes: int = 1
) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """The shape and type of each output of op `name` for these inputs."""
    signature, x = SIGNATURES[name], inputs["X"]
    full = signature.statistics is Statistics.CRMS_FULL
    like_x = (*x.shape[:-1], x.shape[-1] + full)
    rows = (*x.shape[: x.ndim - axes], *(1,) * axes)
    forms: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {
        "Y": (like_x, x.dtype),
        "Y_scale": (rows, x.dtype),
        "Sum": (x.shape, x.dtype),
    }
    if signature.output is Output.SCALE:
        forms["Y"] = (rows, np.dtype(np.float32))
    if signature.quantized:
        forms["Y"] = (x.shape, inputs["y_zero_point"].dtype)
    return [forms[key] for key in signature.outputs]


def call_model(
    name: str,
    shape: Sequence[int | str],
    dtype: ir.DataType,
    *,
    opset: int = 18,
    axes: int = 1,
    epsilon: float = 1e-5,
    constants: Mapping[str, Array] | None = None,
    with_body: bool = True,
    code: ir.DataType = ir.DataType.INT8,
) -> onnx.ModelProto:
    """A model of one call; what `constants` names is an initializer, the rest is an input."""
    constants = constants or {}
    numbers = [size if isinstance(size, int) else 1 for size in shape]
    known = all(isinstance(size, int) for size in shape[len(shape) - axes :])
    values: dict[str, ir.Value] = {}
    for key, size in input_shapes(name, numbers, axes).items():
        like_x = key in ("X", "residual")
        dims: Sequence[int | str | None] = shape if like_x else size if known else [None] * axes
        own = ir.DataType.FLOAT if key in _OF_ROWS else code if key == "y_zero_point" else dtype
        if key in _OF_ROWS:
            dims = [*shape[: len(shape) - axes], *[1] * axes]
        if key in _SINGLE:
            dims = ()
        values[key] = ir.Value(name=key, shape=ir.Shape(dims), type=ir.TensorType(own))
        if key in constants:
            values[key].const_value = ir.tensor(constants[key], dtype=own, name=key)
    levels = LEVELS[code]
    node = call(name, list(values.values()), axes=axes, epsilon=epsilon, levels=levels)
    for output, key in zip(node.outputs, SIGNATURES[name].outputs, strict=True):
        output.name, output.type = key, ir.TensorType(dtype)
        last: int | str | None = shape[-1]
        if SIGNATURES[name].statistics is Statistics.CRMS_FULL:
            last = last + 1 if isinstance(last, int) else None
        output.shape = ir.Shape([*shape[:-1], last])
        scales = SIGNATURES[name].output is Output.SCALE
        if key == "Y_scale" or (key == "Y" and scales):
            output.shape = ir.Shape([*shape[: len(shape) - axes], *[1] * axes])
        if key == "Y" and (scales or SIGNATURES[name].quantized):
            output.type = ir.TensorType(ir.DataType.FLOAT if scales else code)
    graph = ir.Graph(
        [value for key, value in values.items() if key not in constants],
        node.outputs,
        nodes=[node],
        initializers=[value for key, value in values.items() if key in constants],
        opset_imports={"": opset, DOMAIN: VERSION},
        name="call",
    )
    functions = (
        [function(name, opset, setting_of(node, opset, convertible=False))] if with_body else []
    )
    return ir.to_proto(ir.Model(graph, ir_version=8, functions=functions))
