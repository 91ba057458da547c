"""Tensors with edits: evaluated in float64 in order, rounded once, one tensor at a time.

A weight may be scaled by the norm before it and centred for the norm after it.  Every edit is
added to the list of the same lazy tensor, so that the stored result is rounded once whatever the
number and order of the edits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.affine.channels import Channels
from onnxfold.errors import UnfitWeightError
from onnxfold.graph import Fiber
from onnxfold.rewrite.affine import weighted_sum
from onnxfold.zero_mean.arrays import fiber_means, split_digits

__all__ = [
    "Centre",
    "Edit",
    "EditedTensor",
    "Product",
    "Scale",
    "Shift",
    "edited",
    "float64_chunks",
    "unrounded",
]

_CHUNK_ELEMENTS = 1 << 16  # float64 work space of 512 KiB, which stays in the cache of a core
_PART_BYTES = 16 << 20
# The bits of a half float without its sign, which order as the magnitudes do, and those of 2^-12.
_MAGNITUDE = np.uint16(0x7FFF)
_FEW_BITS = int(np.float16(2**-12).view(np.uint16))

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Floats = TypeVar("Floats", Float32, Float64)


@dataclass(frozen=True, slots=True)
class Centre:
    """W becomes W - mean(W) along ``fiber``."""

    fiber: Fiber


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """W becomes g * W, one element of g for each of its channels."""

    channels: Channels
    vector: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """b becomes b + s, one element of s for each of its channels."""

    channels: Channels
    vector: Float64 | Product

    def values(self) -> Float64:
        """Return s."""
        return self.vector.value if isinstance(self.vector, Product) else self.vector


class Product:
    """factor * W s, computed when first asked for; W as it was when the product was made."""

    def __init__(
        self,
        weight: ir.TensorProtocol,
        vector: Float64,
        inner: Channels,
        outer: Channels,
        factor: float = 1.0,
        part: slice = slice(None),
    ):
        self._weight = weight
        self._vector = vector
        self._inner = inner
        self._outer = outer
        self._factor = factor
        self._part = part

    @cached_property
    def value(self) -> Float64:
        """The vector, one element for each channel of ``outer``, or the ``part`` of it."""
        shape = tuple(self._weight.shape.numpy())
        chunks = float64_chunks(self._weight)
        total = weighted_sum(chunks, shape, self._vector, self._inner, self._outer)
        return self._factor * total[self._part]


Edit = Centre | Scale | Shift


class EditedTensor(ir.LazyTensor):
    """A tensor and the edits made to it, in order; computed whenever it is read or saved."""

    def __init__(self, base: ir.TensorProtocol, edits: tuple[Edit, ...], name: str):
        self.base = base
        self.edits = edits
        super().__init__(
            self._compute,
            dtype=base.dtype,
            shape=ir.Shape(base.shape.numpy()),
            name=name,
            doc_string=base.doc_string,
            cache=False,
        )

    def __repr__(self) -> str:
        # That of the base class shows the bound method, and so this tensor, without end.
        return f"EditedTensor({self.base!r}, {len(self.edits)} edits, name={self.name!r})"

    @property
    def costly(self) -> bool:
        """Whether it takes a pass over another weight to compute this one."""
        return any(isinstance(e, Shift) and isinstance(e.vector, Product) for e in self.edits)

    def parts(self) -> Iterator[Array]:
        """Yield its rows in order, some MiB at a time, so that it need not be whole in memory."""
        W = self.base.numpy()
        if W.size * W.itemsize <= _PART_BYTES or W.ndim == 0:
            yield np.asarray(self.numpy())
            return
        evaluation = _Evaluation(W, self.edits)
        evaluation.prepare()
        starts = evaluation.starts()
        row_bytes = W.size * W.itemsize // W.shape[0]
        count = max(1, _PART_BYTES // (starts.step * row_bytes))
        for number in range(0, len(starts), count):
            with self._faults_named():
                part = evaluation.filled(starts[number : number + count])
            yield part

    def _compute(self) -> ir.TensorProtocol:
        with self._faults_named():
            array = _evaluated(self.base.numpy(), self.edits)
        return ir.Tensor(array, dtype=self.dtype, name=self.name)

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except UnfitWeightError as error:
            raise UnfitWeightError(f"weight '{self.name}' {error}") from error


def edited(tensor: ir.TensorProtocol, edit: Edit, name: str) -> EditedTensor:
    """Return the tensor with one more edit."""
    if isinstance(tensor, EditedTensor):
        return EditedTensor(tensor.base, (*tensor.edits, edit), name)
    return EditedTensor(tensor, (edit,), name)


def float64_chunks(tensor: ir.TensorProtocol) -> Iterator[tuple[int, Float64]]:
    """Yield (first row, rows) of the tensor in float64, edited but not rounded."""
    if isinstance(tensor, EditedTensor):
        yield from _Evaluation(tensor.base.numpy(), tensor.edits).chunks()
    else:
        yield from _Evaluation(tensor.numpy(), ()).chunks()


def unrounded(tensor: ir.TensorProtocol) -> Array:
    """Return an edited tensor in float64 before its rounding; any other tensor as it is stored."""
    if not isinstance(tensor, EditedTensor):
        return tensor.numpy()
    result = np.empty(tuple(tensor.shape.numpy()) or (1,))
    for start, chunk in float64_chunks(tensor):
        result[start : start + chunk.shape[0]] = chunk
    return result.reshape(tuple(tensor.shape.numpy()))


def _evaluated(W: Array, edits: tuple[Edit, ...]) -> Array:
    """Return the edited array.

    Raises UnfitWeightError where a number leaves the range of the type, where a mean is inf or NaN,
    as it is wherever W holds one, or where a half float has too few bits for any of it.
    """
    if W.size == 0:
        return W
    evaluation = _Evaluation(W, edits)
    evaluation.prepare()
    result = evaluation.filled(evaluation.starts()).reshape(W.shape)
    if W.ndim > 1 and W.dtype == np.float16 and any(isinstance(edit, Centre) for edit in edits):
        _check_bits(result)
    return result


def _check_bits(W: Array) -> None:
    """Refuse half floats of which the largest is below four times the smallest normal one.

    Their rms is then subnormal, and the rounding of the stored numbers, which is that of the
    smallest normal one, is no longer small beside it.  All zeros are exact.
    """
    largest = int((W.view(np.uint16) & _MAGNITUDE).max())
    if 0 < largest < _FEW_BITS:
        raise UnfitWeightError("is so small that float16 has too few bits for its centred values")


def _threads() -> int:
    count: int = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return count or os.cpu_count() or 1


class _Evaluation:
    """Applies edits to chunks of axis 0 that hold whole sets, or by means taken beforehand."""

    def __init__(self, W: Array, edits: tuple[Edit, ...]):
        shape: tuple[int, ...] = W.shape or (1,)
        self._view: Array = W.reshape(shape)
        self._shape = W.shape
        self._edits = edits
        self._spreads: dict[int, Float64] = {}
        self._means: dict[int, Float64] = {}
        self._narrow_scale: Float32 | None = None
        self._unit = 1
        for edit in edits:
            if isinstance(edit, Centre):
                self._unit = lcm(self._unit, self._rows_per_digit(edit))

    def chunks(self) -> Iterator[tuple[int, Float64]]:
        """Yield the rows with all edits."""
        for start in self.starts():
            yield start, self.chunk(start)

    def starts(self) -> range:
        """The first rows of the chunks."""
        rows, unit = self._view.shape[0], self._unit
        row = max(1, self._view.size // max(1, rows))
        return range(0, rows, max(1, _CHUNK_ELEMENTS // (row * unit)) * unit)

    def chunk(self, start: int, count: int | None = None) -> Float64:
        """Return the rows of the chunk from ``start`` with the first ``count`` edits, or all."""
        chunk = self._view[start : start + self.starts().step].astype(np.float64)
        for number, edit in enumerate(self._edits[:count]):
            chunk = self._apply(number, edit, start, chunk)
        return chunk

    def filled(self, starts: range) -> Array:
        """Return the rows of some chunks, rounded; which thread computes one changes no bit."""
        first, rows = starts[0], self._view.shape[0]
        stop = min(rows, starts[-1] + self.starts().step)
        result: Array = np.empty((stop - first, *self._view.shape[1:]), dtype=self._view.dtype)
        workers = min(_threads(), len(starts))

        def work(worker: int) -> None:
            with np.errstate(all="ignore", over="raise"):
                try:
                    for start in starts[worker::workers]:
                        self._store(start, result[start - first :])
                except FloatingPointError as error:
                    message = f"would leave the range of {self._view.dtype}"
                    raise UnfitWeightError(message) from error

        if workers > 1:
            with ThreadPoolExecutor(workers, thread_name_prefix="onnxfold-edit") as pool:
                list(pool.map(work, range(workers)))
        else:
            work(0)
        return result

    def _store(self, start: int, result: Array) -> None:
        """Round the rows of the chunk from ``start`` into the first rows of ``result``."""
        step = self.starts().step
        if self._narrow_scale is None:
            chunk = self.chunk(start)
            result[: chunk.shape[0]] = chunk
        else:
            rows = slice(start, min(self._view.shape[0], start + step))
            factor = _of_rows(self._narrow_scale, rows)
            np.multiply(self._view[rows], factor, out=result[: rows.stop - rows.start])

    def prepare(self) -> None:
        """Compute what all chunks share; from then on threads may ask for chunks."""
        for number, edit in enumerate(self._edits):
            if not isinstance(edit, Centre):
                self._spread(number, edit)
            elif 0 in self._digits(edit)[1]:
                self._means_before(number, edit)
        # The product of two float32 numbers is exact in float64: rounded once, it is their
        # float32 product, at a third of the time.
        if len(self._edits) == 1 and isinstance(self._edits[0], Scale):
            spread = self._spreads[0]
            narrow = spread.astype(np.float32)
            if self._view.dtype == np.float32 and np.array_equal(narrow, spread):
                self._narrow_scale = narrow

    def _rows_per_digit(self, edit: Centre) -> int:
        """How many rows of axis 0 stand for one step of the first digit."""
        digits, _ = self._digits(edit)
        rows: int = self._view.shape[0]
        return max(1, rows // max(1, digits[0]))

    def _digits(self, edit: Centre) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the digits and those of the fiber, from the first of axis 0 that counts on."""
        digits, members = split_digits(self._view.shape, edit.fiber)
        of_rows = 1 + 2 * sum(block.axis == 0 for block in edit.fiber.blocks)
        first = next((i for i in range(of_rows) if digits[i] != 1), of_rows - 1)
        return digits[first:], tuple(member - first for member in members if member >= first)

    def _apply(self, number: int, edit: Edit, start: int, chunk: Float64) -> Float64:
        if isinstance(edit, Centre):
            return self._centre(number, edit, chunk)
        spread = self._spread(number, edit)
        rows = _of_rows(spread, slice(start, start + chunk.shape[0]))
        if isinstance(edit, Scale):
            chunk *= rows
        else:
            chunk += rows
        return chunk

    def _spread(self, number: int, edit: Scale | Shift) -> Float64:
        if number not in self._spreads:
            vector = edit.vector if isinstance(edit, Scale) else edit.values()
            self._spreads[number] = edit.channels.spread(vector, self._view.shape)
        return self._spreads[number]

    def _centre(self, number: int, edit: Centre, chunk: Float64) -> Float64:
        digits, members = self._digits(edit)
        if not self._shape or not members:
            return np.zeros_like(chunk)  # sets of one element
        shown = chunk.reshape((chunk.shape[0] // self._rows_per_digit(edit), *digits[1:]))
        # Whole sets lie within a chunk unless the first digit is part of the fiber.
        if 0 in members:
            means = self._means_before(number, edit)
        else:
            means = shown.mean(axis=members, keepdims=True)
        if not np.isfinite(means).all():
            raise UnfitWeightError("holds inf or NaN")
        shown -= means
        return shown.reshape(chunk.shape)

    def _means_before(self, number: int, edit: Centre) -> Float64:
        """Return the means over sets that span chunks, of the tensor with the edits before."""
        if number not in self._means:
            if number == 0:
                digits, _ = self._digits(edit)
                means = fiber_means(self._view, edit.fiber)
                self._means[number] = means.reshape(means.shape[means.ndim - len(digits) :])
            else:
                self._means[number] = self._streamed_means(number, edit)
        return self._means[number]

    def _streamed_means(self, number: int, edit: Centre) -> Float64:
        digits, members = self._digits(edit)
        unit = self._rows_per_digit(edit)
        total: Float64 | None = None
        for start in self.starts():
            chunk = self.chunk(start, number)
            shown = chunk.reshape((chunk.shape[0] // unit, *digits[1:]))
            part = shown.sum(axis=members, keepdims=True)
            total = part if total is None else total + part
        size = np.prod([digits[member] for member in members])
        return np.asarray((np.zeros(1) if total is None else total) / size)


def _of_rows(spread: Floats, rows: slice) -> Floats:
    """Return the part of an array that broadcasts along axis 0 or has its every row."""
    return spread[rows] if spread.shape[0] > 1 else spread
