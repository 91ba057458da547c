"""Mutations of tensors: sizes, types, bytes, numbers, places."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto, TensorProto

from tests.hostile.parts import SIZES, a_tensor, graphs_of

__all__ = [
    "claim_dims",
    "claim_type",
    "cut_data",
    "move_tensor",
    "resize_honestly",
    "spoil_numbers",
]


def claim_dims(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = a_tensor(model, rng)
    kind = rng.randrange(4)
    if kind == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
    elif kind == 1:
        tensor.dims.insert(0, rng.choice(SIZES))
    elif kind == 2:
        tensor.dims.extend([1] * rng.choice((1, 8, 40, 5000)))
    else:
        del tensor.dims[:]


def resize_honestly(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another shape that the data does have."""
    tensor = a_tensor(model, rng)
    dims = list(tensor.dims)
    kind = rng.randrange(3)
    if kind == 0 and dims:
        at = rng.randrange(len(dims))
        dims[at] = 0
        tensor.ClearField("raw_data")
        for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(name)
        tensor.raw_data = b""
    elif kind == 1:
        dims.insert(rng.randrange(len(dims) + 1), 1)
    else:
        rng.shuffle(dims)
    del tensor.dims[:]
    tensor.dims.extend(dims)


def claim_type(model: onnx.ModelProto, rng: random.Random) -> None:
    a_tensor(model, rng).data_type = rng.choice((*range(26), 1000, -1))


def cut_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = a_tensor(model, rng)
    raw = bytearray(tensor.raw_data)
    kind = rng.randrange(3)
    if kind == 0:
        del raw[rng.randrange(len(raw)) :]
    elif kind == 1:
        raw += rng.randbytes(rng.randrange(1, 9))
    else:
        tensor.float_data.extend([1.0] * rng.randrange(1, 5))
    tensor.raw_data = bytes(raw)


def spoil_numbers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Any bytes, of the right number: NaN, infinities, huge indices and axes."""
    tensor = a_tensor(model, rng)
    raw = bytearray(tensor.raw_data)
    size = rng.choice((1, 2, 4, 8))
    for _ in range(rng.choice((1, 3, len(raw) // size))):
        at = rng.randrange(len(raw) // size) * size
        kind = rng.randrange(4)
        if kind == 0:
            raw[at : at + size] = rng.randbytes(size)
        elif kind == 1:
            raw[at : at + size] = b"\xff" * size
        elif kind == 2:
            raw[at : at + size] = bytes(size)
        else:
            value = rng.choice(SIZES) % 2 ** (8 * size)
            raw[at : at + size] = value.to_bytes(size, "little")
    tensor.raw_data = bytes(raw)


def move_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    """Store an initializer in another way: twice, sparse, in segments, as a constant, nameless."""
    graph = rng.choice(graphs_of(model))
    tensor = rng.choice(graph.initializer)
    kind = rng.randrange(6)
    if kind == 0:
        graph.initializer.append(tensor)
    elif kind == 1:
        sparse = graph.sparse_initializer.add()
        sparse.values.CopyFrom(tensor)
        graph.initializer.remove(tensor)
    elif kind == 2:
        tensor.segment.begin = rng.choice(SIZES)
    elif kind == 3:
        node = graph.node.add(op_type="Constant", output=[tensor.name])
        node.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(tensor)
        graph.initializer.remove(tensor)
    elif kind == 4:
        tensor.name = ""
    else:
        tensor.data_location = TensorProto.EXTERNAL
