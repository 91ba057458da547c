"""Criterion for accepting a rewritten model, for one output of one sample.

With t the truth, o the original and r the rewritten model in their own precision, and u the unit
roundoff of the output's type,

    rms(r - t) <= limit max(rms(o - t), u rms(t))
    max|r - t| <= 4 limit max(max|o - t|, u max|t|)

The largest of n rounding errors with deviation s is near s sqrt(2 ln n), for o as for r, so the
ratio of the largest errors is that of the deviations. Their tails are heavier where rows differ in
conditioning, which the factor 4 allows for; it still finds an error that a defect concentrates in a
few elements, which the root mean square over a million would hide.

If o was measured in several ways, the largest counts. All elements are judged together, and then
those of usual size alone: otherwise outputs of 1e9 for masked positions, with rounding
errors to match, would excuse any error in the others. Elements on which all models agree to the
last bit and that are 1000 times larger than where they differ carry no information and are left
out.

u rms(t) and u max|t| count as no less than the smallest normal float32, except for float64: below
it float32 loses digits with each operation, and runtimes may flush numbers to 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType

import ml_dtypes
import numpy as np

from onnxfold.check.reference import Array, is_code, is_quantized_float, is_wide_float

_CONCENTRATION = 4.0
_OUTLYING = 1000.0
SMALLEST_NORMAL = 2.0**-126
_WIDEST = 2.0**-40  # roundoffs below it are float64's
# Fewer elements than this are too few to judge by themselves.
_ENOUGH = 64


@dataclass(frozen=True, slots=True)
class AcceptanceCriterion:
    """The allowed multiple of the original's noise, or the user's ``tolerance`` instead.

    That is (rtol, atol): |r - t| <= atol + rtol |t| everywhere.
    """

    limit: float
    tolerance: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgment of one output of one sample: errors, the ratio, and the fault (None if it passed).

    compared: the elements whose numbers were compared; NaN and infinity are only compared by
    position, which does not cover the numbers computed from them. bound: the allowed root mean
    square error over them, or the largest error if the user gave a tolerance. size: the root mean
    square of the truth there.
    """

    max_abs_error: float
    rms_error: float
    original_rms_error: float
    noise_ratio: float
    fault: str | None
    compared: int = 0
    bound: float = 0.0
    size: float = 0.0


def judge(
    truth: Array,
    originals: Sequence[Array],
    rewritten: Array,
    *,
    roundoff: float,
    criterion: AcceptanceCriterion,
) -> Judgement:
    """Judge a rewritten output by the criterion; `roundoff` is u for the output's type.

    Outputs other than wide floats must equal the truth, except where an original does not either.
    Codes may also be off by one elsewhere, in `limit` times as many places as in an original: a
    value between two codes is rounded to either by its last place, in a number of places
    proportional to the noise.
    """
    if rewritten.shape != truth.shape:
        return _failed(f"its shape is {rewritten.shape}, not {truth.shape}")
    if not is_wide_float(rewritten.dtype):
        return _judge_exact(truth, originals, rewritten, criterion.limit)
    t, r, *os = (x.astype(np.float64, copy=False) for x in (truth, rewritten, *originals))
    finite = np.logical_and.reduce([np.isfinite(x) for x in (t, r, *os)])
    if not finite.all():
        misplaced = _misplaced(t, os, r)
        if misplaced:
            return _failed(f"{misplaced} elements differ in being NaN or infinite")
        t, r, os = t[finite], r[finite], [o[finite] for o in os]
    if not t.size:
        return Judgement(0.0, 0.0, 0.0, 0.0, None)
    error, noises = np.abs(r - t), [np.abs(o - t) for o in os]
    ratio, fault = 0.0, None
    for part in _parts(t, os, r):
        part_ratio, part_fault = _compare(
            t[part], [noise[part] for noise in noises], error[part], roundoff, criterion
        )
        ratio, fault = max(ratio, part_ratio), fault or part_fault
    size, noise = rms(t), max(map(rms, noises))
    bound = criterion.limit * max(noise, _least(roundoff, size))
    if criterion.tolerance is not None:
        rtol, atol = criterion.tolerance
        allowed = atol + rtol * np.abs(t)
        fault, bound = _outside(error, allowed), float(allowed.max())
    return Judgement(float(error.max()), rms(error), noise, ratio, fault, t.size, bound, size)


def _failed(fault: str) -> Judgement:
    return Judgement(float("inf"), float("inf"), 0.0, float("inf"), fault)


def _judge_exact(
    truth: Array, originals: Sequence[Array], rewritten: Array, limit: float
) -> Judgement:
    wrong = ~same(rewritten, truth)
    steady = np.ones(truth.shape, dtype=np.bool_)
    for original in originals:
        steady &= same(original, truth)
    distance = 0.0
    if rewritten.dtype.kind not in "OUS":
        gap = np.abs(rewritten[wrong].astype(np.float64) - truth[wrong].astype(np.float64))
        distance = float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0))
    wrong &= steady
    count = int(np.count_nonzero(wrong))
    flips = max((int(np.count_nonzero(~same(o, truth))) for o in originals), default=0)
    if count > limit * flips or not _are_neighbours(rewritten[wrong], truth[wrong]):
        fault = f"{count} of {truth.size} elements differ, where the original is exact"
        return Judgement(distance, distance, 0.0, float("inf"), fault, truth.size)
    return Judgement(distance, distance, distance, ratio_of(count, flips), None, truth.size)


def _are_neighbours(a: Array, b: Array) -> bool:
    """Whether each is a code adjacent to the other's; False for types other than codes."""
    if not is_code(a.dtype):
        return not a.size
    x, y = a.astype(np.float64), b.astype(np.float64)
    integers = not is_quantized_float(a.dtype)
    # A float8 format has as many numbers of one binade as its significand has bits for.
    step = 1.0 if integers else _spacing(a.dtype, np.maximum(np.abs(x), np.abs(y)))
    return bool(np.all(np.abs(x - y) <= step))


def _spacing(dtype: np.dtype[np.generic], size: Array) -> Array:
    """Return the distance between normal numbers of a narrow floating type up to this size."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    with np.errstate(invalid="ignore"):
        spacing: Array = float(info.eps) * np.maximum(size, float(info.smallest_normal))
    return spacing


def same(a: Array, b: Array) -> Array:
    """Return where elements are equal, or both NaN."""
    found: Array = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  # NaN, of any type
    return found


def _misplaced(t: Array, os: Sequence[Array], r: Array) -> int:
    """Count elements that are NaN or infinite where neither the truth nor an original is."""
    kinds = kind_of_number(r)
    known = kinds == kind_of_number(t)
    agreed = np.ones(t.shape, dtype=np.bool_)
    for o in os:
        agreed &= kind_of_number(o) == kind_of_number(t)
        known |= kinds == kind_of_number(o)
    # The rewritten model may be finite where an original overflows and the truth does not, never
    # the reverse.
    return int(np.count_nonzero(~known | (agreed & (kinds != kind_of_number(t)))))


def kind_of_number(x: Array) -> Array:
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def _parts(t: Array, os: Sequence[Array], r: Array) -> Iterator[Array | EllipsisType]:
    """Yield the elements that carry information, then the ones of usual size."""
    agreed = np.logical_and.reduce([o == r for o in os])
    if agreed.all():
        yield ...
        return
    size = np.abs(t)
    telling = ~(agreed & (size > _OUTLYING * max(rms(t[~agreed]), 1e-300)))
    yield ... if telling.all() else telling
    nonzero = size[telling & (size > 0)]
    if nonzero.size:
        usual = telling & (size <= _OUTLYING * np.quantile(nonzero, 0.25))
        if _ENOUGH <= np.count_nonzero(usual) < np.count_nonzero(telling):
            yield usual


def _compare(
    t: Array, noises: Sequence[Array], error: Array, roundoff: float, criterion: AcceptanceCriterion
) -> tuple[float, str | None]:
    noise, peak = max(map(rms, noises)), max(float(noise.max()) for noise in noises)
    largest = float(np.abs(t).max(initial=0.0))
    ratio = ratio_of(rms(error), max(noise, _least(roundoff, rms(t))))
    peak_ratio = ratio_of(float(error.max()), max(peak, _least(roundoff, largest)))
    if ratio > criterion.limit:
        return ratio, f"its error is {ratio:.3g} times that of the original"
    if peak_ratio > _CONCENTRATION * criterion.limit:
        return ratio, f"its largest error is {peak_ratio:.3g} times that of the original"
    return ratio, None


def _least(roundoff: float, size: float) -> float:
    """Return the rounding error of numbers of a size, where they are normal numbers."""
    smallest = 0.0 if roundoff < _WIDEST else SMALLEST_NORMAL
    return max(roundoff * size, smallest)


def ratio_of(error: float, noise: float) -> float:
    """Return error / noise; 0 / 0 is 0."""
    if noise > 0:
        return error / noise
    return 0.0 if error == 0 else float("inf")


def _outside(error: Array, allowed: Array) -> str | None:
    outside = error > allowed
    count = int(np.count_nonzero(outside))
    if not count:
        return None
    worst = float(error[outside].max())
    return f"{count} of {error.size} elements exceed the tolerance, by errors of up to {worst:.3g}"


def rms(x: Array) -> float:
    """Return the root mean square, scaled first so that 1e300 does not overflow."""
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0:
        return 0.0
    return largest * float(np.sqrt(np.mean(np.square(x / largest))))
