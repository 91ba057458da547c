"""Edits of a weight (centering, scaling, shifting), evaluated in float64 and rounded once.

Each is an entry of a list of edits, which are evaluated together, some rows at a time.

The rows of a chunk contain whole sets of every mean, or the means are computed beforehand. Which
thread computes a chunk changes no bit, and sums over chunks are added in the order of the chunks.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import lcm
from typing import Protocol, TypeVar

import numpy as np

from onnxfold.errors import WeightOverflowError
from onnxfold.graph import Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.model_io.mapped import release
from onnxfold.weights.means import chosen_elements, split_digits
from onnxfold.weights.native_rows import RowEdit, RowProgram

_CHUNK_ELEMENTS = 1 << 16  # float64 work space of 512 KiB, which stays in the cache of a core
_GROUP = 8  # chunks that a thread takes at a time if results are collected
_LAST_OF_FLOAT32 = np.uint64(1 << 29)
_BELOW_FLOAT32 = np.uint64((1 << 29) - 1)

Result = TypeVar("Result")


class Deferred(Protocol):
    """A vector that costs a pass over a weight, computed on first use."""

    @property
    def value(self) -> Float64:
        """The vector."""
        ...


@dataclass(frozen=True, slots=True)
class Centre:
    """W becomes W - mean(W) along ``fiber``."""

    fiber: Fiber


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """W becomes g * W, with one element of g for each channel."""

    channels: Channels
    vector: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """b becomes b + s, with one element of s for each channel."""

    channels: Channels
    vector: Float64 | Deferred

    @property
    def costly(self) -> bool:
        """Whether s must still be computed from a weight."""
        return not isinstance(self.vector, np.ndarray)

    def values(self) -> Float64:
        """Return s."""
        return self.vector if isinstance(self.vector, np.ndarray) else self.vector.value


Edit = Centre | Scale | Shift


class Evaluation:
    """A weight with edits; after ``prepare``, threads may compute chunks."""

    def __init__(self, W: Array, edits: tuple[Edit, ...]):
        shape: tuple[int, ...] = W.shape or (1,)
        self._view: Array = W.reshape(shape)
        self._shape = W.shape
        self._edits = edits
        self._spreads: dict[int, Float64] = {}
        self._means: dict[int, Float64] = {}
        self._program: RowProgram | None = None
        self._digits = {
            number: self._digits_of(edit)
            for number, edit in enumerate(edits)
            if isinstance(edit, Centre)
        }
        self._chosen = {  # of centerings of a part
            number: chosen
            for number, edit in enumerate(edits)
            if isinstance(edit, Centre)
            and (chosen := chosen_elements(self._view.shape, edit.fiber)) is not None
        }
        rows: int = self._view.shape[0]
        unit = lcm(1, *(self._rows_per_digit(number) for number in self._digits))
        self._row: int = max(1, self._view.size // max(1, rows))
        step = max(1, _CHUNK_ELEMENTS // (self._row * unit)) * unit
        self.starts = range(0, rows, step)  # the first rows of the chunks

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk as it is stored."""
        return self.starts.step * self._row * self._view.itemsize

    def prepare(self) -> None:
        """Compute what all chunks share."""
        row_edits: list[RowEdit | None] = []
        for number, edit in enumerate(self._edits):
            self._program = RowProgram.of(self._view, row_edits)
            if not isinstance(edit, Centre):
                vector = edit.vector if isinstance(edit, Scale) else edit.values()
                self._spreads[number] = edit.channels.spread(vector, self._view.shape)
            elif 0 in self._digits[number][1]:
                self._means[number] = self._means_before(number)
            row_edits.append(self._row_edit(number, edit))
        self._program = RowProgram.of(self._view, row_edits)

    def _row_edit(self, number: int, edit: Edit) -> RowEdit | None:
        """Return the edit as one of whole rows, or None."""
        if not isinstance(edit, Centre):
            kind = "scale" if isinstance(edit, Scale) else "shift"
            return RowEdit.spread(kind, self._spreads[number], self._view.shape)
        axes, last = edit.fiber.axes, self._view.ndim - 1
        if not edit.fiber.whole or edit.fiber.part is not None or last == 0:
            return None
        if axes == (last,):
            return RowEdit("centre")
        if axes == (0,):
            means = self._means[number].reshape(1, *self._view.shape[1:])
            return RowEdit.spread("shift", -means, self._view.shape)
        return None

    def chunks(self) -> Iterator[tuple[int, Float64]]:
        """Yield the rows with all edits, not rounded.

        They are valid until the next are requested.

        Raises WeightOverflowError if a mean is inf or NaN, as it is if W contains one.
        """
        work = self._work()
        for start in self.starts:
            yield start, self._chunk(start, work)
            self._release(start, start)

    def mapped(self, function: Callable[[int, Float64], Result], /) -> Iterator[Result]:
        """Yield ``function(first row, rows)`` for every chunk, in order.

        The rows are edited and not rounded; several threads call the function, which must not keep
        them.
        """
        return self._in_order(lambda start, work: function(start, self._chunk(start, work)))

    def weighted(self, factors: Float64) -> Iterator[Float64]:
        """Yield, for every chunk of a matrix in order, the sum of its rows, each times its factor.

        The rows are edited and not rounded; ``factors``: one for each row.
        """

        def total(start: int, work: Float64) -> Float64:
            given = self._view[start : start + self.starts.step]
            own, result = factors[start : start + given.shape[0]], np.empty(given.shape[1])
            if self._program is None or not self._program.weighted_sum(given, start, own, result):
                chunk = self._chunk(start, work)
                chunk *= own[:, np.newaxis]
                np.add.reduce(chunk, axis=0, out=result)
            return result

        return self._in_order(total)

    def _in_order(self, function: Callable[[int, Float64], Result]) -> Iterator[Result]:
        """Yield ``function(first row, work space)`` for every chunk, computed by all threads."""

        def work(starts: range) -> list[Result]:
            work = self._work()
            with np.errstate(all="ignore"):
                results = [function(start, work) for start in starts]
            self._release(starts[0], starts[-1])
            return results

        groups = deque(self.starts[i : i + _GROUP] for i in range(0, len(self.starts), _GROUP))
        workers = min(_threads(), len(groups))
        if workers < 2:
            for group in groups:
                yield from work(group)
            return
        running: deque[Future[list[Result]]] = deque()
        with ThreadPoolExecutor(workers, thread_name_prefix="onnxfold-edit") as pool:
            while groups or running:
                while groups and len(running) <= workers:
                    running.append(pool.submit(work, groups.popleft()))
                yield from running.popleft().result()

    def filled(self, starts: range) -> Array:
        """Return the rows of some chunks, rounded.

        Raises WeightOverflowError if a number exceeds the range of the type, or a mean is inf or
        NaN.
        """
        first, rows = starts[0], self._view.shape[0]
        stop = min(rows, starts[-1] + self.starts.step)
        result: Array = np.empty((stop - first, *self._view.shape[1:]), dtype=self._view.dtype)
        workers = min(_threads(), len(starts))

        def work(worker: int) -> None:
            work = self._work()
            with np.errstate(all="ignore", over="raise"):
                try:
                    for start in starts[worker::workers]:
                        self._store(start, result[start - first :], work)
                except FloatingPointError as error:
                    message = f"would leave the range of {self._view.dtype}"
                    raise WeightOverflowError(message) from error

        if workers > 1:
            with ThreadPoolExecutor(workers, thread_name_prefix="onnxfold-edit") as pool:
                list(pool.map(work, range(workers)))
        else:
            work(0)
        self._release(first, starts[-1])
        return result

    def _release(self, first: int, last: int) -> None:
        """Release the chunks from one to another from resident memory, if they are mapped."""
        release(self._view[first : last + self.starts.step])

    def _work(self) -> Float64:
        """Return space for a chunk; every thread needs its own."""
        return np.empty((min(self._view.shape[0], self.starts.step), *self._view.shape[1:]))

    def _store(self, start: int, result: Array, work: Float64) -> None:
        """Round the rows of the chunk from ``start`` into the first rows of ``result``."""
        given = self._view[start : start + self.starts.step]
        if self._by_rows(given, start, result[: given.shape[0]]):
            return
        chunk = self._chunk(start, work)
        if result.dtype.name == "bfloat16":
            _round_to_odd(chunk)
        result[: chunk.shape[0]] = chunk

    def _by_rows(self, given: Array, start: int, result: Array) -> bool:
        """Compute the edits so far of a chunk by the library; return False if it cannot."""
        first = start * (self._row // max(1, self._view.shape[-1]))
        return self._program is not None and self._program.run(given, first, result)

    def _chunk(self, start: int, work: Float64, count: int | None = None) -> Float64:
        """Return the rows of the chunk from ``start`` with all edits, or the first ``count``.

        ``count`` is the number of edits that ``prepare`` has reached.
        """
        given = self._view[start : start + self.starts.step]
        chunk = work[: given.shape[0]]
        if self._by_rows(given, start, chunk):
            return chunk
        chunk[...] = given
        rows = slice(start, start + given.shape[0])
        for number, edit in enumerate(self._edits[:count]):
            if number in self._chosen:
                self._centre_part(number, chunk, rows)
            elif isinstance(edit, Centre):
                self._centre(number, chunk)
            elif isinstance(edit, Scale):
                chunk *= _of_rows(self._spreads[number], rows)
            else:
                chunk += _of_rows(self._spreads[number], rows)
        return chunk

    def _centre_part(self, number: int, chunk: Float64, rows: slice) -> None:
        chosen, given = self._chosen[number], chunk.copy()
        self._centre(number, chunk)
        others = ~chosen[rows] if chosen.shape[0] > 1 else ~chosen
        np.copyto(chunk, given, where=others)

    def _centre(self, number: int, chunk: Float64) -> None:
        digits, members = self._digits[number]
        if not self._shape or not members:  # sets of one element, each equal to its mean
            if not np.isfinite(chunk).all():
                raise WeightOverflowError("contains inf or NaN")
            chunk[...] = 0.0
            return
        shown = chunk.reshape((chunk.shape[0] // self._rows_per_digit(number), *digits[1:]))
        # Whole sets lie within a chunk unless the first digit is part of the fiber.
        if 0 in members:
            means = self._means[number]
        else:
            means = np.add.reduce(shown, axis=members, keepdims=True)
            means /= _size(digits, members)
        if not np.isfinite(means).all():
            raise WeightOverflowError("contains inf or NaN")
        np.subtract(shown, means, out=shown)

    def _rows_per_digit(self, number: int) -> int:
        """Return how many rows of axis 0 make up one step of the first digit."""
        rows: int = self._view.shape[0]
        return max(1, rows // max(1, self._digits[number][0][0]))

    def _digits_of(self, edit: Centre) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the digits, and the fiber's, without leading ones of size 1 in axis 0."""
        digits, members = split_digits(self._view.shape, edit.fiber)
        of_rows = 1 + 2 * sum(block.axis == 0 for block in edit.fiber.blocks)
        first = next((i for i in range(of_rows) if digits[i] != 1), of_rows - 1)
        return digits[first:], tuple(member - first for member in members if member >= first)

    def _means_before(self, number: int) -> Float64:
        """Return the means over sets that span chunks, of the tensor after the preceding edits."""
        digits, members = self._digits[number]
        unit, work = self._rows_per_digit(number), self._work()
        total: Float64 = np.zeros(1)
        for start in self.starts:
            chunk = self._chunk(start, work, number)
            shown = chunk.reshape((chunk.shape[0] // unit, *digits[1:]))
            part = shown.sum(axis=members, keepdims=True)
            self._release(start, start)
            total = total + part if start else part
        return np.asarray(total / _size(digits, members))


def _size(digits: tuple[int, ...], members: tuple[int, ...]) -> int:
    return int(np.prod([digits[member] for member in members]))


def _of_rows(spread: Float64, rows: slice) -> Float64:
    """Return the rows of an array, or all of an array that broadcasts along axis 0."""
    return spread[rows] if spread.shape[0] > 1 else spread


def _threads() -> int:
    count: int = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return count or os.cpu_count() or 1


def _round_to_odd(chunk: Float64) -> None:
    """Truncate doubles to float32, with the last bit set if anything was cut off.

    ml_dtypes converts to bfloat16 through float32; after this, its two roundings equal one. (Boldo
    and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
    to odd", theorem 3.)
    """
    bits = chunk.view(np.uint64)
    cut = (bits & _BELOW_FLOAT32) != 0
    bits &= ~_BELOW_FLOAT32
    bits |= cut * _LAST_OF_FLOAT32
