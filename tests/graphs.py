"""Models from ONNX text and arrays: the way in which tests write a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

__all__ = ["LOOP_OF_STATES", "Array", "graph", "model", "untyped", "weights", "without_shapes"]

Array = npt.NDArray[np.generic]


# Two weights as states, of which the names of the next values are given.
LOOP_OF_STATES = (
    "h, w, v = Loop<body = b (int64 i, bool go, float[2,3,8] a, float[8,8] k, float[8,8] l) => "
    "(bool on, float[2,3,8] d, float[8,8] k2, float[8,8] l2) {{ on = Identity(go) "
    "m = MatMul(a, k) d = Add(m, a) k2 = Identity({}) l2 = Identity({}) }}>(steps, yes, x, W, V) "
    "z = MatMul(h, v) t = MatMul(h, W) u = MatMul(t, W) "
    "n = LayerNormalization<epsilon=0.01>(u, gamma, beta) o = MatMul(n, V) y = Add(o, z)"
)


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    """Seeded weights by name; gammas are far from 0 and of either sign."""
    made: dict[str, Array] = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        rng = np.random.default_rng(seed)
        array = rng.standard_normal(shape)
        if name.startswith("gamma"):
            array = np.sign(array) * (0.5 + np.abs(array))
        made[name] = array
    return made


def model(
    body: str,
    inputs: str,
    outputs: str,
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    *,
    dtype: npt.DTypeLike = None,
) -> onnx.ModelProto:
    """Return a model from ONNX text, with the constants that it reads as initializers.

    ``dtype``: of constants that are float64 where they are given.
    """
    typed, nodes = body.split("> ", 1) if body.startswith("<") else ("", body)
    typed = f"{typed}>" if typed else ""
    text = f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
    g ({inputs}) => ({outputs}) {typed} {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    read = set(_read(proto.graph))
    for name, given in (constants or {}).items():
        if name in read:
            array = np.asarray(given)
            if dtype is not None and array.dtype == np.float64:
                array = array.astype(dtype)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def graph(
    body: str,
    inputs: str,
    outputs: str,
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    *,
    dtype: npt.DTypeLike = None,
) -> ir.Model:
    """Return `model` for onnx_ir."""
    return ir.from_proto(model(body, inputs, outputs, constants, opset, dtype=dtype))


def without_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Forget the shapes of the outputs, which a text has to give."""
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def untyped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Forget the types of the outputs, too."""
    for value in proto.graph.output:
        value.ClearField("type")
    return proto


def _read(proto: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in proto.output)
    for node in proto.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _read(attribute.g)
