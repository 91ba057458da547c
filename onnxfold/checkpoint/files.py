"""A checkpoint on disk: its configuration, its shards, and the place of every tensor."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import ModelError, escaped
from onnxfold.graph.constants import Array
from onnxfold.model_io import show

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LENGTH_BYTES = 8  # bytes of the header length at the start of a file
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "C64": 64}
_TYPES: Mapping[str, npt.DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a shard: its bytes are ``nbytes`` from ``offset``."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def is_float(self) -> bool:
        """Whether it can be scaled and centered: float64, float32, float16 or bfloat16."""
        return self.dtype in _TYPES

    def numpy(self) -> Array:
        """Read only this tensor."""
        kind = np.dtype(_TYPES[self.dtype])
        array = np.fromfile(self.path, kind, prod(self.shape), offset=self.offset)
        return array.reshape(self.shape)

    def tensor(self) -> ir.LazyTensor:
        """Return it as a tensor that is read on every access."""
        dtype = ir.DataType.from_numpy(np.dtype(_TYPES[self.dtype]))
        return ir.LazyTensor(
            lambda: ir.Tensor(self.numpy(), dtype=dtype, name=self.name),
            dtype=dtype,
            shape=ir.Shape(self.shape),
            name=self.name,
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with a configuration and shards of tensors; names of shards in order."""

    folder: Path
    config: Mapping[str, Any]
    shards: tuple[str, ...]
    tensors: Mapping[str, StoredTensor]

    def of_shard(self, shard: str) -> list[StoredTensor]:
        """Return the tensors of a shard in the order of their bytes."""
        path = self.folder / shard
        return sorted(
            (stored for stored in self.tensors.values() if stored.path == path),
            key=lambda stored: stored.offset,
        )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the configuration and the headers of a checkpoint.

    Raises ModelError if the folder does not exist, a shard is missing or damaged, or a tensor is
    not in the shard given by the index.
    """
    if not folder.is_dir():
        raise ModelError(f"{show(folder)}: it is not a folder; give that of config.json")
    config = _json(folder / "config.json")
    if (folder / INDEX).exists():
        wanted = _weight_map(folder)
    elif (folder / SINGLE).exists():
        wanted = None
    else:
        raise ModelError(
            f"{show(folder)}: there is neither {SINGLE} nor {INDEX}; save the model with "
            "transformers' save_pretrained, which writes them"
        )
    shards = (SINGLE,) if wanted is None else tuple(sorted(set(wanted.values())))
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for stored in _header(folder / shard):
            if stored.name in tensors:
                raise ModelError(f"{show(folder)}: two shards contain '{escaped(stored.name)}'")
            tensors[stored.name] = stored
    for name, shard in (wanted or {}).items():
        if name not in tensors or tensors[name].path != folder / shard:
            raise ModelError(
                f"{show(folder / shard)}: '{escaped(name)}', which the index has there, is missing"
            )
    return Checkpoint(folder, config, shards, tensors)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{show(path)}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{show(path)}: cannot be read: {escaped(str(error))}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{show(path)}: it does not contain a JSON object")
    return document


def _weight_map(folder: Path) -> dict[str, str]:
    found = _json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise ModelError(f"{show(folder / INDEX)}: it has no weight_map of names to files")
    for file in sorted(set(found.values())):
        if Path(file).name != file:
            raise ModelError(f"{show(folder / INDEX)}: '{escaped(file)}' is not a file name")
        if not (folder / file).is_file():
            raise ModelError(f"{show(folder / file)}: this shard is missing; download it again")
    return found


def _header(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of a file in the order of their bytes, which follow without gaps.

    The library has checked that, so only the offsets are summed.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file, open(path, "rb") as plain:
            offset = _LENGTH_BYTES + int.from_bytes(plain.read(_LENGTH_BYTES), "little")
            for name in file.offset_keys():
                part = file.get_slice(name)
                dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
                nbytes = prod(shape) * _bits(dtype) // 8
                yield StoredTensor(name, path, dtype, shape, offset, nbytes)
                offset += nbytes
            if offset != path.stat().st_size:
                raise ModelError(f"{show(path)}: a tensor of it has a type that is not known")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{show(path)}: cannot be read: {escaped(str(error))}") from error


def _bits(dtype: str) -> int:
    """Return the bits of an element, the number in the name of its type."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) if digits else 0
