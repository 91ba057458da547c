"""Constants of a rewritten model compared with the original's, in the bits that matter.

Neither is whole in memory if every set of a fiber lies within a row; where sets span rows, both
are.

Where the numbers of a constant reach a computation with more bits unchanged, the roundings of an
edit are larger than all others of the model, as for a half float cast to float32. No table of operators is consulted: a node is run on numbers with no more bits than the
constant, and may return numbers with more. Numbers that are rounded back to the type of the
constant, by operators that read nothing else but constants, were not computed with more bits: to
the rest of the model they are the result of one operator in that type, as a norm with Casts is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.graph.constants import digits
from onnxfold.graph.equality import paired_rows, stored_rows
from onnxfold.proof.certificate import Certificate
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.draws import ERRORS
from onnxfold.proof.leaf import MAY_BE_FLOATS
from onnxfold.proof.region import Region
from onnxfold.proof.relation import Cut, Float64, Relation, Turn, shortened
from onnxfold.proof.sizes import SAMPLINGS, Drawn
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


class Widening:
    """Facts about the rewritten model; ``region_of`` returns the region of one node."""

    def __init__(self, after: ModelInfo, region_of: Callable[[ir.Value], Region]):
        self._after, self._region_of = after, region_of
        self._known: dict[ir.Value, ir.Value | None] = {}
        self._rounds: dict[object, bool] = {}
        outputs = (value for node in after.nodes() for value in node.outputs)
        self._most = max((digits(value.dtype) for value in outputs), default=0)

    def reader_of(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
        """Return a value computed in a wider type from the numbers of a constant, or None.

        If a node cannot be tested, its results are assumed to contain them.
        """
        if not 0 < digits(dtype) < self._most:
            return None
        if value not in self._known:
            self._known[value] = self._found(value, dtype)
        return self._known[value]

    def _found(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
        waiting, seen = [value], {value}
        while waiting:
            for node in (use.node for use in waiting.pop().uses()):
                first = node.outputs[0]
                if digits(first.dtype) > digits(dtype):
                    if not self._comes_back(node, dtype):
                        return first
                    continue
                if first in seen or self._rounds_to(first, dtype):
                    continue
                outputs = [output for output in node.outputs if output.dtype in MAY_BE_FLOATS]
                waiting += outputs
                seen.update(outputs)
        return None

    def _comes_back(self, start: ir.Node, dtype: ir.DataType) -> bool:
        """Whether what is computed of a node's results alone is rounded to ``dtype``, all of it."""
        queue, wide = self._after.queue(), set[ir.Value]()
        queue.add(start)
        for node in queue:
            others = [value for value in node.inputs if value is not None and value not in wide]
            alone = node is start or all(map(self._after.is_constant, others))
            if not alone or node.graph is not start.graph:
                return False
            for output in node.outputs:
                if digits(output.dtype) <= digits(dtype):
                    continue
                if self._after.is_output(output):
                    return False
                wide.add(output)
                for reader in self._after.readers(output):
                    queue.add(reader.node)
        return True

    def _rounds_to(self, output: ir.Value, dtype: ir.DataType) -> bool:
        """Whether the operator of a value needs more bits than its operands have, and so rounds."""
        try:
            region = self._region_of(output)
        except Unprovable:
            return False
        key = (region.key, dtype)
        if key not in self._rounds:
            self._rounds[key] = _rounds(region, dtype)
        return self._rounds[key]


@np.errstate(all="ignore")
def _rounds(region: Region, dtype: ir.DataType) -> bool:
    for numbers in SAMPLINGS:
        sizes, rng = region.sizes(numbers), np.random.default_rng(0)
        try:
            old, new = region.drawn(sizes, rng, 1.0)
            given = dict(zip(new, _rounded(new.values(), dtype), strict=True))
            _, found = region.outputs(old, given)
        except ERRORS:
            continue
        return not all(np.array_equal(a, found, equal_nan=True) for a in _rounded([found], dtype))
    return False


def _rounded(arrays: Iterable[Drawn], dtype: ir.DataType) -> Iterator[Drawn]:
    for array in arrays:
        floats = array.dtype.kind == "f"
        yield array.astype(dtype.numpy()).astype(np.float64) if floats else array
