"""Models of one call of an onnxfold op, and seeded inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.operators.functions import (
    DOMAIN,
    SIGNATURES,
    VERSION,
    Statistics,
    call,
    function,
    setting_of,
)
from tests.oracle import Array

__all__ = ["NUMPY_TYPES", "call_model", "input_shapes", "random_inputs"]

NUMPY_TYPES = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.DOUBLE: np.dtype(np.float64),
}


def input_shapes(name: str, shape: Sequence[int], axes: int) -> dict[str, tuple[int, ...]]:
    """The shape of each input of op `name` where X has this shape."""
    block = tuple(shape[len(shape) - axes :])
    full = SIGNATURES[name].statistics is Statistics.CRMS_FULL
    scale = (block[0] + 1,) if full else block
    special = {"X": tuple(shape), "residual": tuple(shape), "scale": scale, "bias": scale}
    return {key: special.get(key, block) for key in SIGNATURES[name].inputs}


def random_inputs(
    name: str, shape: Sequence[int], dtype: ir.DataType, *, axes: int = 1, seed: int = 0
) -> dict[str, Array]:
    """Normal rows; a scale around one."""
    rng = np.random.default_rng(seed)
    offset = {"scale": 1.0}
    return {
        key: (offset.get(key, 0.0) + rng.standard_normal(size)).astype(NUMPY_TYPES[dtype])
        for key, size in input_shapes(name, shape, axes).items()
    }


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
) -> onnx.ModelProto:
    """A model of one call; what `constants` names is an initializer, the rest is an input."""
    constants = constants or {}
    numbers = [size if isinstance(size, int) else 1 for size in shape]
    known = all(isinstance(size, int) for size in shape[len(shape) - axes :])
    values: dict[str, ir.Value] = {}
    for key, size in input_shapes(name, numbers, axes).items():
        like_x = key in ("X", "residual")
        dims: Sequence[int | str | None] = shape if like_x else size if known else [None] * axes
        values[key] = ir.Value(name=key, shape=ir.Shape(dims), type=ir.TensorType(dtype))
        if key in constants:
            values[key].const_value = ir.tensor(constants[key], dtype=dtype, name=key)
    node = call(name, list(values.values()), axes=axes, epsilon=epsilon)
    for output, key in zip(node.outputs, SIGNATURES[name].outputs, strict=True):
        output.name, output.type = key, ir.TensorType(dtype)
        last: int | str | None = shape[-1]
        if SIGNATURES[name].statistics is Statistics.CRMS_FULL:
            last = last + 1 if isinstance(last, int) else None
        output.shape = ir.Shape([*shape[:-1], last])
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
