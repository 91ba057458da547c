"""Tensors with edits: evaluated in float64 in order, rounded once, one tensor at a time.

A weight may be scaled for the norm upstream and centered for the norm downstream. Every edit is
appended to the list of one lazy tensor, so the stored result is rounded once for any number and
order of edits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnxfold.errors import WeightOverflowError
from onnxfold.graph import Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.model_io.mapped import RowReader
from onnxfold.weights.affine_parts import first_halves, weighted_sum
from onnxfold.weights.dequantised import QuantisedWeight
from onnxfold.weights.evaluation import Centre, Edit, Evaluation, Shift
from onnxfold.weights.means import is_centred

_PART_BYTES = 16 << 20
# The bits of a half float without its sign, which are ordered by magnitude, and those of 2^-12.
_MAGNITUDE = np.uint16(0x7FFF)
_FEW_BITS = int(np.float16(2**-12).view(np.uint16))

_SAMPLED_ROWS = 64


class Product:
    """factor * W s, computed on first use; W is as it was when the product was created."""

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
        """The vector, one element for each channel of ``outer``, or its ``part``.

        If there are ``halves``, it lies in the first halves of so many rows, next to zeros.
        """
        shape = tuple(self._weight.shape.numpy())
        W = self._weight if isinstance(self._weight, QuantisedWeight) else evaluated(self._weight)
        total = weighted_sum(W, shape, self._vector, self._inner, self._outer)
        return first_halves(self._factor * total[self._part], self._halves)


class LikeTensor(ir.LazyTensor):
    """A tensor of the type and shape of another, computed whenever it is read."""

    def __init__(self, base: ir.TensorProtocol, name: str):
        self.base = base
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
        # The base class would show the bound method, and so this tensor, endlessly.
        return f"{type(self).__name__}({self.base!r}, name={self.name!r})"

    def exact(self) -> Float64:
        """Return the numbers in float64, before their rounding."""
        raise NotImplementedError

    def _compute(self) -> ir.TensorProtocol:
        raise NotImplementedError


class EditedTensor(LikeTensor):
    """A tensor and the edits made to it, in order; computed whenever it is read or saved."""

    def __init__(self, base: ir.TensorProtocol, edits: tuple[Edit, ...], name: str):
        super().__init__(base, name)
        self.edits = edits

    @property
    def costly(self) -> bool:
        """Whether computing this tensor requires a pass over another weight."""
        return any(isinstance(edit, Shift) and edit.costly for edit in self.edits)

    def parts(self) -> Iterator[Array]:
        """Yield its rows in order, some MiB at a time, so that it need not be whole in memory.

        The first part is small: it usually shows whether the tensor differs from another.
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

    def exact(self) -> Float64:
        """Return the edited numbers."""
        shape = tuple(self.shape.numpy())
        result = np.empty(shape or (1,))
        for start, chunk in float64_chunks(self):
            result[start : start + chunk.shape[0]] = chunk
        return result.reshape(shape)

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
        base = tensor.base
        numbers = base.exact() if isinstance(base, LikeTensor) else base.numpy()
        evaluation = Evaluation(numbers, tensor.edits)
    else:
        evaluation = Evaluation(tensor.numpy(), ())
    evaluation.prepare()
    return evaluation


def unrounded(tensor: ir.TensorProtocol) -> Array:
    """Return an edited tensor in float64 before its rounding; any other tensor as it is stored."""
    return tensor.exact() if isinstance(tensor, LikeTensor) else tensor.numpy()


def _evaluated(W: Array, edits: tuple[Edit, ...]) -> Array:
    """Return the edited array.

    Raises WeightOverflowError if a number exceeds the range of the type, if a mean is inf or NaN,
    as it is if W contains one, or if a half float has too few bits for any of it.
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
    """Check of whether the half floats of a centered weight are too small for their precision."""

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
        """Refuse a weight whose largest number is below four times the smallest normal number.

        Its rms is then subnormal, and the rounding of the stored numbers, equal to the rounding of
        the smallest normal number, is no longer small in comparison. A weight of zeros is exact.
        """
        if self._in_doubt and self._largest:
            raise WeightOverflowError(
                "is so small that float16 has too few bits for its centered values"
            )


def centred(W: Array, fiber: Fiber) -> Array:
    """Return P W in the type and shape of ``W``; it needs a few MiB of work space."""
    return centred_tensor(ir.Tensor(W), fiber, "").numpy()


def centred_tensor(tensor: ir.TensorProtocol, fiber: Fiber, name: str) -> EditedTensor:
    """Return P of a tensor, computed whenever it is read or saved, one at a time."""
    return edited(tensor, Centre(fiber), name)


def is_centred_weight(tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
    """Whether P W = W up to the rounding of stored values.

    A large file is read only if some rows pass.

    Raises InvariantError if the fiber does not fit the shape.
    """
    rows = tensor.shape.numpy()[0] if len(tensor.shape) else 0
    within_rows = all(digit.axis != 0 for digit in fiber.digits)
    if isinstance(tensor, RowReader) and rows >= 2 * _SAMPLED_ROWS and within_rows:
        sample = tensor.read_rows(range(0, rows, rows // _SAMPLED_ROWS))
        if not is_centred(sample, fiber):
            return False
    return is_centred(tensor.numpy(), fiber)
