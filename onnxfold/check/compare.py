"""Check whether the rewritten model computes what the original does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from onnxfold.check.blame import Blame, blame, broken
from onnxfold.check.budget import Budget
from onnxfold.check.criterion import AcceptanceCriterion
from onnxfold.check.result import BudgetVerification, Verification
from onnxfold.check.runners import CannotRun, OnnxRuntime
from onnxfold.check.traps import traps
from onnxfold.check.truth import Progress, Truth, TruthOptions, judged, truth_of, within
from onnxfold.errors import UsageError, VerificationError
from onnxfold.model_io.load import Source
from onnxfold.option_checks import check_number
from onnxfold.options import DEFAULT_NOISE_LIMIT


def verify(
    original: Source,
    rewritten: Source,
    *,
    limit: float = DEFAULT_NOISE_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Progress | None = None,
    find_blame: bool = False,
    **asked: Unpack[TruthOptions],
) -> Verification:
    """Compare two models on seeded inputs by the criterion of `onnxfold.check.criterion`.

    The truth is a float64 run of the original. Both models run in their own precision, in ONNX
    Runtime if possible, otherwise in the interpreter. `rtol` or `atol` replace the criterion by
    bounds on the distance to the truth. If no float64 run is possible, both are compared in ONNX
    Runtime without optimizations, and the noise is that between the original with and without
    them. `find_blame`: name the nodes at fault if the check fails. `asked`: of the original's run
    (`truth_of`).

    Raises UsageError for invalid options or inputs, ModelError if the original cannot be run,
    VerificationError if the rewritten model cannot be run or nothing can be compared.
    """
    criterion = _criterion(limit, rtol, atol)
    truth = _truth(original, rewritten, progress, asked, strict=True)
    verification = judged(original, rewritten, truth, criterion)
    if find_blame and not verification.passed:
        blamed, notes = _blamed(original, rewritten, truth)
        verification = replace(verification, blame=blamed, notes=notes)
    _end(progress, truth)
    return verification


def verify_within(
    original: Source,
    changed: Source,
    budget: Budget,
    *,
    progress: Progress | None = None,
    find_blame: bool = False,
    **asked: Unpack[TruthOptions],
) -> BudgetVerification:
    """Compare a model of reduced precision with a float64 run of the original, by a budget.

    Options and errors are as in `verify`.
    """
    truth = _truth(original, changed, progress, asked, strict=False)
    report = within(changed, truth, budget)
    blamed: tuple[Blame, ...] = ()
    notes = traps(original, changed) + _unloadable(changed, asked.get("providers") or ())
    if report.passed:
        blamed = _broken(original, changed, truth, budget)
        if blamed:
            sentence = f"the outputs are right, but {blamed[0].fault}"
            report = replace(report, passed=False, sentence=sentence)
    elif find_blame:
        blamed, unknown = _blamed(original, changed, truth)
        notes += unknown
    _end(progress, truth)
    return BudgetVerification(
        passed=report.passed,
        runtime=truth.evidence.runtime,
        samples=len(truth.feeds),
        method=truth.method,
        reason=truth.reason,
        budget=budget,
        report=report,
        notes=notes,
        blame=blamed,
    )


def _unloadable(changed: Source, providers: Sequence[str]) -> tuple[str, ...]:
    """Return which of several providers reject a model when used alone, and why."""
    found = []
    for provider in providers if len(providers) > 1 else ():
        try:
            OnnxRuntime((provider,)).run(changed, [], optimize=True)
        except CannotRun as error:
            found.append(f"{provider} alone rejects it: {error}")
    return tuple(found)


def _truth(
    original: Source,
    changed: Source,
    progress: Progress | None,
    asked: TruthOptions,
    *,
    strict: bool,
) -> Truth:
    """Run the original, which is the first third of the work."""
    check_interface(original, changed)

    def third(count: int, total: int) -> None:
        if progress is not None:
            progress(count, 3 * total)

    return truth_of(original, progress=third, strict=strict, **asked)


def _end(progress: Progress | None, truth: Truth) -> None:
    total = 3 * len(truth.feeds)
    if progress is not None:
        progress(total, total)


def _broken(original: Source, changed: Source, truth: Truth, budget: Budget) -> tuple[Blame, ...]:
    """Return nodes that are wrong by themselves; empty if ONNX Runtime cannot run both."""
    engine = truth.evidence.engine
    if engine is None:
        return ()
    try:
        return broken(original, changed, truth.feeds, truth.outputs, budget.relative, engine)
    except CannotRun:
        return ()


def _blamed(
    original: Source, changed: Source, truth: Truth
) -> tuple[tuple[Blame, ...], tuple[str, ...]]:
    """Return the nodes at fault, and why none are known."""
    engine = truth.evidence.engine
    if engine is None:
        return (), (f"no node is blamed: the models ran in the {truth.evidence.runtime}",)
    try:
        blamed = blame(original, changed, truth.feeds, truth.outputs, engine)
    except CannotRun as error:
        return (), (f"no node is blamed: {error}",)
    return blamed, () if blamed else ("no node is blamed: none that both have explains the error",)


def _criterion(limit: float, rtol: float | None, atol: float | None) -> AcceptanceCriterion:
    if not limit > 0:
        raise UsageError(f"the limit of the noise ratio must be positive, not {limit}")
    check_number("rtol", rtol)
    check_number("atol", atol)
    if rtol is None and atol is None:
        return AcceptanceCriterion(limit)
    return AcceptanceCriterion(limit, (rtol or 0.0, atol or 0.0))


def check_interface(original: Source, changed: Source) -> None:
    """Raise VerificationError if inputs or outputs differ in name or order."""
    for kind in ("inputs", "outputs"):
        before, after = (
            [str(v.name) for v in getattr(source.model.graph, kind) if not v.is_initializer()]
            for source in (original, changed)
        )
        if before != after:
            raise VerificationError(
                f"{changed.label}: its {kind} are {', '.join(after)}, not {', '.join(before)}; "
                "models are compared by these names"
            )
