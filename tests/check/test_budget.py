"""Error budgets: the arithmetic of the metrics, nasty rows, and what no budget excuses."""

import json

import ml_dtypes
import numpy as np
import pytest

from onnxfold.check.budget import Budget, BudgetReport, judge_budget
from onnxfold.errors import UsageError
from onnxfold.options import Metric

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(8, 10))


def judged(truths, outputs, **limits: float) -> BudgetReport:
    budget = Budget({Metric(name): limit for name, limit in limits.items()})
    return judge_budget([{"y": t} for t in truths], [{"y": r} for r in outputs], budget)


def errors(truth, output, *metrics: Metric) -> dict[Metric, float]:
    limits = dict.fromkeys((Metric.RELATIVE, *metrics), 1e300)
    return judged([truth], [output], **limits).outputs[0].worst


def test_relative_and_cosine_are_what_their_formulas_say() -> None:
    other = LOGITS + 0.1 * RNG.normal(size=LOGITS.shape)
    found = errors(LOGITS, other)
    assert found[Metric.RELATIVE] == pytest.approx(
        np.linalg.norm(other - LOGITS) / np.linalg.norm(LOGITS), rel=1e-12
    )
    cosines = np.sum(LOGITS * other, -1) / np.linalg.norm(LOGITS, axis=-1)
    cosines /= np.linalg.norm(other, axis=-1)
    assert found[Metric.COSINE] == pytest.approx(np.mean(1 - cosines), rel=1e-9)


def test_kl_and_top1_are_what_their_formulas_say() -> None:
    other = LOGITS + 0.5 * RNG.normal(size=LOGITS.shape)
    found = errors(LOGITS, other, Metric.KL, Metric.TOP1)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (LOGITS, other))
    assert found[Metric.KL] == pytest.approx(np.mean(np.sum(p * np.log(p / q), -1)), rel=1e-9)
    differ = np.mean(LOGITS.argmax(-1) != other.argmax(-1))
    assert 0 < found[Metric.TOP1] == differ


def test_a_cosine_near_one_keeps_its_digits() -> None:
    truth = np.array([[1.0, 0.0]])
    assert errors(truth, np.array([[1.0, 1e-9]]))[Metric.COSINE] == pytest.approx(5e-19, rel=1e-6)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e3), (1e30, 0.0), (1e-30, 0.0), (1e200, 0.0)])
def test_the_errors_do_not_depend_on_the_unit(scale: float, shift: float) -> None:
    truth = (LOGITS + shift) * scale
    found = errors(truth, truth * 1.01)
    assert found[Metric.RELATIVE] == pytest.approx(0.01, rel=1e-9)
    assert found[Metric.COSINE] == pytest.approx(0.0, abs=1e-28)


def test_a_truth_of_zeros_is_compared_with_the_scale_over_all_samples() -> None:
    zeros, near = np.zeros((8, 10)), np.full((8, 10), 1e-3)
    report = judged([LOGITS, zeros], [LOGITS, near], relative=0.01)
    assert report.passed
    rms, norm = np.sqrt(np.mean(LOGITS**2)), np.median(np.linalg.norm(LOGITS, axis=-1))
    worst = report.outputs[0].worst
    assert worst[Metric.RELATIVE] == pytest.approx(1e-3 / rms, rel=1e-9)
    assert worst[Metric.COSINE] == pytest.approx(1e-3 * np.sqrt(10) / norm, rel=1e-9)
    far = judged([LOGITS, zeros], [LOGITS, near * 100], relative=0.01)
    assert not far.passed
    assert far.outputs[0].worst_sample == 1


def test_zeros_in_all_samples_must_be_equal() -> None:
    zeros = np.zeros((2, 4))
    assert judged([zeros], [zeros], relative=0.0, cosine=0.0).passed
    report = judged([zeros], [zeros + 1e-30], relative=0.5)
    assert not report.passed
    assert report.to_json()["outputs"][0]["worst"]["relative"] is None


def test_a_row_that_collapsed_to_zero_points_nowhere() -> None:
    other = LOGITS.copy()
    other[0] = 0
    assert errors(LOGITS, other)[Metric.COSINE] == pytest.approx(1 / 8, rel=1e-9)


def test_masked_positions_do_not_excuse_the_others() -> None:
    truth = np.where(RNG.random(LOGITS.shape) < 0.3, -1e9 + LOGITS, LOGITS)
    other = truth.astype(np.float32)
    assert errors(truth, other)[Metric.RELATIVE] < 1e-6
    wrong = np.where(truth < -1e8, truth, 2 * truth).astype(np.float32)
    assert errors(truth, wrong)[Metric.RELATIVE] == pytest.approx(1.0, rel=0.01)


def test_zeros_that_are_none_are_measured_beside_the_elements_that_agree() -> None:
    truth = np.maximum(LOGITS, 0)
    assert errors(truth, np.where(truth > 0, truth, 1e-9))[Metric.RELATIVE] < 1e-8
    wrong = errors(truth, np.abs(LOGITS))[Metric.RELATIVE]
    size = np.linalg.norm(truth)
    assert wrong == pytest.approx(np.linalg.norm(np.minimum(LOGITS, 0)) / size, rel=1e-9)
    large = truth * 1e9
    assert errors(large, np.where(large > 0, large, 1e-9))[Metric.RELATIVE] < 1e-8


def test_a_probability_that_is_sure_counts_beside_the_small_ones() -> None:
    truth = np.array([[1 - 1e-9, 6e-10, 4e-10]])
    other = np.array([[1.0, 1e-10, 5e-10]], np.float32)
    assert errors(truth, other)[Metric.RELATIVE] < 1e-8


def test_ties_and_margins_below_rounding_are_no_other_answers() -> None:
    truth = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 - 1e-9, 0.0], [1.0, 0.9, 0.0]])
    other = truth[:, [1, 0, 2]].astype(np.float32)
    other[:, 1] += 1e-3
    assert errors(truth, other, Metric.TOP1)[Metric.TOP1] == pytest.approx(1 / 3)


def test_rows_with_masked_logits_are_measured() -> None:
    truth = LOGITS.copy()
    truth[:, 3] = -np.inf
    found = errors(truth, truth.copy(), Metric.KL, Metric.TOP1)
    assert found[Metric.KL] == found[Metric.TOP1] == 0.0


def test_top1_is_held_over_all_samples_and_others_in_the_worst() -> None:
    truths = [row[None] for row in LOGITS]
    wrong = [*truths[1:2], *truths[1:]]
    report = judged(truths, wrong, top1=0.2)
    assert report.passed
    assert report.outputs[0].mean[Metric.TOP1] == pytest.approx(1 / 8)
    assert report.outputs[0].worst[Metric.TOP1] == 1
    report = judged(truths, wrong, top1=0.1)
    assert "share of other answers is 0.125 over all samples" in str(report.sentence)
    report = judged(truths, wrong, top1=0.2, kl=0.01)
    assert "output 'y': its KL divergence" in str(report.sentence)
    assert report.outputs[0].worst_sample == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_or_infinity_is_a_fault_whatever_the_budget(bad: float) -> None:
    other = LOGITS.copy()
    other[2, 3] = bad
    report = judged([LOGITS, LOGITS], [LOGITS, other], relative=1e300)
    assert report.sentence == (
        "output 'y': in sample 1 1 of 80 elements differ in being NaN or infinite"
    )
    assert not judged([other], [LOGITS], relative=1e300).passed
    assert judged([other], [other], relative=0.0).passed


def test_what_float32_cannot_hold_may_be_infinite_there_and_in_float16_nothing_more() -> None:
    truth = np.array([[1.0, -6.8e38]])
    assert judged([truth], [np.array([[1.0, -np.inf]], np.float32)], relative=0.01).passed
    assert not judged([truth], [np.array([[1.0, -np.inf]])], relative=0.01).passed
    overflow = np.array([[1.0, 7e4]])
    assert not judged([overflow], [np.array([[1.0, np.inf]], np.float16)], relative=0.01).passed


def test_a_truth_without_numbers_shows_nothing() -> None:
    report = judged([np.full((2, 2), np.nan)], [np.full((2, 2), np.nan)], relative=0.1)
    assert report.sentence == "output 'y': all of its truth is NaN or infinite"


def test_shapes_and_kinds_of_types_must_match() -> None:
    shape = judged([LOGITS], [LOGITS[:4]], relative=1e300)
    assert shape.sentence == "output 'y': in sample 0 its shape is [4, 10], not [8, 10]"
    kind = judged([LOGITS], [LOGITS.astype(np.int64)], relative=1e300)
    assert kind.sentence == (
        "output 'y': in sample 0 its type is int64, integers, not floating numbers"
    )
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        assert judged([LOGITS], [LOGITS.astype(dtype)], relative=0.01).passed


def test_renamed_and_missing_outputs_are_named() -> None:
    budget = Budget({Metric.RELATIVE: 1.0})
    report = judge_budget([{"y": LOGITS}], [{"y_quantized": LOGITS}], budget)
    assert report.sentence == (
        "output 'y': the changed model has no such output, but 'y_quantized'"
    )
    assert not judge_budget([{"y": LOGITS, "z": LOGITS}], [{"y": LOGITS}], budget).passed
    report = judge_budget([{"y": LOGITS}], [{"y": LOGITS, "z": LOGITS}], budget)
    assert report.sentence == "output 'z': the original has no such output"


def test_integers_and_booleans_differ_in_a_share() -> None:
    truth = np.arange(100)
    other = truth.copy()
    other[:3] += 1
    assert judged([truth], [other], top1=0.03).passed
    assert judged([truth], [other], relative=0.03).passed
    assert not judged([truth], [other], relative=0.02).passed
    assert not judged([truth], [other], relative=0.05, top1=0.02).passed
    assert not judged([truth], [other], cosine=0.5).passed
    assert not judged([truth > 50], [truth > 49], cosine=0.5).passed
    assert judged([np.array(["a", "b"], object)], [np.array(["a", "b"], object)], kl=0.0).passed


def test_an_output_that_no_metric_measures_is_refused() -> None:
    scalars = np.array([[1.0], [2.0]])
    report = judged([scalars], [scalars], top1=0.1)
    assert report.sentence == (
        "output 'y': of shape [2, 1] it has no top1 error: limit the relative one too"
    )
    assert judged([scalars], [scalars], top1=0.1, relative=0.0).passed
    assert judged([np.array(2.0)], [np.array(2.0)], relative=0.0).passed


def test_complex_numbers_count_as_pairs_and_empty_outputs_as_equal() -> None:
    wave = np.exp(1j * LOGITS).astype(np.complex64)
    assert judged([wave], [wave], relative=0.0, cosine=0.0).passed
    assert not judged([wave], [wave.conj()], relative=0.1).passed
    empty = np.zeros((0, 4))
    assert judged([empty], [empty], relative=0.0, cosine=0.0, kl=0.0, top1=0.0).passed


def test_budgets_that_make_no_sense() -> None:
    for limits in ({}, {Metric.KL: -1.0}, {Metric.KL: float("nan")}, {Metric.KL: float("inf")}):
        with pytest.raises(UsageError):
            Budget(limits)
    with pytest.raises(UsageError, match="fp16, bf16, int8, int4"):
        Budget.default("fp8")
    with pytest.raises(UsageError, match="0 samples"):
        judge_budget([], [], Budget.default("int8"))


def test_the_report_is_json() -> None:
    record = judged([LOGITS], [LOGITS * 1.1], relative=0.01).to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert "relative error is 0.1 in sample 0, and the budget allows 0.01" in str(
        record["sentence"]
    )
