"""The relation that scales leave: v = prod(pending) * u + s per channel, and its arithmetic.

``pending`` are the scales that a weight has taken and whose operators have not been passed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import AxisBlock
from onnxfold.graph.channels import Channels
from onnxfold.passes.scales.parts import Cut
from onnxfold.proof.forward import Failed, Image
from onnxfold.weights.means import rounding_of

__all__ = [
    "Ahead",
    "as_number",
    "common",
    "digit_of",
    "negligible",
    "own_shift",
    "part",
    "settled",
    "widened",
]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Ahead(Image):
    """v = prod(pending) * u + s along ``channels``, s up to ``slack``; pending is in order."""

    pending: tuple[Float64, ...] = ()
    slack: Float64 | None = None

    @property
    def scale(self) -> Float64:
        """R, the product of what is pending."""
        size = 1 if self.channels is None else self.channels.size
        return np.asarray(prod(self.pending, start=np.ones(size)))


def own_shift(
    b: Array, stored: Array, image: Ahead, channels: Channels, rank: int
) -> tuple[Float64, Float64]:
    """Return b' - r * b of constants that broadcast against a tensor, and its rounding.

    Raises Failed where it is not the same everywhere along the other axes.
    """
    aligned = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (b, stored)]
    if aligned[0].shape != aligned[1].shape:
        raise Failed("has a bias of another size")
    shape = list(aligned[0].shape)
    for digit in channels.digits:
        if shape[digit.axis] == 1:
            shape[digit.axis] = digit.inner * digit.size
        if shape[digit.axis] % (digit.inner * digit.size):
            raise Failed("has a constant that does not fit the channels of the change")
    size = tuple(shape)
    scaled = aligned[0].astype(np.float64) * channels.spread(image.scale, size)
    shift = np.broadcast_to(aligned[1].astype(np.float64) - scaled, size).reshape(-1)
    allowed = rounding_of(aligned[1]) + 2.0**-50 * np.abs(scaled)
    allowed = np.broadcast_to(allowed, size).reshape(-1)
    order = channels.spread(np.arange(channels.size, dtype=np.float64), size).astype(np.int64)
    order = np.broadcast_to(order, size).reshape(-1)
    first = np.unique(order, return_index=True)[1]
    slack = np.zeros(channels.size)
    np.maximum.at(slack, order, allowed)
    error = np.abs(shift - shift[first][order])
    if not np.all(error <= (slack[order] + allowed) * (1 + 2.0**-20) + 1e-300):
        raise Failed("has a constant that varies along other axes than the change")
    return shift[first], slack


def digit_of(image: Ahead, cut: Cut) -> int | None:
    """Return which digit of the channels is the whole axis that is cut, None without one."""
    whole = AxisBlock(cut.axis, 1, cut.total, 1)
    digits = () if image.channels is None else image.channels.digits
    return digits.index(whole) if whole in digits else None


def part(image: Ahead, cut: Cut, new: ir.Value, without_axis: bool) -> Image:
    """Return what stands for a part: its own elements of the scale and of the shift."""
    position, channels = digit_of(image, cut), image.channels
    if position is None or channels is None or image.s is None or image.slack is None:
        raise Failed("cuts a value that nothing stands for")
    sizes = [digit.size for digit in channels.digits]
    elements = (slice(None),) * position + (slice(cut.start, cut.start + cut.length),)

    def own(vector: Float64) -> Float64:
        return vector.reshape(sizes)[elements].reshape(-1)

    digits = list(channels.digits)
    digits[position] = AxisBlock(cut.axis, 1, cut.length, 1)
    if without_axis:
        del digits[position]
        digits = [replace(digit, axis=digit.axis - (digit.axis > cut.axis)) for digit in digits]
    pending = tuple(piece for scale in image.pending if np.any((piece := own(scale)) != 1))
    slack = own(image.slack)
    return settled(Ahead(new, Channels.of(digits), None, own(image.s), False, pending, slack))


def as_number(image: Ahead) -> tuple[float, ...] | None:
    """Return the scales that are pending if each is one number and the shift is nothing."""
    if not negligible(image.s, image.slack):
        return None
    if not all(np.all(scale == scale[0]) for scale in image.pending):
        return None
    return tuple(float(scale[0]) for scale in image.pending)


def settled(image: Ahead) -> Image:
    """Return the relation, which is equality where no scale is left and s is within roundings."""
    if not image.pending and negligible(image.s, image.slack):
        return Image(image.value)
    return image


def negligible(s: Float64 | None, slack: Float64 | None) -> bool:
    """Whether a shift is within the roundings of the biases that it comes from."""
    if s is None or slack is None:
        return False
    return bool(np.all(np.abs(s) <= slack * (1 + 2.0**-20) + 1e-300))


def common(channels: Sequence[Channels]) -> Channels:
    """Return channels of which each of these has a part: the most of them, or whole axes."""
    most = max(channels, key=lambda found: found.size)
    if all(_places(found, most) is not None for found in channels):
        return most
    digits = [digit for found in channels for digit in found.digits]
    if any(digit.outer is None for digit in digits):
        raise Failed("works along other channels than the change before it")
    return Channels.along(sorted(_sizes(digits).items()))


def widened(vector: Float64, own: Channels, wanted: Channels) -> Float64:
    """Return a vector over channels that have its own as a part; one number is one over any."""
    if np.all(vector == vector[0]):
        return np.full(wanted.size, vector[0])
    places = _places(own, wanted)
    if places is None:
        raise Failed("works along other channels than the change before it")
    return np.asarray(vector[places])


def _places(own: Channels, wanted: Channels) -> npt.NDArray[np.int64] | None:
    """Return which of its own channels each wanted one lies in; None where it lies in several."""
    if own == wanted:
        return np.arange(own.size)
    sizes = _sizes((*own.digits, *wanted.digits))
    if any(sizes[d.axis] % (d.inner * d.size) for d in (*own.digits, *wanted.digits)):
        return None
    shape = tuple(sizes.get(axis, 1) for axis in range(max(sizes, default=-1) + 1))
    narrow, wide = (
        np.broadcast_to(c.spread(np.arange(float(c.size)), shape), shape).astype(np.int64)
        for c in (own, wanted)
    )
    places = np.zeros(wanted.size, np.int64)
    places[wide] = narrow
    return places if np.array_equal(places[wide], narrow) else None


def _sizes(digits: Iterable[AxisBlock]) -> dict[int, int]:
    """Return the size of each axis; of one that is not known whole, enough to see all digits."""
    sizes: dict[int, int] = {}
    for digit in digits:
        size = digit.inner * digit.size * (digit.outer or 1)
        sizes[digit.axis] = max(size, sizes.get(digit.axis, 1))
    return sizes
