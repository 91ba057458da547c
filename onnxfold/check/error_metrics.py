"""Distance of one output of one sample from the truth, in each metric of an error budget.

With t the truth and r the output, both float64 (r as its own type stores it):

    relative   ||r - t|| / ||t||
    cosine     1 - cos(t, r) along the last axis, the mean over its rows
    top1       the share of rows of the last axis whose largest element is another one
    kl         KL(softmax(t) || softmax(r)) in nats, the mean over the rows of the last axis

Masked positions (at least 10,000, 1000 times the others, and equal in both up to rounding) carry no
information and are left out of the relative error. If t is zero up to rounding, the distance is
relative to the usual size of the output over all samples.
"""

from collections.abc import Sequence

import numpy as np

from onnxfold.check.criterion import ratio_of, rms, same
from onnxfold.check.reference import Array
from onnxfold.options import Metric

# The least value of a mask, and its least ratio to the other values.
_MASK, _OUTLYING = 1e4, 1000.0
# The metrics that interpret the elements of an output as class scores.
OF_LOGITS = frozenset({Metric.TOP1, Metric.KL})


def applies(metric: Metric, shape: Sequence[int]) -> bool:
    """Whether an output of this shape can be measured; all but the relative error need rows."""
    return metric is Metric.RELATIVE or (len(shape) > 0 and shape[-1] >= 2)


def errors(
    metric: Metric, truths: Sequence[Array], outputs: Sequence[Array], roundoff: float
) -> list[float]:
    """The error of an output in each sample; ``roundoff`` is the unit roundoff of its type."""
    if metric is Metric.RELATIVE:
        return _relative(truths, outputs, roundoff)
    pairs = [
        (t.reshape(-1, t.shape[-1]), r.reshape(-1, r.shape[-1]))
        for t, r in zip(truths, outputs, strict=True)
    ]
    if metric is Metric.COSINE:
        return _cosine(pairs, roundoff)
    found = []
    for t, r in pairs:
        rows, others = _that_choose(t, r)
        of_rows = _top1(rows, others, roundoff) if metric is Metric.TOP1 else _kl(rows, others)
        found.append(float(np.mean(of_rows)) if of_rows.size else 0.0)
    return found


def differing(t: Array, r: Array) -> float:
    """The share of elements that differ, NaN from NaN not; of codes, booleans and strings."""
    return float(np.count_nonzero(~same(t, r))) / max(t.size, 1)


def _relative(truths: Sequence[Array], outputs: Sequence[Array], roundoff: float) -> list[float]:
    told = [_that_tell(t, r, roundoff) for t, r in zip(truths, outputs, strict=True)]
    sizes = [rms(t) for t, _ in told]
    usual = _usual(np.array(sizes))
    return [
        ratio_of(rms(gap), size if size > roundoff * usual else usual)
        for (_, gap), size in zip(told, sizes, strict=True)
    ]


def _that_tell(t: Array, r: Array, roundoff: float) -> tuple[Array, Array]:
    """Return the finite elements that carry information, and their distances."""
    finite = np.isfinite(t) & np.isfinite(r)
    t, r = t[finite], r[finite]
    gap = np.abs(r - t)
    agreed = gap <= roundoff * np.abs(t)
    others = rms(np.maximum(np.abs(t), np.abs(r))[~agreed])
    told = ~(agreed & (np.abs(t) > max(_OUTLYING * others, _MASK)))
    return (t[told], gap[told]) if others > 0 and np.any(t[told]) else (t, gap)


def _cosine(pairs: Sequence[tuple[Array, Array]], roundoff: float) -> list[float]:
    """Return 1 - cos = ||a - b||^2 / 2 of unit vectors a and b, which keeps its digits near 0."""
    numbers = [
        tuple(np.where(np.isfinite(t) & np.isfinite(r), x, 0.0) for x in (t, r)) for t, r in pairs
    ]
    usual = _usual(np.concatenate([_norms(t) for t, _ in numbers]))
    found = []
    for t, r in numbers:
        sizes, other_sizes = _norms(t), _norms(r)
        apart = np.square(_norms(_units(t, sizes) - _units(r, other_sizes))) / 2
        apart[other_sizes == 0] = 1.0
        zero = sizes <= roundoff * usual
        apart[zero] = [min(1.0, ratio_of(float(gap), usual)) for gap in _norms(r[zero] - t[zero])]
        found.append(float(np.mean(apart)) if apart.size else 0.0)
    return found


def _top1(rows: Array, others: Array, roundoff: float) -> Array:
    """Whether more than two roundings set the element chosen below the largest."""
    chosen = np.take_along_axis(rows, others.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    largest = rows.max(axis=-1)
    differs: Array = largest - chosen > 2 * roundoff * np.maximum(np.abs(largest), np.abs(chosen))
    return differs


def _kl(rows: Array, others: Array) -> Array:
    logs, other_logs = _log_softmax(rows), _log_softmax(others)
    p = np.exp(logs)
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * (logs - other_logs), 0.0)
    divergences: Array = np.maximum(terms.sum(axis=-1), 0.0)
    return divergences


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _that_choose(t: Array, r: Array) -> tuple[Array, Array]:
    """Return the rows with a choice: no NaN, no +inf, and something more than -inf."""
    largest = [x.max(axis=-1, initial=-np.inf) for x in (t, r)]
    choose = np.isfinite(largest[0]) & np.isfinite(largest[1])  # the largest of NaN is NaN
    return t[choose], r[choose]


def _usual(sizes: Array) -> float:
    """Return the median of the nonzero sizes, or 0 if all are zero."""
    return float(np.median(sizes[sizes > 0])) if np.any(sizes > 0) else 0.0


def _norms(rows: Array) -> Array:
    largest = np.abs(rows).max(axis=-1, initial=0.0)
    norms: Array = largest * np.linalg.norm(_units(rows, largest), axis=-1)
    return norms


def _units(rows: Array, sizes: Array) -> Array:
    units: Array = rows / np.where(sizes > 0, sizes, 1.0)[:, None]
    return units
