"""Tensors with edits: evaluated in float64 in order, rounded once, one tensor at a time.

A weight may be scaled by the norm before it and centred for the norm after it.  Every edit is
added to the list of the same lazy tensor, so that the stored result is rounded once whatever the
number and order of the edits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxfold.errors import WeightOverflowError
from onnxfold.graph.array_types import Array, Float64
from onnxfold.graph.channels import Channels
from onnxfold.weights.affine_parts import first_halves, weighted_sum
from onnxfold.weights.dequantised import QuantisedWeight
from onnxfold.weights.edits import Centre, Edit, Shift
from onnxfold.weights.evaluation import Evaluation

_PART_BYTES = 16 << 20
# The bits of a half float without its sign, which order as the magnitudes do, and those of 2^-12.
_MAGNITUDE = np.uint16(0x7FFF)
_FEW_BITS = int(np.float16(2**-12).view(np.uint16))

Result = TypeVar("Result")


class Product:
    """factor * W s, computed when first asked for; W as it was when the product was made."""

    def __init__(
        self,
        weight: ir.TensorProtocol | QuantisedWeight,
        vector: Float64,
        inner: Channels,
        outer: Channels,
        factor: float = 1.0,
        part: slice = slice(None),
        halves: int = 0,
    ):
        self._weight = weight
        self._vector = vector
        self._inner = inner
        self._outer = outer
        self._factor = factor
        self._part = part
        self._halves = halves

    @cached_property
    def value(self) -> Float64:
        """The vector, one element for each channel of ``outer``, or the ``part`` of it.

        In the first ``halves`` of rows, where there are any, beside zeros.
        """
        shape = tuple(self._weight.shape.numpy())
        W = self._weight if isinstance(self._weight, QuantisedWeight) else evaluated(self._weight)
        total = weighted_sum(W, shape, self._vector, self._inner, self._outer)
        return first_halves(self._factor * total[self._part], self._halves)


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
            metadata_props=dict(base.metadata_props),
            cache=False,
        )

    def __repr__(self) -> str:
        # That of the base class shows the bound method, and so this tensor, without end.
        return f"EditedTensor({self.base!r}, {len(self.edits)} edits, name={self.name!r})"

    @property
    def costly(self) -> bool:
        """Whether it takes a pass over another weight to compute this one."""
        return any(isinstance(edit, Shift) and edit.costly for edit in self.edits)

    def parts(self) -> Iterator[Array]:
        """Yield its rows in order, some MiB at a time, so that it need not be whole in memory.

        Few come first: whether it is another tensor shows in them, mostly.
        """
        W = self.base.numpy()
        if W.size == 0 or W.ndim == 0:
            yield np.asarray(self.numpy())
            return
        with self._faults_named():
            evaluation = Evaluation(W, self.edits)
            evaluation.prepare()
        starts = evaluation.starts
        count = max(1, _PART_BYTES // evaluation.chunk_bytes)
        bits = _Bits(W, self.edits)
        groups = (starts[n : n + count] for n in range(1, len(starts), count))
        for group in (starts[:1], *groups):
            with self._faults_named():
                part = evaluation.filled(group)
            bits.see(part)
            yield part
        with self._faults_named():
            bits.check()

    def _compute(self) -> ir.TensorProtocol:
        with self._faults_named():
            array = _evaluated(self.base.numpy(), self.edits)
        return ir.Tensor(array, dtype=self.dtype, name=self.name)

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except WeightOverflowError as error:
            raise WeightOverflowError(f"weight '{self.name}' {error}") from error


def edited(tensor: ir.TensorProtocol, edit: Edit, name: str) -> EditedTensor:
    """Return the tensor with one more edit."""
    if isinstance(tensor, EditedTensor):
        return EditedTensor(tensor.base, (*tensor.edits, edit), name)
    return EditedTensor(tensor, (edit,), name)


def float64_chunks(tensor: ir.TensorProtocol) -> Iterator[tuple[int, Float64]]:
    """Yield (first row, rows) of the tensor in float64, edited but not rounded.

    The rows are valid until the next are asked for.
    """
    yield from evaluated(tensor).chunks()


def evaluated(tensor: ir.TensorProtocol) -> Evaluation:
    """Return the tensor in float64, edited but not rounded, some rows at a time."""
    if isinstance(tensor, EditedTensor):
        evaluation = Evaluation(tensor.base.numpy(), tensor.edits)
    else:
        evaluation = Evaluation(tensor.numpy(), ())
    evaluation.prepare()
    return evaluation


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

    Raises WeightOverflowError where a number leaves the range of the type, where a mean is inf or
    NaN, as it is wherever W holds one, or where a half float has too few bits for any of it.
    """
    if W.size == 0:
        return W
    evaluation = Evaluation(W, edits)
    evaluation.prepare()
    result = evaluation.filled(evaluation.starts).reshape(W.shape)
    bits = _Bits(W, edits)
    bits.see(result)
    bits.check()
    return result


class _Bits:
    """Whether the half floats of a centred weight are so small that they have too few bits."""

    def __init__(self, W: Array, edits: tuple[Edit, ...]):
        centred = any(isinstance(edit, Centre) for edit in edits)
        self._in_doubt = W.ndim > 1 and W.dtype == np.float16 and centred
        self._largest = 0

    def see(self, part: Array) -> None:
        """Look at some of the numbers, unless larger ones were seen."""
        if self._in_doubt:
            largest = int((part.view(np.uint16) & _MAGNITUDE).max())
            self._largest = max(self._largest, largest)
            self._in_doubt = self._largest < _FEW_BITS

    def check(self) -> None:
        """Refuse a weight of which the largest is below four times the smallest normal number.

        Its rms is then subnormal, and the rounding of the stored numbers, which is that of the
        smallest normal one, is no longer small beside it.  All zeros are exact.
        """
        if self._in_doubt and self._largest:
            raise WeightOverflowError(
                "is so small that float16 has too few bits for its centred values"
            )
