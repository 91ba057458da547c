"""Affine parts of weights: arrays in, arrays out.

    y = g * x + s per channel, then W y + b:

    W* = W diag(g)                 every element of W times the g of its channel
    b* = b + W s                   the sum over all axes of W but that of the output

    W y + b, then z = g * (W y + b) + s per channel of the output:

    W* = diag(g) W,  b* = g * b + s

Products and sums are float64 and are rounded once, when the edited tensor is stored.

Source: FlashNorm (Graef et al., 2024), section 1, W* = diag(g) W and c* = c + beta W.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from onnxfold.affine.channels import Channels

__all__ = ["column_maxima", "column_range", "weighted_sum"]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]
Chunks = Iterable[tuple[int, Float64]]  # rows of axis 0 from a number on


def weighted_sum(
    chunks: Chunks, shape: tuple[int, ...], s: Float64, inner: Channels, outer: Channels
) -> Float64:
    """Return W s: the sum of W * s over all axes but those of ``outer``, in the order of outer.

    W: ``shape``, given as float64 chunks of axis 0; ``inner``: the channels of s in W; ``outer``:
    whole axes of W.
    """
    weights = np.broadcast_to(inner.spread(s, shape), _where(shape, inner))
    kept = outer.axes
    sizes = tuple(shape[axis] for axis in kept)
    total = np.zeros(sizes)
    summed = tuple(axis for axis in range(len(shape)) if axis not in kept)
    for start, chunk in chunks:
        rows = slice(start, start + chunk.shape[0])
        factor = weights[rows] if weights.shape[0] > 1 else weights
        part = _sum_products(chunk, factor, summed)
        if 0 in kept:
            total[rows] = part
        else:
            total += part
    order = outer.spread(np.arange(outer.size, dtype=np.float64), shape).astype(np.int64)
    result = np.empty(outer.size)
    result[order.reshape(-1)] = total.reshape(-1)
    return result


def _where(shape: tuple[int, ...], channels: Channels) -> tuple[int, ...]:
    return tuple(dim if axis in channels.axes else 1 for axis, dim in enumerate(shape))


def _sum_products(chunk: Float64, factor: Float64, summed: tuple[int, ...]) -> Float64:
    # Not by BLAS, whose number of threads may change the last bit.
    if chunk.ndim == 2 and summed == (0,) and factor.shape[1] == 1:
        column = np.broadcast_to(factor[:, 0], chunk.shape[:1])
        return np.asarray(np.einsum("i,ij->j", column, chunk))
    if chunk.ndim == 2 and summed == (1,) and factor.shape[0] == 1:
        row = np.broadcast_to(factor[0], chunk.shape[1:])
        return np.asarray(np.einsum("ij,j->i", chunk, row))
    return np.asarray((chunk * factor).sum(axis=summed))


def column_maxima(
    chunks: Chunks, shape: tuple[int, ...], factor: Float64, outer: Channels
) -> tuple[Float64, Float64]:
    """Return the maxima of |W| and of |W| * factor over all axes but those of ``outer``."""
    kept = outer.axes
    others = tuple(axis for axis in range(len(shape)) if axis not in kept)
    before = np.zeros(tuple(shape[axis] for axis in kept))
    after = np.zeros_like(before)
    for start, chunk in chunks:
        rows = slice(start, start + chunk.shape[0])
        sizes = np.abs(chunk)
        scaled = sizes * (factor[rows] if factor.shape[0] > 1 else factor)
        for total, part in ((before, sizes), (after, scaled)):
            maxima = part.max(axis=others)
            if 0 in kept:
                total[rows] = maxima
            else:
                np.maximum(total, maxima, out=total)
    return before, after


def column_range(maxima: Float64) -> float:
    """Return the largest over the smallest of some positive column maxima, 1.0 for none."""
    positive = maxima[maxima > 0]
    return float(positive.max() / positive.min()) if positive.size else 1.0
