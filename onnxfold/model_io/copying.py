"""Write one file from tensors and ranges of other files, each at its offset.

A range of a file is copied inside the kernel where the system can (`copy_file_range`, which shares
the blocks on file systems that allow it), so that it is neither mapped nor read; adjacent ranges
are copied as one. All other tensors are computed one at a time. One thread copies while another
writes what was computed and the next tensor is being computed; the system is advised to read ahead
and to write back early.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError, show
from onnxfold.model_io.file_tensor import FileTensor
from onnxfold.model_io.tensor_places import little_endian, payload

# Large enough that calls and threads cost nothing, small enough that progress moves.
_BATCH_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
# How far ahead to read a file: enough to keep a disk busy, and little of the page cache.
_AHEAD_BYTES = 32 << 20
# A smaller model fits in the page cache, so writing it back need not be awaited.
_LARGE_BYTES = 1 << 30


@dataclass(slots=True)
class WrittenBytes:
    """Counts written bytes and reports them to a listener, one thread at a time."""

    total: int
    listener: Callable[[int, int], None] | None
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, nbytes: int) -> None:
        with self._lock:
            # The graph is written too, and is not counted in the total.
            self.done = min(self.done + nbytes, self.total)
            if self.listener is not None:
                self.listener(self.done, self.total)


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a source, and their place in the target."""

    source: BinaryIO
    start: int
    end: int
    target: int

    def is_before(self, source: BinaryIO, start: int, target: int) -> bool:
        """Whether a range of ``source`` from ``start``, copied to ``target``, follows directly."""
        same = source is self.source and start == self.end
        return same and target == self.target + self.end - self.start


class OutputFile:
    """A new file, written front to back, which closes when the context is left.

    At most one batch of computed bytes is being written while the next is collected, so at most two
    tensors that are not in files are in memory.

    Raises OSError if the file cannot be written, and ModelError if the file of a tensor is gone,
    changed or shorter than before.
    """

    def __init__(self, path: Path, progress: WrittenBytes) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # closed by __exit__
        # Each thread opens the file itself, and so has its own position.
        self._copies = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._sources: dict[str, BinaryIO] = {}
        self._progress = progress
        self._batch: list[bytes | memoryview] = []
        self._batch_start = self._batch_bytes = 0
        self._range: _Range | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onnxfold-write")
        self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onnxfold-copy")
        self._writing: Future[None] | None = None
        self._copying: deque[Future[None]] = deque()
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
                self._submit_range()
                self._wait()
                while self._copying:
                    self._copying.popleft().result()
        finally:
            for thread in (self._writer, self._copier):
                thread.shutdown(cancel_futures=True)
            for source in self._sources.values():
                source.close()
            self._file.close()
            self._copies.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        if self._batch and self._batch_start + self._batch_bytes != self.position:
            self._submit()  # a range lies between
        if not self._batch:
            self._batch_start = self.position
        self._batch.append(data)
        self._batch_bytes += len(data)
        self.position += len(data)
        if self._batch_bytes >= _BATCH_BYTES:
            self._submit()

    def align(self, alignment: int) -> None:
        """Append zeros up to a multiple of `alignment` bytes."""
        gap = -self.position % alignment
        if gap:
            self.write(bytes(gap))

    def write_tensor(self, tensor: ir.TensorProtocol) -> None:
        """Append the bytes of a tensor, copied without a map if they are in a file.

        A computed tensor with ``parts`` is written part by part.
        """
        if not isinstance(tensor, ir.ExternalTensor):
            self._write_computed(tensor)
            return
        if not tensor.valid():
            raise InvariantError(f"tensor '{tensor.name}' is written after it was invalidated")
        source, start = self._open(tensor), tensor.offset or 0
        last = self._range
        end, target = start + tensor.nbytes, self.position
        if last is not None and last.is_before(source, start, target):
            start, target = last.start, last.target
            self._range = None
        self._submit_range()
        self._range = _Range(source, start, end, target)
        self.position += tensor.nbytes
        if end - start >= _BATCH_BYTES:
            self._submit_range()

    def _write_computed(self, tensor: ir.TensorProtocol) -> None:
        self._submit_range()
        parts = getattr(tensor, "parts", None)
        start = self.position
        self._will_read(tensor, 0)
        for piece in (payload(tensor),) if parts is None else map(little_endian, parts()):
            self._will_read(tensor, self.position - start + len(piece))
            self.write(piece)
        if self.position - start != tensor.nbytes:
            raise InvariantError(f"tensor '{tensor.name}' differs in size from its declaration")

    def _will_read(self, tensor: ir.TensorProtocol, done: int) -> None:
        """Ask to read ahead what a tensor is computed from, after its first bytes."""
        base = getattr(tensor, "base", None)
        if isinstance(base, FileTensor):
            start = base.offset or 0
            end = min(start + done + _AHEAD_BYTES, start + base.nbytes)
            _advise(self._open(base), start + done, end, "POSIX_FADV_WILLNEED")

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

    def _submit(self) -> None:
        """Write what was collected once the previous batch is written."""
        self._wait()
        if self._batch:
            self._writing = self._writer.submit(self._write_batch, self._batch, self._batch_start)
        self._batch, self._batch_bytes = [], 0

    def _submit_range(self) -> None:
        while self._copying and self._copying[0].done():
            self._copying.popleft().result()
        if self._range is not None:
            self._copying.append(self._copier.submit(self._copy, self._range))
            self._range = None

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write_batch(self, batch: list[bytes | memoryview], position: int) -> None:
        for piece in batch:
            self._write(self._file, piece, position)
            position += len(piece)
        batch.clear()

    def _copy(self, piece: _Range) -> None:
        _advise(piece.source, piece.start, piece.end, "POSIX_FADV_SEQUENTIAL")
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
            self._write(self._copies, buffer[:count], piece.target + start - piece.start)
            start += count

    def _copy_in_kernel(self, piece: _Range) -> int:
        """Copy as much of a range as the kernel accepts; return the offset at which it stopped."""
        start = piece.start
        copy = getattr(os, "copy_file_range", None)  # Linux alone has it
        while copy is not None and start < piece.end:
            count = min(_BATCH_BYTES, piece.end - start)
            end = min(piece.end, start + count + _AHEAD_BYTES)
            _advise(piece.source, start + count, end, "POSIX_FADV_WILLNEED")
            target = piece.target + start - piece.start
            try:
                copied = copy(piece.source.fileno(), self._copies.fileno(), count, start, target)
            except OSError:
                # Not between these two files; the plain copy meets an error of the disk too.
                break
            if not copied:
                break
            self._put_on_disk(self._copies, target, copied)
            start += copied
            self._progress.advance(copied)
        return start

    def _write(self, file: BinaryIO, data: bytes | memoryview, position: int) -> None:
        view = memoryview(data)
        file.seek(position)
        while view:
            written = file.write(view[:_BATCH_BYTES])
            self._put_on_disk(file, position, written)
            view, position = view[written:], position + written
            self._progress.advance(written)

    def _put_on_disk(self, file: BinaryIO, start: int, nbytes: int) -> None:
        """Write bytes back at once if the page cache cannot keep all of the model.

        Linux starts to write dirty pages when it is advised that they are not needed; it drops only
        pages that are already on disk.
        """
        if self._progress.total >= _LARGE_BYTES:
            _advise(file, start, start + nbytes, "POSIX_FADV_DONTNEED")


def _advise(file: BinaryIO, start: int, end: int, advice: str) -> None:
    """Advise the system, if it supports this, about bytes of a file."""
    if end > start and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), start, end - start, getattr(os, advice))
