"""Tensors that stay in files, and how their bytes are mapped."""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import ModelError, show
from onnxfold.model_io.mapped import FileMap

# A mapping costs about 15 us; smaller arrays are read once and kept.
_KEEP_BYTES = 16384


class FileTensor(ir.ExternalTensor):
    """A tensor in a file; each array maps just its bytes and unmaps them when it is dropped.

    `ir.ExternalTensor` keeps every map, so resident memory grows with each weight that is read. It
    also refuses files with several hard links, which package managers create; here `attach` checks
    once for what it guards against, and a file that has changed since then is refused.

    Raises ModelError on reading if the file is gone or is not the one that was checked.
    """

    __slots__ = ("_stamp", "in_model")

    def __init__(
        self,
        path: Path,
        status: os.stat_result,
        offset: int,
        like: ir.TensorProtocol,
        *,
        in_model: bool,
    ) -> None:
        super().__init__(
            os.fspath(path),
            offset,
            packed_nbytes(like.dtype, like.size),
            like.dtype,
            shape=ir.Shape(like.shape.numpy()),
            name=like.name or "",
            doc_string=like.doc_string,
            metadata_props=dict(like.metadata_props),
        )
        self._stamp = stamp(status)
        self.in_model = in_model

    def check_unchanged(self, descriptor: int) -> None:
        """Refuse an open file that is not the one that was loaded."""
        if stamp(os.fstat(descriptor)) != self._stamp:
            raise ModelError(f"{show(self.path)}: the file has changed since it was loaded")

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return a read-only array of the tensor, mapped from the file."""
        if self.dtype.bitwidth < 8:
            packed: ir.PackedTensor[npt.NDArray[np.uint8]]
            packed = ir.PackedTensor(self._bytes(), self.dtype, shape=self.shape)
            return packed.numpy()
        if self._array is not None:
            return self._array
        dtype = self.dtype.numpy().newbyteorder("<")
        array = self._bytes().view(dtype).reshape(self.shape.numpy())
        if self.nbytes <= _KEEP_BYTES:
            array = array.copy()
            array.flags.writeable = False
            self._array = array
        return array

    def read_rows(self, numbers: Iterable[int]) -> npt.NDArray[np.generic]:
        """Return some rows of axis 0, read and not mapped.

        A system that caches a file in large pages maps the whole page for one byte of it, so
        scattered reads may make the whole file resident.
        """
        shape = self.shape.numpy()
        nbytes = self.nbytes // max(1, shape[0])
        pieces: list[bytes] = []
        try:
            with open(self.path, "rb", buffering=0) as file:
                self.check_unchanged(file.fileno())
                for number in numbers:
                    file.seek((self.offset or 0) + number * nbytes)
                    pieces.append(file.read(nbytes))
        except OSError as error:
            raise ModelError(f"{show(self.path)}: {error.strerror}") from error
        flat = np.frombuffer(b"".join(pieces), self.dtype.numpy().newbyteorder("<"))
        return flat.reshape(len(pieces), *shape[1:])

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.generic]:
        array = self.numpy()
        if dtype is not None:
            array = array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def tobytes(self) -> bytes:
        """Return the bytes of the tensor, as they are in the file."""
        return self._bytes().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes of the tensor to a file object."""
        file.write(self._bytes().data)

    def _bytes(self) -> npt.NDArray[np.uint8]:
        offset = self.offset or 0
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            with open(self.path, "rb") as file:
                self.check_unchanged(file.fileno())
                if self.nbytes == 0:
                    return np.empty(0, np.uint8)
                length = offset + self.nbytes - start
                mapped = FileMap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        except OSError as error:
            raise ModelError(f"{show(self.path)}: {error.strerror}") from error
        return np.frombuffer(mapped, np.uint8, count=self.nbytes, offset=offset - start)


def packed_nbytes(dtype: ir.DataType, elements: int) -> int:
    """Return the bytes of `elements` values of a type, with sub-byte values packed."""
    return (dtype.bitwidth * elements + 7) // 8


def stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes with a file: device, inode, size and time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
