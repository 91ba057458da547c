"""Writing one file front to back, tensors and ranges of other files among it.

A range of a file is copied inside the kernel where the system can (`copy_file_range`, which shares
the blocks on file systems that allow it), so that it is neither mapped nor read; adjacent ranges
are copied as one. Anything else is written one tensor at a time and freed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError
from onnxfold.model_io.external import FileTensor, show
from onnxfold.model_io.tensors import payload

__all__ = ["Output", "Progress"]

# Large enough that calls cost nothing, small enough that progress moves.
_KERNEL_CHUNK_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(slots=True)
class Progress:
    """Counts written bytes and tells a listener."""

    total: int
    listener: Callable[[int, int], None] | None
    done: int = 0

    def advance(self, nbytes: int) -> None:
        # The graph is written too, and is not counted in the total.
        self.done = min(self.done + nbytes, self.total)
        if self.listener is not None:
            self.listener(self.done, self.total)


@dataclass(slots=True)
class _Range:
    path: str
    start: int
    end: int


class Output:
    """A new file, written front to back and closed by leaving the context.

    Raises:
        OSError: the file cannot be written.
        ModelError: a file that a tensor lives in is gone, changed or shorter than it was.

    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # closed by __exit__
        self._sources: dict[str, BinaryIO] = {}
        self._pending: _Range | None = None
        self._progress = progress
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            for source in self._sources.values():
                source.close()
            self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._flush()
        self._write(data)
        self.position += len(data)

    def align(self, alignment: int) -> None:
        """Append zeros up to a multiple of `alignment` bytes."""
        gap = -self.position % alignment
        if gap:
            self.write(bytes(gap))

    def write_tensor(self, tensor: ir.TensorProtocol) -> None:
        """Append the bytes of a tensor; those in files are copied without being mapped."""
        if not isinstance(tensor, ir.ExternalTensor):
            self.write(payload(tensor))
            return
        if not tensor.valid():
            raise InvariantError(f"tensor '{tensor.name}' is written after it was invalidated")
        self._open(tensor)
        start = tensor.offset or 0
        end = start + tensor.nbytes
        pending = self._pending
        if pending is not None and pending.path == tensor.path and pending.end == start:
            pending.end = end
        else:
            self._flush()
            self._pending = _Range(tensor.path, start, end)
        self.position += tensor.nbytes

    def _open(self, tensor: ir.ExternalTensor) -> None:
        if tensor.path not in self._sources:
            try:
                source = open(tensor.path, "rb", buffering=0)  # noqa: SIM115  # closed by __exit__
                self._sources[tensor.path] = source
            except OSError as error:
                raise ModelError(f"{show(tensor.path)}: {error.strerror}") from error
        if isinstance(tensor, FileTensor):
            tensor.check_unchanged(self._sources[tensor.path].fileno())

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        source = self._sources[pending.path]
        start = self._copy_in_kernel(source, pending)
        source.seek(start)
        buffer = memoryview(bytearray(min(_BUFFER_BYTES, pending.end - start)))
        while start < pending.end:
            count = source.readinto(buffer[: pending.end - start])  # type: ignore[attr-defined]
            if not count:
                raise ModelError(f"{show(pending.path)}: shortened while it was being copied")
            self._write(buffer[:count])
            start += count

    def _copy_in_kernel(self, source: BinaryIO, pending: _Range) -> int:
        """Copy as much of a range as the kernel will; gives the offset at which it stopped."""
        start = pending.start
        copy = getattr(os, "copy_file_range", None)  # Linux alone has it
        while copy is not None and start < pending.end:
            count = min(_KERNEL_CHUNK_BYTES, pending.end - start)
            try:
                copied = copy(source.fileno(), self._file.fileno(), count, offset_src=start)
            except OSError:
                # Not for these two file systems; an error of the disk meets the plain copy too.
                break
            if not copied:
                break
            start += copied
            self._progress.advance(copied)
        return start

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view[:_KERNEL_CHUNK_BYTES])
            view = view[written:]
            self._progress.advance(written)
