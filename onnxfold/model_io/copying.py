"""Writing one file front to back, tensors and ranges of other files among it.

A range of a file is copied inside the kernel where the system can (`copy_file_range`, which shares
the blocks on file systems that allow it), so that it is neither mapped nor read; adjacent ranges
are copied as one. Anything else is computed one tensor at a time, while a thread writes the last.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError
from onnxfold.model_io.external import FileTensor
from onnxfold.model_io.messages import show
from onnxfold.model_io.tensors import little_endian, payload

__all__ = ["Output", "Progress"]

# Large enough that calls and threads cost nothing, small enough that progress moves.
_BATCH_BYTES = 16 << 20
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


@dataclass(frozen=True, slots=True)
class _Range:
    source: BinaryIO
    start: int
    end: int


_Piece = bytes | memoryview | _Range


class Output:
    """A new file, written front to back and closed by leaving the context.

    At most one batch is being written while the next is collected, so that no more than two
    tensors that are not in files are in memory.

    Raises:
        OSError: the file cannot be written.
        ModelError: a file that a tensor lives in is gone, changed or shorter than it was.

    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # closed by __exit__
        self._sources: dict[str, BinaryIO] = {}
        self._progress = progress
        self._batch: list[_Piece] = []
        self._batch_bytes = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onnxfold-write")
        self._writing: Future[None] | None = None
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
                self._submit()
                self._wait()
        finally:
            self._writer.shutdown(cancel_futures=True)
            for source in self._sources.values():
                source.close()
            self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._append(data, len(data))

    def align(self, alignment: int) -> None:
        """Append zeros up to a multiple of `alignment` bytes."""
        gap = -self.position % alignment
        if gap:
            self.write(bytes(gap))

    def write_tensor(self, tensor: ir.TensorProtocol) -> None:
        """Append the bytes of a tensor; those in files are copied without being mapped.

        A computed one that has ``parts`` is written as they come.
        """
        if not isinstance(tensor, ir.ExternalTensor):
            parts = getattr(tensor, "parts", None)
            start = self.position
            for piece in (payload(tensor),) if parts is None else map(little_endian, parts()):
                self.write(piece)
            if self.position - start != tensor.nbytes:
                raise InvariantError(
                    f"tensor '{tensor.name}' has not the size it was declared with"
                )
            return
        if not tensor.valid():
            raise InvariantError(f"tensor '{tensor.name}' is written after it was invalidated")
        source = self._open(tensor)
        start = tensor.offset or 0
        last = self._batch[-1] if self._batch else None
        if isinstance(last, _Range) and last.source is source and last.end == start:
            self._batch.pop()
            self._append(_Range(source, last.start, start + tensor.nbytes), tensor.nbytes)
        else:
            self._append(_Range(source, start, start + tensor.nbytes), tensor.nbytes)

    def _open(self, tensor: ir.ExternalTensor) -> BinaryIO:
        source = self._sources.get(tensor.path)
        if source is None:
            try:
                source = open(tensor.path, "rb", buffering=0)  # noqa: SIM115  # closed by __exit__
            except OSError as error:
                raise ModelError(f"{show(tensor.path)}: {error.strerror}") from error
            self._sources[tensor.path] = source
        if isinstance(tensor, FileTensor):
            tensor.check_unchanged(source.fileno())
        return source

    def _append(self, piece: _Piece, nbytes: int) -> None:
        self._batch.append(piece)
        self.position += nbytes
        self._batch_bytes += nbytes
        if self._batch_bytes >= _BATCH_BYTES:
            self._submit()

    def _submit(self) -> None:
        self._wait()
        self._writing = self._writer.submit(self._write_batch, self._batch)
        self._batch, self._batch_bytes = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write_batch(self, batch: list[_Piece]) -> None:
        for piece in batch:
            if isinstance(piece, _Range):
                self._copy(piece)
            else:
                self._write(piece)
        batch.clear()

    def _copy(self, piece: _Range) -> None:
        start = self._copy_in_kernel(piece)
        if start == piece.end:
            return
        piece.source.seek(start)
        buffer = memoryview(bytearray(min(_BUFFER_BYTES, piece.end - start)))
        while start < piece.end:
            wanted = buffer[: piece.end - start]
            count = piece.source.readinto(wanted)  # type: ignore[attr-defined]  # unbuffered
            if not count:
                name = show(piece.source.name)
                raise ModelError(f"{name}: the file became shorter while it was copied")
            self._write(buffer[:count])
            start += count

    def _copy_in_kernel(self, piece: _Range) -> int:
        """Copy as much of a range as the kernel will; gives the offset at which it stopped."""
        start = piece.start
        copy = getattr(os, "copy_file_range", None)  # Linux alone has it
        while copy is not None and start < piece.end:
            count = min(_BATCH_BYTES, piece.end - start)
            try:
                copied = copy(piece.source.fileno(), self._file.fileno(), count, start)
            except OSError:
                # Not between these two files; an error of the disk meets the plain copy too.
                break
            if not copied:
                break
            start += copied
            self._progress.advance(copied)
        return start

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view[:_BATCH_BYTES])
            view = view[written:]
            self._progress.advance(written)
