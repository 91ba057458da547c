"""Arrays that are mapped from files, and tensors that can read some rows without a map."""

import mmap
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


class FileMap(mmap.mmap):
    """A private map of a read-only file, so that its pages may be dropped."""


@runtime_checkable
class RowReader(Protocol):
    """A tensor of a file."""

    def read_rows(self, numbers: Iterable[int]) -> npt.NDArray[np.generic]:
        """Return some rows of axis 0, read and not mapped."""


def release(array: npt.NDArray[np.generic]) -> None:
    """Drop the pages of an array of a file from the resident memory.

    They are mapped again when they are read again. Other arrays are not affected.
    """
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, FileMap) or not array.flags.c_contiguous or not array.size:
        return
    if hasattr(mmap, "MADV_DONTNEED"):
        low = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        start = low - low % mmap.PAGESIZE
        owner.madvise(mmap.MADV_DONTNEED, start, low + array.nbytes - start)
