"""Comparison of constants of a rewritten model with the original's, some rows at a time.

Neither is whole in memory if every set of a fiber lies within a row; where sets span rows, both
are.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.graph.equality import paired_rows, stored_rows
from onnxfold.graph.operands import operands
from onnxfold.graph.traversal import reached
from onnxfold.proof.certificate import Certificate, ScaledWeight
from onnxfold.proof.relation import Cut, Float64, Relation, Turn, shortened
from onnxfold.proof.sizes import Drawn
from onnxfold.weights.edited import EditedTensor, float64_chunks, unrounded
from onnxfold.weights.means import (
    is_centred,
    parts_of_sets,
    rounding_of,
    sets_of_part,
    split_digits,
    within_rounding,
)
from onnxfold.weights.rotations import RotatedTensor, error_of_orthogonality, rotated

Array = npt.NDArray[np.generic]
_ORTHOGONAL = 2.0**-44  # of R R' - I, whose sums round as well


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a weight is unchanged, or a fiber along which it was shifted, and to mean 0."""

    same: bool
    fiber: Fiber | None = None
    centred: bool = False


def fits(fiber: Fiber, tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has the axes of a fiber, with sizes divisible by its digits."""
    shape: Sequence[int] = tensor.shape.numpy()
    return all(
        block.axis < len(shape) and shape[block.axis] % (block.inner * block.size) == 0
        for block in fiber.digits
    )


def compared(
    old: ir.TensorProtocol, new: ir.TensorProtocol, claimed: Sequence[Fiber]
) -> Comparison:
    """Compare a stored weight with an edited one before its rounding, up to a shift.

    claimed: the fibers along which it may be shifted; the first that fits is used.
    """
    if tuple(old.shape.numpy()) != tuple(new.shape.numpy()):
        return Comparison(same=False)
    by_rows = all(_within_rows(new, fiber) for fiber in claimed)
    pairs = paired_rows(_rows(old), stored_rows(new)) if by_rows else _whole(old, new)
    same, centred = True, dict.fromkeys(claimed, True)
    for before, after in pairs:
        same = same and np.array_equal(before.astype(after.dtype, copy=False), after)
        centred = {
            fiber: known and is_centred(after, fiber)
            for fiber, known in centred.items()
            if _is_shift(before, after, fiber)
        }
        if not same and not centred:
            break
    if same:
        return Comparison(same=True)
    fiber = next(iter(centred), None)
    return Comparison(False, fiber, fiber is not None and centred[fiber])


def has_zero_mean(
    tensor: ir.TensorProtocol,
    fiber: Fiber,
    magnitude: float = 0.0,
    dtype: ir.DataType | None = None,
) -> bool:
    """Whether ``is_centred`` is true of a weight, up to the roundings of ``dtype``, or its own."""
    kind = (tensor.dtype if dtype is None else dtype).numpy()
    parts = stored_rows(tensor) if _within_rows(tensor, fiber) else iter([tensor.numpy()])
    return all(is_centred(part.astype(kind, copy=False), fiber, magnitude) for part in parts)


def largest(tensor: ir.TensorProtocol) -> float:
    """Return the largest magnitude in a weight, 0 for one without elements."""
    return max((float(np.abs(rows).max(initial=0)) for rows in stored_rows(tensor)), default=0.0)


def is_rounded(tensor: ir.TensorProtocol) -> bool:
    """Whether a changed weight may have lost digits when it was stored; an edited one knows."""
    if not isinstance(tensor, EditedTensor):
        return True
    pairs = paired_rows(_rows(tensor), stored_rows(tensor))
    return not all(np.array_equal(before, after) for before, after in pairs)


def _within_rows(tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
    return len(tensor.shape) > 1 and all(digit.axis != 0 for digit in fiber.digits)


def _rows(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """Yield the rows of a weight before its rounding."""
    if isinstance(tensor, EditedTensor):
        return (rows for _, rows in float64_chunks(tensor))
    return stored_rows(tensor)


def _whole(old: ir.TensorProtocol, new: ir.TensorProtocol) -> Iterator[tuple[Array, Array]]:
    yield unrounded(old), new.numpy()


def _is_shift(old: Array, new: Array, fiber: Fiber) -> bool:
    """Whether old - new is constant along the fiber, up to one rounding of each new element.

    It must be 0 outside the part of the fiber.
    """
    if fiber.part is not None:
        (old, rest), (new, same) = (sets_of_part(array, fiber) for array in (old, new))
        if not within_rounding(same, rest.astype(np.float64), 0.0):
            return False
        fiber = Fiber.of([AxisBlock(1, 1, fiber.size, 1)])
    digits, members = split_digits(old.shape, fiber)
    wide, stored = old.reshape(digits), new.reshape(digits)
    parts = parts_of_sets(digits, members)
    return all(_part_is_shift(wide[part], stored[part], members) for part in parts)


def _part_is_shift(old: Array, stored: Array, members: tuple[int, ...]) -> bool:
    means = old.mean(axis=members, dtype=np.float64, keepdims=True)
    expected = np.subtract(old, means, dtype=np.float64)
    if np.array_equal(expected.astype(stored.dtype), stored):
        return True
    if within_rounding(stored, expected, np.abs(expected) + np.abs(means)):
        return True
    return _is_any_shift(old, stored, members)


def _is_any_shift(old: Array, stored: Array, members: tuple[int, ...]) -> bool:
    """Whether stored = old + c, with c known up to the mean of the roundings of its set."""
    with np.errstate(all="ignore"):  # a non-finite difference is not a shift
        difference = np.subtract(old, stored, dtype=np.float64)
        shift = difference.mean(axis=members, keepdims=True)
        rounding = rounding_of(stored)
        bound = rounding + rounding.mean(axis=members, keepdims=True)
        bound += 2.0**-40 * (np.abs(old).max(axis=members, keepdims=True) + np.abs(shift))
        return bool(np.all(np.abs(difference - shift) <= bound))


def is_product(old: ir.TensorProtocol, new: ir.TensorProtocol, factor: Float64) -> bool:
    """Whether new = old * factor, which broadcasts, elementwise within one rounding."""
    shape = tuple(old.shape.numpy())
    if shape != tuple(new.shape.numpy()) or old.dtype != new.dtype:
        return False
    start, most = 0, float(np.max(np.abs(factor), initial=0))
    chunks = (chunk for _, chunk in float64_chunks(old))
    for chunk, stored in paired_rows(chunks, stored_rows(new)):
        rows = slice(start, start + chunk.shape[0])
        start = rows.stop
        exact = chunk * (factor[rows] if factor.ndim and factor.shape[0] > 1 else factor)
        if np.array_equal(stored, exact.astype(stored.dtype)):
            continue
        if not within_rounding(stored, exact, most * np.abs(chunk)):
            return False
    return True


def is_rotated(old: ir.TensorProtocol, new: ir.TensorProtocol, turn: Turn) -> bool:
    """Whether new = old R along a fiber, within one rounding and the sums' roundings."""
    same = tuple(old.shape.numpy()) == tuple(new.shape.numpy()) and old.dtype == new.dtype
    if not same or not old.dtype.is_floating_point() or not fits(turn.fiber, old):
        return False
    wide = unrounded(old).astype(np.float64)
    exact = rotated(wide, turn.fiber, turn.matrix)
    sums = rotated(np.abs(wide), turn.fiber, np.abs(turn.matrix))
    return within_rounding(new.numpy(), exact, sums)


def resized(old: ir.TensorProtocol, new: ir.TensorProtocol) -> Relation | None:
    """Return the relation of constants that differ by one element along an axis."""
    for long, short in ((old, new), (new, old)):
        axis = _shortened_axis(long, short)
        if axis is not None:
            return Relation(short=axis, reverse=long is new)
    axis = _differing_axis(old, new)
    if axis is not None:
        return Relation(short=axis, cut=Cut.READ)
    axis = _padded_axis(old, new)
    return None if axis is None else Relation(short=axis, reverse=True, cut=Cut.PADDED)


def _shortened_axis(old: ir.TensorProtocol, new: ir.TensorProtocol) -> int | None:
    """Return the axis along which ``new`` lacks the last element of ``old``, of mean 0, or None.

    Of two numbers next to one of ``old`` it may have either, so that it keeps the sum.
    """
    long, short = tuple(old.shape.numpy()), tuple(new.shape.numpy())
    axis = next(iter(shortened(long, short)), None)
    fiber = None if axis is None else whole_axes(long, [axis])
    if axis is None or fiber is None or not has_zero_mean(old, fiber, largest(old)):
        return None
    stored, channels = new.numpy(), range(short[axis])
    if np.array_equal(old.numpy().take(channels, axis=axis), stored):
        return axis
    whole = unrounded(old).astype(np.float64)
    kept = whole.take(channels, axis=axis) - whole.mean(axis=axis, keepdims=True)
    near = np.abs(stored.astype(np.float64) - kept) <= 2 * rounding_of(stored)
    return axis if near.all() else None


def _differing_axis(old: ir.TensorProtocol, new: ir.TensorProtocol) -> int | None:
    """Return the axis of ``new`` along which it is ``old`` minus its last element, or None.

    That element is subtracted from all others and the result rounded once: a reader of a vector of
    sum 0 needs no more.
    """
    long, short = tuple(old.shape.numpy()), tuple(new.shape.numpy())
    axis = next(iter(shortened(long, short)), None)
    if axis is None or old.dtype != new.dtype or not old.dtype.is_floating_point():
        return None
    rest, last = np.split(unrounded(old).astype(np.float64), [short[axis]], axis=axis)
    known = within_rounding(new.numpy(), rest - last, np.abs(rest) + np.abs(last))
    return axis if known else None


def _padded_axis(short: ir.TensorProtocol, long: ir.TensorProtocol) -> int | None:
    """Return the axis along which ``long`` is ``short`` with a 0 appended, or None."""
    sizes, fewer = tuple(long.shape.numpy()), tuple(short.shape.numpy())
    axis = next(iter(shortened(sizes, fewer)), None)
    if axis is None or short.dtype != long.dtype:
        return None
    rest, last = np.split(long.numpy(), [fewer[axis]], axis=axis)
    return None if np.any(last) or not np.array_equal(rest, short.numpy()) else axis


def exact_numbers(tensor: ir.TensorProtocol) -> tuple[Drawn, float]:
    """Return a small constant before its rounding, and how far its roundings may move it.

    An edited one is known exactly if the stored numbers are within one rounding of it; a scale of
    one power of two and a shift of zeros, which a norm is left with, are not rounded from anything
    different.
    """
    stored = tensor.numpy()
    if stored.dtype.kind not in "fV" or not stored.size or bool(np.isin(stored, (0, 1)).all()):
        return stored, 0.0
    if bool(np.all(stored == stored.flat[0])) and abs(np.frexp(float(stored.flat[0]))[0]) == 0.5:
        return stored, 0.0
    if isinstance(tensor, EditedTensor | RotatedTensor):
        exact = unrounded(tensor).astype(np.float64)
        if within_rounding(stored, exact, np.abs(exact)):
            return exact, 0.0
    return stored, float(np.max(rounding_of(stored)))


class TurnedWeights:
    """Checks claims that every fiber set of a weight was multiplied by one orthogonal matrix.

    The matrix comes from a certificate: that it is orthogonal, and that the stored numbers are the
    products, is checked here.
    """

    def __init__(self, certificate: Certificate):
        self._claimed: dict[str, list[Turn]] = defaultdict(list)
        for claim in certificate.turned:
            self._claimed[claim.weight].append(Turn(claim.fiber, claim.matrix))
        self._orthogonal: dict[int, bool] = {}

    def relation(self, ref: str, old: ir.TensorProtocol, new: ir.TensorProtocol) -> Relation | None:
        """Return how a weight was rotated, or None if no claim of it is true."""
        for turn in self._claimed.get(ref, ()):
            if self._is_rotation(turn.matrix) and is_rotated(old, new, turn):
                return Relation(turn=turn)
        return None

    def _is_rotation(self, matrix: Float64) -> bool:
        if id(matrix) not in self._orthogonal:
            self._orthogonal[id(matrix)] = error_of_orthogonality(matrix) <= _ORTHOGONAL
        return self._orthogonal[id(matrix)]


class ScaledWeights:
    """Claims that weights were multiplied by factors, and the factors to be compared.

    ``original`` returns the counterpart of a value of the rewritten model, or None.
    """

    def __init__(
        self,
        before: ModelInfo,
        certificate: Certificate,
        original: Callable[[ir.Value], ir.Value | None],
    ):
        self._before, self._original = before, original
        self._claimed: dict[str, list[ScaledWeight]] = defaultdict(list)
        for claim in certificate.scaled:
            self._claimed[claim.weight].append(claim)

    def factors(self, ref: str, v: ir.Value, shape: tuple[int, ...]) -> Iterator[Float64]:
        """Yield the factors that a weight may have been multiplied by, for one reader or for all.

        The reader of v comes first, because zeros equal any of these products.
        """
        claims = self._claimed.get(ref, [])
        readers = list(dict.fromkeys(claim.reader for claim in claims))
        if len(readers) > 1:
            own = self._nearest(v, readers)
            readers.sort(key=lambda reader: reader != own)
        for chosen in [
            [claim for claim in claims if claim.reader == reader] for reader in readers
        ] + ([claims] if len(readers) > 1 else []):
            factor = np.ones((1,) * len(shape))
            for claim in chosen:
                factor = factor * claim.channels.spread(claim.vector, shape)
            yield factor

    def _nearest(self, v: ir.Value, readers: Collection[str]) -> str | None:
        """Return the reader in the original whose results correspond to those computed from v."""
        results = (output for node in v.consumers() for output in node.outputs)
        originals = (self._original(output) for output in results)
        before = reached((u for u in originals if u is not None), lambda u: operands(u.producer()))
        return next((ref for u in before if (ref := self._before.ref(u)) in readers), None)
