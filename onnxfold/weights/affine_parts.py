"""Affine parts of weights: arrays in, arrays out.

    y = g * x + s per channel, then W y + b:

    W* = W diag(g)                 every element of W times the g of its channel
    b* = b + W s                   the sum over all axes of W but that of the output

    W y + b, then z = g * (W y + b) + s per channel of the output:

    W* = diag(g) W,  b* = g * b + s

Products and sums are float64 and are rounded once, when the edited tensor is stored.

Source: FlashNorm (Graef et al., 2024), section 1, W* = diag(g) W and c* = c + beta W.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np

from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64

Result = TypeVar("Result")


class Weight(Protocol):
    """A weight in float64 chunks of axis 0; threads may call the functions passed to it."""

    def mapped(self, function: Callable[[int, Float64], Result], /) -> Iterator[Result]:
        """Yield ``function(first row, rows)`` for each chunk, in order."""
        ...

    def weighted(self, factors: Float64) -> Iterator[Float64]:
        """Yield for each chunk, in order, the sum of its rows, each times its factor."""
        ...


def weighted_sum(
    W: Weight, shape: tuple[int, ...], s: Float64, inner: Channels, outer: Channels
) -> Float64:
    """Return W s: the sum of W * s over all indices except those of ``outer``, in their order.

    W: ``shape``; ``inner``: the channels of s in W; ``outer``: other indices of W, or of both.
    """
    weights = np.broadcast_to(inner.spread(s, shape), _where(shape, inner))
    kept = outer.axes
    sizes = tuple(shape[axis] for axis in kept)
    total = np.zeros(sizes)
    summed = tuple(axis for axis in range(len(shape)) if axis not in kept)

    def products(start: int, chunk: Float64) -> tuple[int, Float64]:
        rows = slice(start, start + chunk.shape[0])
        factor = weights[rows] if weights.shape[0] > 1 else weights
        return start, _sum_products(chunk, factor, summed)

    if kept == (1,) and len(shape) == 2 and weights.shape[1] == 1:
        for part in W.weighted(np.broadcast_to(weights[:, 0], shape[:1])):
            total += part
    else:
        for start, part in W.mapped(products):
            if 0 in kept:
                total[start : start + part.shape[0]] = part
            else:
                total += part
    order = outer.spread(np.arange(outer.size, dtype=np.float64), shape).astype(np.int64)
    return np.bincount(order.reshape(-1), total.reshape(-1), outer.size).astype(np.float64)


def _where(shape: tuple[int, ...], channels: Channels) -> tuple[int, ...]:
    return tuple(dim if axis in channels.axes else 1 for axis, dim in enumerate(shape))


def _sum_products(chunk: Float64, factor: Float64, summed: tuple[int, ...]) -> Float64:
    # Not by BLAS, whose number of threads may change the last bit.
    if chunk.ndim == 2 and summed == (1,) and factor.shape[0] == 1:
        row = np.broadcast_to(factor[0], chunk.shape[1:])
        return np.asarray(np.einsum("ij,j->i", chunk, row))
    return np.asarray((chunk * factor).sum(axis=summed))


def first_halves(vector: Float64, rows: int) -> Float64:
    """Return a vector as the first halves of so many rows, padded with zeros.

    As it is for no rows.
    """
    if not rows:
        return vector
    wide = vector.reshape(rows, -1)
    return np.concatenate([wide, np.zeros_like(wide)], axis=1).reshape(-1)


def column_maxima(
    W: Weight, shape: tuple[int, ...], factor: Float64, outer: Channels
) -> tuple[Float64, Float64]:
    """Return the maxima of |W| and of |W| * factor over all axes except ``outer``."""
    kept = outer.axes
    others = tuple(axis for axis in range(len(shape)) if axis not in kept)
    before = np.zeros(tuple(shape[axis] for axis in kept))
    after = np.zeros_like(before)

    def maxima_of(start: int, chunk: Float64) -> tuple[int, Float64, Float64]:
        rows = slice(start, start + chunk.shape[0])
        sizes = np.abs(chunk, out=chunk)
        own = np.asarray(sizes.max(axis=others))
        sizes *= factor[rows] if factor.shape[0] > 1 else factor
        return start, own, np.asarray(sizes.max(axis=others))

    for start, *both in W.mapped(maxima_of):
        for total, maxima in zip((before, after), both, strict=True):
            if 0 in kept:
                total[start : start + maxima.shape[0]] = maxima
            else:
                np.maximum(total, maxima, out=total)
    return before, after


def column_range(maxima: Float64) -> float:
    """Return the ratio of the largest and the smallest positive column maximum, 1.0 for none."""
    positive = maxima[maxima > 0]
    return float(positive.max() / positive.min()) if positive.size else 1.0
