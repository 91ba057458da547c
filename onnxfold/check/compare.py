"""Does the rewritten model compute what the original does."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from onnxfold.check.criterion import AcceptanceCriterion, Judgement, Tolerance, judge
from onnxfold.check.evidence import (
    FLOAT64_LIMIT_BYTES,
    MOST_RUNS,
    RUNS,
    Evidence,
    Pair,
    against_itself,
    gather,
    sample,
    with_more_noise,
    within_range,
)
from onnxfold.check.locate import locate
from onnxfold.check.memory import available_bytes
from onnxfold.check.reference import is_code, is_wide_float
from onnxfold.check.result import FAR, ModelSource, OutputCheck, Verification
from onnxfold.check.runners import Feeds, OnnxRuntime
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.graph import node_label, operator
from onnxfold.inputs import ROWS, InputSpec
from onnxfold.options import DEFAULT_NOISE_LIMIT, check_number

Progress = Callable[[int, int], None]
Found = dict[str, list[Judgement]]


def verify(  # noqa: PLR0913  # each is an option of the command line
    original: ModelSource,
    rewritten: ModelSource,
    *,
    samples: int = 2,
    seed: int = 0,
    spec: InputSpec | None = None,
    limit: float = DEFAULT_NOISE_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress | None = None,
    float64_limit_bytes: int = FLOAT64_LIMIT_BYTES,
    memory_bytes: int | None = None,
    rows: bool = False,
) -> Verification:
    """Compares two models on seeded inputs by the criterion of `onnxfold.check.criterion`.

    The truth is a float64 run of the original. Both models run in their own precision, by ONNX
    Runtime if it can, else by the interpreter. `rtol` or `atol` replace the criterion by bounds on
    the distance to the truth. Where no float64 run can be had (an operator without a kernel, a
    tensor of more than `float64_limit_bytes`, too many parameters), both are compared in ONNX
    Runtime without optimizations, and the noise is that between the original with and without them.
    `memory_bytes`: what the comparison may take, by default most of what is free; models that take
    more run in pieces, one after the other. `rows`: each kind of rows that norms are hurt by
    (`onnxfold.inputs.ROWS`) is a sample more, where the original stays in its range on it.

    Raises UsageError for options or inputs that make no sense, ModelError where the original cannot
    be run, VerificationError where the rewritten model cannot be run or nothing can be compared.
    """
    criterion = _criterion(samples, limit, rtol, atol)
    pair = (original, rewritten)
    _check_interface(pair)
    memory_bytes = available_bytes() if memory_bytes is None else memory_bytes
    if memory_bytes is not None:
        if memory_bytes < 1:
            raise UsageError(f"the memory of a verification must be positive, not {memory_bytes}")
        float64_limit_bytes = min(float64_limit_bytes, memory_bytes // 2)
    engine = OnnxRuntime.of(providers, memory_bytes)
    steps = 3 * (samples + len(ROWS) * rows)

    def done(count: int) -> None:
        if progress is not None:
            progress(count, steps)

    sampled = sample(
        original.model,
        spec or InputSpec(),
        count=samples,
        seed=seed,
        limit_bytes=float64_limit_bytes,
        done=done,
        rows=rows,
    )
    feeds, evidence, kinds = within_range(sampled, gather(pair, sampled, engine), samples)
    done(steps)
    found = _concluded(pair, feeds, evidence, criterion, seed)
    return replace(found, single=sampled.single, rows=tuple(ROWS[kind] for kind in kinds))


def _criterion(
    samples: int, limit: float, rtol: float | None, atol: float | None
) -> AcceptanceCriterion:
    if samples < 1:
        raise UsageError(f"a verification needs at least 1 sample, not {samples}")
    if not limit > 0:
        raise UsageError(f"the limit of the noise ratio must be positive, not {limit}")
    check_number("rtol", rtol)
    check_number("atol", atol)
    if rtol is None and atol is None:
        return AcceptanceCriterion(limit)
    return AcceptanceCriterion(limit, Tolerance(rtol or 0.0, atol or 0.0))


def _check_interface(pair: Pair) -> None:
    for kind in ("inputs", "outputs"):
        before, after = (
            [str(v.name) for v in getattr(source.model.graph, kind) if not v.is_initializer()]
            for source in pair
        )
        if before != after:
            raise VerificationError(
                f"{pair[1].label}: its {kind} are {', '.join(after)}, not {', '.join(before)}"
            )


def _concluded(
    pair: Pair,
    feeds: Sequence[Feeds],
    evidence: Evidence,
    criterion: AcceptanceCriterion,
    seed: int,
) -> Verification:
    names = [str(v.name) for v in pair[0].model.graph.outputs]
    used = dict.fromkeys(names, evidence)
    found: Found = {}

    def judge_by(other: Evidence, outputs: Sequence[str]) -> None:
        used.update(dict.fromkeys(outputs, other))
        found.update({name: _judged(name, other, criterion) for name in outputs})

    judge_by(evidence, names)
    failed = [name for name in names if _fault(found[name]) is not None]
    if failed and criterion.tolerance is None:
        judge_by(with_more_noise(evidence, pair, feeds, failed, seed), failed)
    far = [
        name for name in names if _fault(found[name]) is None and _is_far(found[name], used[name])
    ]
    itself = evidence
    for runs in (RUNS, MOST_RUNS):
        if far and criterion.tolerance is None and evidence.engine is not None:
            itself = against_itself(itself, pair, feeds, far, evidence.engine, seed, runs)
            judge_by(itself, far)
            far = [name for name in far if _fault(found[name]) is not None]
    checks = [_check(name, found[name], used[name], criterion) for name in names]
    passed = all(check.passed for check in checks)
    return Verification(
        passed=passed,
        runtime=evidence.runtime,
        samples=len(feeds),
        limit=criterion.limit,
        outputs=tuple(checks),
        pieces=_pieces(pair, evidence),
        worst=None if passed else _worst(pair, feeds, found, checks),
    )


def _pieces(pair: Pair, evidence: Evidence) -> int:
    """In how many pieces ONNX Runtime ran the model with more of them; 1 where both were whole."""
    engine = evidence.engine
    if engine is None:
        return 1
    large = [source.model for source in pair if not engine.fits(source.model)]
    return max((len(engine.pieces(model).pieces) for model in large), default=1)


def _judged(name: str, evidence: Evidence, criterion: AcceptanceCriterion) -> list[Judgement]:
    judgements = []
    for number, truth in enumerate(evidence.truths):
        changed = evidence.rewritten[number][name]
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
    """Whether the original in ONNX Runtime is further from the truth than rounding takes it."""
    return evidence.method == "float64" and any(
        judgement.original_rms_error > FAR * judgement.size > 0 for judgement in judgements
    )


def _check(
    name: str, judgements: Sequence[Judgement], evidence: Evidence, criterion: AcceptanceCriterion
) -> OutputCheck:
    counts = np.asarray([truth[name].size for truth in evidence.truths], dtype=np.float64)

    def pooled(errors: Iterable[float]) -> float:
        squares = np.square(np.fromiter(errors, dtype=np.float64))
        return float(np.sqrt(np.sum(counts * squares) / max(counts.sum(), 1.0)))

    dtype = evidence.rewritten[0][name].dtype
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


def _worst(pair: Pair, feeds: Sequence[Feeds], found: Found, checks: Sequence[OutputCheck]) -> str:
    check = max((c for c in checks if not c.passed), key=lambda c: c.noise_ratio)
    judgements = found[check.name]
    sentence = f"output {check.name!r}: {_fault(judgements)}"
    if check.method != "float64":  # no float64 run tells them apart, so there is none to look into
        return sentence
    at = max(range(len(judgements)), key=lambda n: judgements[n].noise_ratio)
    try:
        node = locate(pair[0].model, pair[1].model, feeds[at])
    except ModelError:
        return sentence
    if node is None:
        return sentence
    return f"{sentence}; the first node that differs is {node_label(node)!r} ({operator(node)})"
