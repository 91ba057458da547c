"""The criterion itself, on made-up errors of known size."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfold.check.criterion import AcceptanceCriterion, Judgement, judge

U = 2.0**-24
G = np.random.default_rng(0)
TRUTH = G.standard_normal(4096)
NOISE = 1e-5 * G.standard_normal(4096)
ORIGINAL = (TRUTH + NOISE).astype(np.float32)


def judged(rewritten: np.ndarray, truth: np.ndarray = TRUTH, *originals: np.ndarray) -> Judgement:
    runs = originals or (ORIGINAL,)
    return judge(
        truth, runs, rewritten.astype(np.float32), roundoff=U, criterion=AcceptanceCriterion(4.0)
    )


@pytest.mark.parametrize(("factor", "passes"), [(0.0, True), (3.9, True), (4.1, False)])
def test_the_error_may_be_four_times_the_noise(factor: float, passes: bool) -> None:
    judgement = judged(TRUTH + factor * NOISE)
    assert (judgement.fault is None) == passes
    assert judgement.noise_ratio == pytest.approx(factor, abs=0.02)


def test_an_error_of_four_times_the_noise_itself_passes() -> None:
    truth, step = np.ones(128), 2.0**-10
    original = truth + step
    for factor, passes in ((4, True), (4 + 2**-8, False)):
        assert (judged(truth + factor * step, truth, original).fault is None) == passes


def test_the_largest_noise_of_several_runs_counts() -> None:
    rewritten = TRUTH + 6 * NOISE
    assert judged(rewritten).fault is not None
    louder = (TRUTH + 2 * NOISE).astype(np.float32)
    assert judged(rewritten, TRUTH, ORIGINAL, louder).fault is None


def test_an_error_in_one_element_is_found() -> None:
    rewritten = TRUTH + NOISE
    # Below the limit in root mean square: 20 of the largest over 64 = sqrt(4096).
    rewritten[7] += 20 * np.abs(NOISE).max()
    judgement = judged(rewritten)
    assert judgement.noise_ratio < 4
    assert "largest error" in str(judgement.fault)


def test_an_original_without_error_leaves_the_unit_roundoff_as_noise() -> None:
    exact = TRUTH.astype(np.float32).astype(np.float64)
    size = float(np.sqrt(np.mean(exact**2)))
    for factor, passes in ((3.0, True), (5.0, False)):
        signs = np.where(G.random(4096) < 0.5, -1, 1)
        moved = (exact + factor * U * size * signs).astype(np.float64)
        judgement = judge(exact, [exact], moved, roundoff=U, criterion=AcceptanceCriterion(4.0))
        assert (judgement.fault is None) == passes


def test_numbers_that_float32_flushes_to_zero_are_not_told_apart() -> None:
    tiny = 1e-40 * TRUTH
    assert judged(2 * tiny, tiny, tiny.astype(np.float32)).fault is None
    assert judged(1e4 * tiny, tiny, tiny.astype(np.float32)).fault is not None
    wide = judge(tiny, (tiny,), 2 * tiny, roundoff=2.0**-53, criterion=AcceptanceCriterion(4.0))
    assert wide.fault is not None


def test_exact_zeros_allow_no_error_that_the_others_do_not() -> None:
    zeros = np.zeros(8)
    assert judged(zeros, zeros, zeros).fault is None
    assert judged(zeros + 1e-30, zeros, zeros).fault is not None


def test_an_original_that_overflows_may_be_bettered_but_not_worsened() -> None:
    original = ORIGINAL.copy()
    original[5] = np.inf
    good = ORIGINAL.copy()
    assert judged(good, TRUTH, original).fault is None
    assert judged(original, TRUTH, original).fault is None
    assert judged(original, TRUTH, ORIGINAL).fault is not None
    negative = original.copy()
    negative[5] = -np.inf
    assert judged(negative, TRUTH, original).fault is not None


def test_nan_in_the_truth_is_compared_by_place() -> None:
    truth, original = TRUTH.copy(), ORIGINAL.copy()
    truth[:9] = original[:9] = np.nan
    assert judged(original, truth, original).fault is None
    assert judged(ORIGINAL, truth, original).fault is not None


def test_an_output_of_another_shape_fails() -> None:
    assert "shape" in str(judged(TRUTH.reshape(64, 64)).fault)


def test_large_sentinels_hide_nothing() -> None:
    truth, original = TRUTH.copy(), ORIGINAL.copy()
    for share, sentinel in ((0.1, -1e9), (0.6, -3e38), (0.6, -1e9)):
        masked = np.arange(4096) < share * 4096
        truth[masked], original[masked] = sentinel + 3.7, np.float32(sentinel)
        good, bad = original.copy(), (original + 30 * np.where(masked, 0, NOISE))
        assert judged(good, truth, original).fault is None
        assert judged(bad, truth, original).fault is not None


def test_elements_of_the_usual_size_are_judged_by_themselves_too() -> None:
    truth, original = TRUTH.copy(), ORIGINAL.astype(np.float64)
    truth[:100] *= 1e6
    original[:100] = truth[:100] + 100 * G.standard_normal(100)
    bad = original.copy()
    bad[:100] = truth[:100] + 100 * G.standard_normal(100)
    assert (
        judge(truth, [original], bad, roundoff=U, criterion=AcceptanceCriterion(4.0)).fault is None
    )
    bad[100:] = truth[100:] + 10 * NOISE[100:]
    assert (
        judge(truth, [original], bad, roundoff=U, criterion=AcceptanceCriterion(4.0)).fault
        is not None
    )


def test_integers_may_differ_only_where_the_original_does() -> None:
    truth = np.arange(6)
    original, rewritten = truth.copy(), truth.copy()
    original[2] = 9
    rewritten[2] = 7
    criterion = AcceptanceCriterion(4.0)
    assert judge(truth, [original], rewritten, roundoff=0.0, criterion=criterion).fault is None
    rewritten[3] = 0
    judgement = judge(truth, [original], rewritten, roundoff=0.0, criterion=criterion)
    assert str(judgement.fault).startswith("1 of 6 elements differ")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn])
def test_codes_may_be_the_next_ones_as_often_as_the_noise_allows(dtype: Any) -> None:
    truth = np.arange(1, 101).astype(dtype)
    after = (truth.view(np.uint8) + 1).view(dtype)
    original = np.where(np.arange(100) < 2, after, truth)
    criterion = AcceptanceCriterion(4.0)

    def fault(at: range, value: Any = after) -> str | None:
        rewritten = truth.copy()
        rewritten[at] = value[at] if isinstance(value, np.ndarray) else value
        return judge(truth, [original], rewritten, roundoff=0.0, criterion=criterion).fault

    assert fault(range(10, 18)) is None
    assert str(fault(range(10, 19))).startswith("9 of 100 elements differ")
    assert fault(range(10, 11), (truth.view(np.uint8) + 2).view(dtype)) is not None
    exact = judge(truth, [truth], after, roundoff=0.0, criterion=criterion)
    assert str(exact.fault).startswith("100 of 100 elements differ")


def test_integers_that_are_no_codes_have_no_neighbours() -> None:
    truth = np.arange(100)
    original, rewritten = truth.copy(), truth.copy()
    original[:5] += 1
    rewritten[7] += 1
    criterion = AcceptanceCriterion(4.0)
    assert judge(truth, [original], rewritten, roundoff=0.0, criterion=criterion).fault is not None


def test_nan_of_float8_is_equal_to_nan_alone() -> None:
    truth = np.array([np.nan, 1, 448, np.nan], ml_dtypes.float8_e4m3fn)
    criterion = AcceptanceCriterion(4.0)
    assert judge(truth, [truth], truth, roundoff=0.0, criterion=criterion).fault is None
    for at, value in ((0, 448), (1, np.nan), (2, np.nan)):
        rewritten = truth.copy()
        rewritten[at] = value
        judgement = judge(truth, [truth], rewritten, roundoff=0.0, criterion=criterion)
        assert str(judgement.fault).startswith("1 of 4 elements differ")
        assert judgement.max_abs_error == np.inf


@pytest.mark.parametrize(
    ("rtol", "atol", "passes"), [(1e-3, 0, True), (0, 1e-2, True), (1e-6, 0, False)]
)
def test_a_tolerance_bounds_the_distance_to_the_truth(
    rtol: float, atol: float, passes: bool
) -> None:
    criterion = AcceptanceCriterion(4.0, (rtol, atol))
    judgement = judge(TRUTH, [TRUTH], TRUTH * (1 + 1e-4), roundoff=U, criterion=criterion)
    assert (judgement.fault is None) == passes
