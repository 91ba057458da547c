"""Mutations of external data: where it is said to lie, and what lies there."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto

from tests.hostile.parts import SIZES, TEXTS, Mutant, tensors_of

__all__ = ["externalise"]


_LOCATIONS = (
    "",
    ".",
    "..",
    "../escape.data",
    "/etc/hostname",
    "C:\\weights",
    "gone.data",
    "link.data",
    "loop.data",
    "out.onnx",
    "m.onnx",
    "sub/../../escape",
    "nul\0",
    "x" * 5000,
)


def externalise(model: onnx.ModelProto, rng: random.Random, made: Mutant) -> None:
    """Move raw data to one or two files, then perhaps corrupt its description."""
    data = {"w0.data": bytearray(), "w1.data": bytearray()}
    links: list[TensorProto] = []
    for tensor in tensors_of(model):
        if not tensor.HasField("raw_data") or rng.random() < 0.2:
            continue
        name = rng.choice(sorted(data))
        _refer(tensor, name, len(data[name]), len(tensor.raw_data))
        data[name] += tensor.raw_data
        tensor.ClearField("raw_data")
        links.append(tensor)
    made.done.append("externalise")
    if links and rng.random() < 0.8:
        made.done.append("wild_data")
        _wild_data(rng.choice(links), rng, data, made)
    made.files.update({name: bytes(content) for name, content in data.items()})


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, item in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(item))


def _wild_data(
    tensor: TensorProto, rng: random.Random, data: dict[str, bytearray], made: Mutant
) -> None:
    entries = {entry.key: entry for entry in tensor.external_data}
    kind = rng.randrange(8)
    if kind == 0:
        wild = (*SIZES, "0x10", "1.5", "", " 4", "\u0663", "9" * 400, "9" * 5000)
        entries[rng.choice(("offset", "length"))].value = str(rng.choice(wild))
    elif kind == 1:
        entries["offset"].value = str(rng.randrange(64))
    elif kind == 2:
        entries["location"].value = rng.choice(_LOCATIONS)
        made.links["link.data"] = rng.choice(("/etc/passwd", "..", "w0.data", "/proc/self/mem"))
        made.links["loop.data"] = "loop.data"
    elif kind == 3:
        name = entries["location"].value
        del data[name][rng.randrange(len(data[name]) or 1) :]
    elif kind == 4:
        tensor.external_data.remove(entries[rng.choice(("location", "offset", "length"))])
    elif kind == 5:
        tensor.external_data.append(rng.choice(tensor.external_data))
    elif kind == 6:
        tensor.raw_data = b"1234"
    else:
        tensor.external_data.add(key=rng.choice(TEXTS), value=rng.choice(TEXTS))
