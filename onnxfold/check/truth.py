"""The original's outputs on inputs, computed once, and other models compared with them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np

from onnxfold.check.budget import Budget, BudgetReport, judge_budget
from onnxfold.check.common_values import locate
from onnxfold.check.criterion import SMALLEST_NORMAL, AcceptanceCriterion, Judgement, judge
from onnxfold.check.evidence import (
    MOST_RUNS,
    RUNS,
    Evidence,
    against_itself,
    gather,
    run_changed,
    with_more_noise,
    without_overflow,
)
from onnxfold.check.float64_runs import FLOAT64_LIMIT_BYTES, OwnRuns, Sampled, sample, sample_given
from onnxfold.check.reference import is_code, is_wide_float
from onnxfold.check.result import FAR, OutputCheck, Verification
from onnxfold.check.runners import Feeds, OnnxRuntime, Outputs
from onnxfold.errors import ModelError, UsageError
from onnxfold.graph import node_label, operator
from onnxfold.inputs import ROWS, InputSpec
from onnxfold.model_io.load import Source
from onnxfold.option_checks import check_count
from onnxfold.options import DEFAULT_NOISE_LIMIT
from onnxfold.runtime.sessions import available_bytes

Progress = Callable[[int, int], None]
Found = dict[str, list[Judgement]]


@dataclass(frozen=True, slots=True)
class Truth:
    """Inputs, the first ``drawn`` of them drawn, and the original's results for them.

    single: why drawn batches have one row, if the original runs on no others. rows: the kinds of
    rows in the last of the drawn samples.
    """

    evidence: Evidence
    drawn: int
    seed: int
    single: str | None = None
    rows: tuple[str, ...] = ()
    _noisier: dict[tuple[str, ...], Evidence] = field(default_factory=dict, repr=False)

    @property
    def feeds(self) -> Sequence[Feeds]:
        """The inputs of each sample."""
        return self.evidence.feeds

    @property
    def outputs(self) -> Sequence[Outputs]:
        """The truth for each sample: float64, or unoptimized ONNX Runtime's for the `reason`."""
        return self.evidence.truths

    @property
    def method(self) -> str:
        """The kind of truth: "float64", or "onnxruntime" if no float64 run is possible."""
        return self.evidence.method

    @property
    def reason(self) -> str | None:
        """Why there is only ONNX Runtime's truth, or None."""
        return self.evidence.reason

    def noisier(self, original: Source, names: Sequence[str]) -> Evidence:
        """Return evidence with further runs of the original, for outputs that failed at first."""
        key = tuple(names)
        if key not in self._noisier:
            self._noisier[key] = with_more_noise(
                self.evidence, original, self.feeds, names, self.seed
            )
        return self._noisier[key]


class TruthOptions(TypedDict, total=False):
    """The options of `truth_of`, for those who pass them on."""

    spec: InputSpec | None
    samples: int
    seed: int
    data: Sequence[Outputs]
    providers: Sequence[str] | None
    memory_bytes: int | None
    float64_limit_bytes: int
    rows: bool


def truth_of(  # noqa: PLR0913  # each is an option of the command line
    source: Source,
    *,
    spec: InputSpec | None = None,
    samples: int = 2,
    seed: int = 0,
    data: Sequence[Outputs] = (),
    providers: Sequence[str] | None = None,
    memory_bytes: int | None = None,
    float64_limit_bytes: int = FLOAT64_LIMIT_BYTES,
    progress: Progress | None = None,
    rows: bool = False,
    strict: bool = False,
) -> Truth:
    """Run the original in float64 and in its own precision, on drawn inputs and on data.

    If no float64 run is possible (an operator without a kernel, a tensor of more than
    `float64_limit_bytes`, too many parameters), the truth is its run in ONNX Runtime without
    optimizations. `memory_bytes`: how much memory the runs may use, by default most of what is
    free. `rows`: each kind of row that is hard for norms (`onnxfold.inputs.ROWS`) adds a sample if
    the original stays in its range on it. `strict`: the truth is for `judged`, which
    uses no float64 run that the original's own are far from, so that none is made if it is known.

    Raises UsageError for invalid options or inputs, ModelError if the original cannot be run,
    VerificationError if there is nothing to compare with.
    """
    check_count("samples", samples)
    total = samples + len(data) + len(ROWS) * rows
    if not total:
        raise UsageError(f"a verification needs at least 1 sample, not {total}")
    memory_bytes = available_bytes() if memory_bytes is None else memory_bytes
    if memory_bytes is not None:
        if memory_bytes < 1:
            raise UsageError(f"the memory of a verification must be positive, not {memory_bytes}")
        float64_limit_bytes = min(float64_limit_bytes, memory_bytes // 2)
    own = OwnRuns(source, OnnxRuntime.of(providers, memory_bytes))

    def done(count: int) -> None:
        if progress is not None:
            progress(count, total)

    sampled = Sampled([], [], "")
    if samples:
        sampled = sample(
            source.model,
            spec or InputSpec(),
            count=samples,
            seed=seed,
            limit_bytes=float64_limit_bytes,
            done=done,
            rows=rows,
            own=own if strict else None,
        )
    drawn = len(sampled.feeds)
    if data:
        given = Sampled([*data], None, sampled.reason)
        if sampled.truths is not None:
            given = sample_given(
                source.model,
                data,
                limit_bytes=float64_limit_bytes,
                done=lambda count: done(drawn + count),
                own=own if strict else None,
            )
        sampled = _joined(sampled, given)
    evidence, kinds = without_overflow(gather(sampled, own, seed), range(samples, drawn))
    done(total)
    named = tuple(ROWS[number - samples] for number in kinds)
    return Truth(evidence, samples + len(kinds), seed, sampled.single, named)


def _joined(drawn: Sampled, given: Sampled) -> Sampled:
    feeds = [*drawn.feeds, *given.feeds]
    if drawn.truths is None or given.truths is None:
        others = tuple([*other, *given.feeds] for other in drawn.others)
        reason = drawn.reason or given.reason
        return Sampled(
            feeds, None, reason, drawn.single, others, drawn.scattered or given.scattered
        )
    return Sampled(feeds, [*drawn.truths, *given.truths], "", drawn.single)


def within(changed: Source, truth: Truth, budget: Budget) -> BudgetReport:
    """Judge whether a changed model, run in ONNX Runtime, is within an error budget of the truth.

    Raises VerificationError if it does not run.
    """
    evidence = truth.evidence
    outputs = run_changed(changed, truth.feeds, evidence.engine, optimize=True)
    report = judge_budget(evidence.truths, outputs, budget)
    if report.passed or judge_budget(evidence.truths, evidence.originals[0], budget).passed:
        return report
    return replace(report, sentence=f"{report.sentence}; the original itself is not within it")


def judged(
    original: Source,
    changed: Source,
    truth: Truth,
    criterion: AcceptanceCriterion | None = None,
    outputs: Callable[[bool], list[Outputs]] | None = None,
) -> Verification:
    """Judge whether a changed model errs no more than the original, by the strict criterion.

    `outputs` gives what it computes, with graph optimizations or without, for a caller who runs it;
    otherwise ONNX Runtime does, as it ran the original. Raises VerificationError where it does not
    run.
    """
    criterion = criterion or AcceptanceCriterion(DEFAULT_NOISE_LIMIT)
    feeds, seed, evidence = truth.feeds, truth.seed, truth.evidence
    names = [str(v.name) for v in original.model.graph.outputs]
    used = dict.fromkeys(names, evidence)
    found: Found = {}

    @lru_cache
    def run(optimize: bool) -> list[Outputs]:
        if outputs is not None:
            return outputs(optimize)
        return run_changed(changed, feeds, evidence.engine, optimize=optimize)

    def judge_by(other: Evidence, outputs: Sequence[str]) -> None:
        used.update(dict.fromkeys(outputs, other))
        rewritten = run(other.optimize)
        found.update({name: _judged(name, other, rewritten, criterion) for name in outputs})

    judge_by(evidence, names)
    failed = [name for name in names if _fault(found[name]) is not None]
    if failed and criterion.tolerance is None:
        judge_by(truth.noisier(original, failed), failed)
    far = [
        name for name in names if _fault(found[name]) is None and _is_far(found[name], used[name])
    ]
    engine, itself = evidence.engine, evidence
    for runs in (RUNS, MOST_RUNS):
        if far and criterion.tolerance is None and engine is not None:
            itself = against_itself(itself, original, feeds, far, engine, seed, runs)
            judge_by(itself, far)
            far = [name for name in far if _fault(found[name]) is not None]
    checks = [
        _check(name, run(used[name].optimize)[0][name].dtype, found[name], used[name], criterion)
        for name in names
    ]
    passed = all(check.passed for check in checks)
    pair = (original, changed)
    return Verification(
        passed=passed,
        runtime=evidence.runtime,
        samples=len(feeds),
        limit=criterion.limit,
        outputs=tuple(checks),
        pieces=_pieces(pair, evidence),
        worst=None if passed else _worst(pair, feeds, found, checks),
        single=truth.single,
        rows=truth.rows,
    )


def _pieces(pair: tuple[Source, Source], evidence: Evidence) -> int:
    """Return in how many pieces ONNX Runtime ran the larger model; 1 if both were whole."""
    engine = evidence.engine
    if engine is None:
        return 1
    large = [source.model for source in pair if not engine.fits(source.model)]
    return max((len(engine.pieces(model).pieces) for model in large), default=1)


def _judged(
    name: str, evidence: Evidence, rewritten: Sequence[Outputs], criterion: AcceptanceCriterion
) -> list[Judgement]:
    judgements = []
    for number, truth in enumerate(evidence.truths):
        changed = rewritten[number][name]
        judgements.append(
            judge(
                truth[name],
                [originals[number][name] for originals in evidence.originals],
                changed,
                roundoff=evidence.least_noise(changed.dtype),
                criterion=criterion,
            )
        )
    return judgements


def _fault(judgements: Iterable[Judgement]) -> str | None:
    return next((j.fault for j in judgements if j.fault is not None), None)


def _is_far(judgements: Iterable[Judgement], evidence: Evidence) -> bool:
    """Whether the original in ONNX Runtime is further from the truth than rounding explains."""
    return evidence.method == "float64" and any(
        each.size > 0 and each.original_rms_error > max(FAR * each.size, SMALLEST_NORMAL)
        for each in judgements
    )


def _check(
    name: str,
    dtype: np.dtype[Any],
    judgements: Sequence[Judgement],
    evidence: Evidence,
    criterion: AcceptanceCriterion,
) -> OutputCheck:
    counts = np.asarray([truth[name].size for truth in evidence.truths], dtype=np.float64)

    def pooled(errors: Iterable[float]) -> float:
        squares = np.square(np.fromiter(errors, dtype=np.float64))
        return float(np.sqrt(np.sum(counts * squares) / max(counts.sum(), 1.0)))

    if criterion.tolerance is not None:
        allowed = "the tolerance that was given"
    elif not is_wide_float(dtype):
        allowed = "integers must be equal, save where the original's own runs differ"
        if is_code(dtype):
            allowed += f", and codes be the next in {criterion.limit:g} times as many places"
    else:
        allowed = f"{criterion.limit:g} times the original's noise: {evidence.noise}"
    return OutputCheck(
        name=name,
        dtype=str(dtype),
        method=evidence.method,
        bound=max(j.bound for j in judgements),
        allowed=allowed,
        reason=evidence.reason,
        relative_noise=max(
            (j.original_rms_error / j.size for j in judgements if j.size), default=0.0
        ),
        max_abs_error=max(j.max_abs_error for j in judgements),
        rms_error=pooled(j.rms_error for j in judgements),
        original_rms_error=pooled(j.original_rms_error for j in judgements),
        noise_ratio=max(j.noise_ratio for j in judgements),
        passed=_fault(judgements) is None,
        elements=sum(truth[name].size for truth in evidence.truths),
        compared=sum(j.compared for j in judgements),
    )


def _worst(
    pair: tuple[Source, Source],
    feeds: Sequence[Feeds],
    found: Found,
    checks: Sequence[OutputCheck],
) -> str:
    check = max((c for c in checks if not c.passed), key=lambda c: c.noise_ratio)
    judgements = found[check.name]
    sentence = f"output {check.name!r}: {_fault(judgements)}"
    if check.method != "float64":  # no float64 run can tell the nodes apart
        return sentence
    at = max(range(len(judgements)), key=lambda n: judgements[n].noise_ratio)
    try:
        node = locate(pair[0].model, pair[1].model, feeds[at])
    except ModelError:
        return sentence
    if node is None:
        return sentence
    return f"{sentence}; the first node that differs is {node_label(node)!r} ({operator(node)})"
