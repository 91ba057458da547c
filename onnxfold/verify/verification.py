"""Does the rewritten model compute what the original does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError, UsageError, VerificationError
from onnxfold.graph import node_label, operator
from onnxfold.inputs import IMAGE_SIDES, InputSpec, make_inputs
from onnxfold.reference import (
    Array,
    Precision,
    UnsupportedOperator,
    check_supported,
    is_floating,
    run,
    unit_roundoff,
)
from onnxfold.verify.law import Judgement, Law, Tolerance, judge
from onnxfold.verify.locate import locate
from onnxfold.verify.result import ModelSource, OutputCheck, Verification
from onnxfold.verify.runners import (
    CannotRun,
    Feeds,
    OnnxRuntime,
    disturbed,
    native,
    why_not_onnxruntime,
)

__all__ = ["DEFAULT_LIMIT", "FLOAT64_LIMIT_BYTES", "FLOAT64_LIMIT_PARAMETERS", "verify"]

# What a fold may do: it rounds each changed weight once more, and takes fewer operations.
DEFAULT_LIMIT = 4.0
# Largest tensor in float64 that the truth may need at once.
FLOAT64_LIMIT_BYTES = 2 << 30
# Beyond this many parameters a float64 run takes minutes per sample.
FLOAT64_LIMIT_PARAMETERS = 3_000_000_000
# Below this many elements luck decides on rms errors, so noise is drawn several times.
_FEW, _DRAWS = 64, 8

Progress = Callable[[int, int], None]
Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the models computed, per sample: truths, originals (several runs), rewritten."""

    method: str
    runtime: str
    truths: list[Outputs]
    originals: list[list[Outputs]]
    rewritten: list[Outputs]
    depth: int


def verify(  # noqa: PLR0913  # each is an option of the command line
    original: ModelSource,
    rewritten: ModelSource,
    *,
    samples: int = 2,
    seed: int = 0,
    spec: InputSpec | None = None,
    limit: float = DEFAULT_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress | None = None,
    float64_limit_bytes: int = FLOAT64_LIMIT_BYTES,
) -> Verification:
    """Compares two models on seeded inputs by the law of `onnxfold.verify.law`.

    The truth is a float64 run of the original. Both models run in their own precision, by ONNX
    Runtime if it can, else by the interpreter. `rtol` or `atol` replace the law by bounds on the
    distance to the truth. Where no float64 run can be had (an operator without a kernel, a tensor
    of more than `float64_limit_bytes`, too many parameters), both are compared in ONNX Runtime
    without optimizations, and the noise is that between the original with and without them.

    Raises UsageError for options or inputs that make no sense, ModelError where the original cannot
    be run, VerificationError where the rewritten model cannot be run or nothing can be compared.
    """
    if samples < 1:
        raise UsageError(f"a verification needs at least 1 sample, not {samples}")
    law = Law(limit, _tolerance(rtol, atol))
    _check_interface(original, rewritten)
    runtime = OnnxRuntime(tuple(providers)) if providers else OnnxRuntime()
    steps = _Steps(progress, 3 * samples)
    feeds, truths, reason = _sampled(
        original.model, spec or InputSpec(), samples, seed, float64_limit_bytes, steps
    )
    if truths is not None:
        evidence = _against_truth(original, rewritten, feeds, truths, runtime)
    else:
        evidence = _against_runtime(original, rewritten, feeds, runtime, reason)
    steps.done(3 * samples)
    return _concluded((original, rewritten), feeds, evidence, law, seed)


@dataclass(slots=True)
class _Steps:
    listener: Progress | None
    total: int

    def done(self, count: int) -> None:
        if self.listener is not None:
            self.listener(count, self.total)


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    return None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)


def _check_interface(original: ModelSource, rewritten: ModelSource) -> None:
    for kind in ("inputs", "outputs"):
        before, after = (
            [str(v.name) for v in getattr(source.model.graph, kind) if not v.is_initializer()]
            for source in (original, rewritten)
        )
        if before != after:
            raise VerificationError(
                f"{rewritten.label}: its {kind} are {', '.join(after)}, not {', '.join(before)}"
            )


def _sampled(
    model: ir.Model, spec: InputSpec, samples: int, seed: int, limit_bytes: int, steps: _Steps
) -> tuple[list[Outputs], list[Outputs] | None, str]:
    """Inputs with their truths, or None for these and the reason.

    Pictures of open size are tried in several sizes, for a model may take but one of them.
    """
    first: tuple[list[Outputs], list[Outputs] | None, str] | None = None
    shapes: set[tuple[tuple[int, ...], ...]] = set()
    for side in IMAGE_SIDES:
        feeds = make_inputs(model, spec, count=samples, seed=seed, image_side=side)
        shape = tuple(array.shape for array in feeds[0].values())
        if shape in shapes:
            break
        shapes.add(shape)
        truths, reason = _truths(model, feeds, limit_bytes, steps)
        if truths is not None:
            return feeds, truths, ""
        first = first or (feeds, None, reason)
    if first is None:
        raise InvariantError("no inputs were made")
    return first


def _truths(
    model: ir.Model, feeds: Sequence[Feeds], limit_bytes: int, steps: _Steps
) -> tuple[list[Outputs] | None, str]:
    """Float64 outputs for each sample, or None and the reason."""
    sizes = [t.size for v in model.graph.initializers.values() if (t := v.const_value) is not None]
    if sum(sizes) > FLOAT64_LIMIT_PARAMETERS:
        return None, f"{sum(sizes):,} parameters are too many for a float64 run"
    if 8 * max(sizes, default=0) > limit_bytes:
        return None, f"a weight of {max(sizes):,} elements is too large for a float64 run"

    def bounded(value: ir.Value, array: Array) -> Array:
        if array.nbytes > limit_bytes:
            raise UnsupportedOperator(f"value {value.name!r} is too large for a float64 run")
        return array

    truths = []
    try:
        check_supported(model)
        for number, sample in enumerate(feeds):
            truths.append(run(model, sample, precision=Precision.FLOAT64, observe=bounded))
            steps.done(number + 1)
    except ModelError as error:
        return None, str(error)
    return truths, ""


def _against_truth(
    original: ModelSource,
    rewritten: ModelSource,
    feeds: Sequence[Feeds],
    truths: list[Outputs],
    runtime: OnnxRuntime,
) -> _Evidence:
    depth = _depth(original.model)
    reason = why_not_onnxruntime(original.model)
    if reason is None:
        try:
            originals = [runtime.run(original, feeds, optimize=on) for on in (True, False)]
        except CannotRun as error:
            reason = str(error)
        else:
            changed = _run_rewritten(runtime, rewritten, feeds, optimize=True)
            return _Evidence("float64", runtime.label, truths, originals, changed, depth)
    originals = [native(original.model, feeds)]
    changed = native(rewritten.model, feeds)
    label = f"interpreter ({reason})"
    return _Evidence("float64", label, truths, originals, changed, depth)


def _against_runtime(
    original: ModelSource,
    rewritten: ModelSource,
    feeds: Sequence[Feeds],
    runtime: OnnxRuntime,
    reason: str,
) -> _Evidence:
    missing = why_not_onnxruntime(original.model)
    if missing is not None:
        raise VerificationError(
            f"{original.label} cannot be verified: no float64 run ({reason}), and {missing}"
        )
    try:
        plain, optimized = (runtime.run(original, feeds, optimize=on) for on in (False, True))
    except CannotRun as error:
        raise ModelError(
            f"{original.label} does not run on the inputs {_shown(feeds[0])}; if they do not suit "
            f"the model, give others with --inputs ({error})"
        ) from error
    changed = _run_rewritten(runtime, rewritten, feeds, optimize=False)
    label = f"{runtime.label} (no float64 run: {reason})"
    return _Evidence("onnxruntime", label, plain, [optimized], changed, _depth(original.model))


def _shown(feeds: Feeds) -> str:
    return ", ".join(f"{name}:{','.join(map(str, x.shape))}" for name, x in feeds.items())


def _run_rewritten(
    runtime: OnnxRuntime, rewritten: ModelSource, feeds: Sequence[Feeds], *, optimize: bool
) -> list[Outputs]:
    try:
        return runtime.run(rewritten, feeds, optimize=optimize)
    except CannotRun as error:
        raise VerificationError(f"the rewritten model does not run: {error}") from error


def _depth(model: ir.Model) -> int:
    """Nodes on the longest path through the main graph."""
    depth: dict[ir.Value, int] = {}
    for node in model.graph:
        level = 1 + max((depth.get(v, 0) for v in node.inputs if v is not None), default=0)
        depth.update(dict.fromkeys(node.outputs, level))
    return max(depth.values(), default=1)


def _concluded(
    pair: tuple[ModelSource, ModelSource],
    feeds: Sequence[Feeds],
    evidence: _Evidence,
    law: Law,
    seed: int,
) -> Verification:
    original, rewritten = pair
    names = [str(v.name) for v in original.model.graph.outputs]
    found = {name: _judged(name, evidence, law) for name in names}
    suspects = [name for name, judgements in found.items() if _fault(judgements) is not None]
    if suspects and law.tolerance is None and evidence.method == "float64":
        evidence = _with_more_noise(original.model, feeds, evidence, suspects, seed)
        found.update({name: _judged(name, evidence, law) for name in suspects})
    checks = tuple(_check(name, found[name], evidence) for name in names)
    passed = all(check.passed for check in checks)
    return Verification(
        passed=passed,
        method=evidence.method,
        runtime=evidence.runtime,
        samples=len(feeds),
        max_abs_error=max((c.max_abs_error for c in checks), default=0.0),
        noise_ratio=max((c.noise_ratio for c in checks), default=0.0),
        limit=law.limit,
        outputs=checks,
        worst=None if passed else _worst(original, rewritten, feeds, found, checks),
    )


def _judged(name: str, evidence: _Evidence, law: Law) -> list[Judgement]:
    judgements = []
    for number, truth in enumerate(evidence.truths):
        changed = evidence.rewritten[number][name]
        judgements.append(
            judge(
                truth[name],
                [originals[number][name] for originals in evidence.originals],
                changed,
                roundoff=_floor(changed.dtype, evidence),
                law=law,
            )
        )
    return judgements


def _floor(dtype: np.dtype[np.generic], evidence: _Evidence) -> float:
    """The least relative noise to assume: u, or u sqrt(depth) where the truth is no better.

    A float64 truth of a float64 model errs as the model does, and so does the unoptimized original
    as a truth; roundings of `depth` nodes in a row add up as a random walk.
    """
    if not is_floating(dtype):
        return 0.0
    wide = evidence.method == "float64" and dtype != np.float64
    return unit_roundoff(dtype) * (1.0 if wide else float(np.sqrt(evidence.depth)))


def _fault(judgements: Iterable[Judgement]) -> str | None:
    return next((j.fault for j in judgements if j.fault is not None), None)


def _with_more_noise(
    model: ir.Model,
    feeds: Sequence[Feeds],
    evidence: _Evidence,
    suspects: Sequence[str],
    seed: int,
) -> _Evidence:
    """Evidence with further runs of the original, where its noise may have been underrated.

    In a model of 16-bit floats, because ONNX Runtime's CPU kernels compute these in float32 and
    round less often than the model says. For outputs of few elements, because luck decides there.
    """
    originals = list(evidence.originals)
    few = [
        truth[name].size
        for truth in evidence.truths
        for name in suspects
        if is_floating(truth[name].dtype) and 0 < truth[name].size < _FEW
    ]
    if _has_halves(model) and not evidence.runtime.startswith("interpreter"):
        originals.append(native(model, feeds))
    if few:
        draws = min(_DRAWS, -(-_FEW // min(few)))
        per_sample = [disturbed(model, sample, draws=draws, seed=seed) for sample in feeds]
        originals.extend([outcomes[d] for outcomes in per_sample] for d in range(draws))
    return _Evidence(
        evidence.method,
        evidence.runtime,
        evidence.truths,
        originals,
        evidence.rewritten,
        evidence.depth,
    )


def _has_halves(model: ir.Model) -> bool:
    values = (*model.graph.initializers.values(), *model.graph.inputs)
    return any(v.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) for v in values)


def _check(name: str, judgements: Sequence[Judgement], evidence: _Evidence) -> OutputCheck:
    counts = np.asarray([truth[name].size for truth in evidence.truths], dtype=np.float64)

    def pooled(errors: Iterable[float]) -> float:
        squares = np.square(np.fromiter(errors, dtype=np.float64))
        return float(np.sqrt(np.sum(counts * squares) / max(counts.sum(), 1.0)))

    return OutputCheck(
        name=name,
        dtype=str(evidence.rewritten[0][name].dtype),
        max_abs_error=max(j.max_abs_error for j in judgements),
        rms_error=pooled(j.rms_error for j in judgements),
        original_rms_error=pooled(j.original_rms_error for j in judgements),
        noise_ratio=max(j.noise_ratio for j in judgements),
        passed=_fault(judgements) is None,
    )


def _worst(
    original: ModelSource,
    rewritten: ModelSource,
    feeds: Sequence[Feeds],
    found: dict[str, list[Judgement]],
    checks: Sequence[OutputCheck],
) -> str:
    check = max((c for c in checks if not c.passed), key=lambda c: c.noise_ratio)
    sentence = f"output {check.name!r}: {_fault(found[check.name])}"
    try:
        node = locate(original.model, rewritten.model, feeds[0])
    except ModelError:
        return sentence
    if node is None:
        return sentence
    return f"{sentence}; the first node that differs is {node_label(node)!r} ({operator(node)})"
