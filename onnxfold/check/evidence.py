"""Outputs of two models: the truth, the original in several ways, the changed model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxfold.check.disturbance import disturbed, disturbed_model
from onnxfold.check.float64_runs import OwnRuns, Sampled
from onnxfold.check.reference import is_code, is_wide_float, unit_roundoff
from onnxfold.check.runners import (
    CannotLoad,
    CannotRun,
    Feeds,
    OnnxRuntime,
    Outputs,
    native,
    suited,
    why_not_onnxruntime,
)
from onnxfold.errors import ModelError, VerificationError
from onnxfold.graph.constants import HALVES
from onnxfold.graph.traversal import all_graphs
from onnxfold.model_io.load import Source
from onnxfold.shapes import fill_types

# With fewer elements than this, rms errors depend on luck, so noise is drawn several times.
_FEW, _DRAWS = 64, 8
# A number that is rounded to another code in a share p of the runs fails the check only if the
# original alone does not do so: p (1 - p)^n, at most 1 / (e n), 2%.
_DRAWS_OF_CODES = 16
# The least number of runs with disturbed weights and results, and the number before a model is
# reported wrong.
RUNS, MOST_RUNS = 2, 8
_ONLY_PROVED = (
    "a model that cannot be run here can be optimized with --check 0, which only proves the result"
)
_OF_DISTURBED = "what moving every weight and result by a rounding does to it"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of the original, per sample: feeds, truths, its own runs in several ways.

    engine: the runtime that ran it, None for the interpreter. optimize: whether the changed model
    runs with graph optimizations too. depth: nodes on the longest path of the original. reason: why
    the truth is not float64, or None. noise: what its runs measure, in words. disturbed: how many
    of its runs have weights and results moved by a rounding.
    """

    method: str
    runtime: str
    feeds: list[Outputs]
    truths: list[Outputs]
    originals: list[list[Outputs]]
    depth: int
    engine: OnnxRuntime | None = None
    optimize: bool = True
    reason: str | None = None
    noise: str = "ONNX Runtime's, with or without optimizations"
    disturbed: int = 0

    def least_noise(self, dtype: np.dtype[np.generic]) -> float:
        """Return the least relative noise to assume: u, or u sqrt(depth) without a better truth.

        A float64 truth of a float64 model errs as the model does, and so does the unoptimized
        original as a truth; roundings of `depth` nodes in a row add up as a random walk.
        """
        if not is_wide_float(dtype):
            return 0.0
        better = self.method == "float64" and dtype != np.float64
        return unit_roundoff(dtype) * (1.0 if better else float(np.sqrt(self.depth)))


def gather(sampled: Sampled, own: OwnRuns, seed: int) -> Evidence:
    """Run the original in its own precision.

    Raises ModelError if it does not run, VerificationError if there is nothing to compare with.
    """
    original, engine = own.original, own.engine
    if sampled.scattered:
        return _scattered(sampled, own, seed)
    if sampled.truths is None:
        return _against_runtime(original, sampled, engine)
    feeds, depth = sampled.feeds, _depth(original.model)
    reason = why_not_onnxruntime(original.model)
    if reason is None:
        try:
            originals = own.of(feeds)
        except CannotRun as error:
            reason = str(error)
        else:
            truths = sampled.truths
            return Evidence("float64", engine.label, feeds, truths, originals, depth, engine)
    return Evidence(
        "float64",
        f"interpreter ({reason})",
        feeds,
        sampled.truths,
        [native(original.model, feeds)],
        depth,
        noise="the interpreter's, in the types of the model",
    )


def _scattered(sampled: Sampled, own: OwnRuns, seed: int) -> Evidence:
    """Use the original without optimizations as the truth, as `against_itself` does."""
    _, plain = own.of(sampled.feeds)
    return Evidence(
        "onnxruntime",
        own.engine.label,
        sampled.feeds,
        plain,
        _runs_of_disturbed(own.engine, own.original, sampled.feeds, RUNS, seed),
        _depth(own.original.model),
        own.engine,
        optimize=False,
        reason=sampled.reason,
        noise=_OF_DISTURBED,
        disturbed=RUNS,
    )


def _against_runtime(original: Source, sampled: Sampled, engine: OnnxRuntime) -> Evidence:
    missing = why_not_onnxruntime(original.model)
    if missing is not None:
        raise VerificationError(
            f"{original.label} cannot be verified: no float64 run ({sampled.reason}), and {missing}"
        )
    failed: list[CannotRun] = []
    for feeds in (sampled.feeds, *sampled.others):
        try:
            plain, optimized = (engine.run(original, feeds, optimize=on) for on in (False, True))
        except CannotLoad as error:
            raise ModelError(f"{error}; {_ONLY_PROVED}") from error
        except CannotRun as error:
            failed.append(error)
        else:
            break
    else:
        inputs = _shown(failed[0].feeds or sampled.feeds[0])
        raise ModelError(
            f"{original.label} does not run on the inputs {inputs}; if they do not suit the model, "
            f"give others with --inputs; {_ONLY_PROVED} ({failed[0]})"
        ) from failed[0]
    return Evidence(
        "onnxruntime",
        f"{engine.label} (no float64 run: {sampled.reason})",
        feeds,
        plain,
        [optimized],
        _depth(original.model),
        engine,
        optimize=False,
        reason=f"there is no float64 run: {sampled.reason}",
        noise="what its optimizations change",
    )


def run_changed(
    changed: Source, feeds: Sequence[Feeds], engine: OnnxRuntime | None, *, optimize: bool
) -> list[Outputs]:
    """Run the changed model as the original ran; raises VerificationError if it does not run."""
    feeds = [suited(each, changed.model) for each in feeds]
    if engine is None:
        return native(changed.model, feeds)
    try:
        return engine.run(changed, feeds, optimize=optimize)
    except CannotRun as error:
        raise VerificationError(f"the rewritten model does not run: {error}") from error


def without_overflow(evidence: Evidence, numbers: range) -> tuple[Evidence, tuple[int, ...]]:
    """Leave out samples in which the original overflows.

    Their truth means nothing. The numbers of the samples that remain come second.
    """
    left = tuple(n for n in numbers if all(_is_finite(run[n]) for run in evidence.originals))
    kept = [n for n in range(len(evidence.feeds)) if n not in numbers or n in left]

    def those(runs: list[Outputs]) -> list[Outputs]:
        return [runs[number] for number in kept]

    fewer = replace(
        evidence,
        feeds=those(evidence.feeds),
        truths=those(evidence.truths),
        originals=[those(run) for run in evidence.originals],
    )
    return fewer, left


def _is_finite(outputs: Outputs) -> bool:
    floats = (array for array in outputs.values() if is_wide_float(array.dtype))
    return all(bool(np.isfinite(array.astype(np.float64)).all()) for array in floats)


def _shown(feeds: Feeds) -> str:
    return ", ".join(f"{name}:{','.join(map(str, x.shape))}" for name, x in feeds.items())


def _depth(model: ir.Model) -> int:
    depth: dict[ir.Value, int] = {}
    for node in model.graph:
        level = 1 + max((depth.get(v, 0) for v in node.inputs if v is not None), default=0)
        depth.update(dict.fromkeys(node.outputs, level))
    return max(depth.values(), default=1)


def with_more_noise(
    evidence: Evidence,
    original: Source,
    feeds: Sequence[Feeds],
    outputs: Iterable[str],
    seed: int,
) -> Evidence:
    """Return evidence with further runs of the original, if its noise may be underestimated.

    This is so in a model of 16-bit floats, because ONNX Runtime's CPU kernels compute in float32
    and round less often than the model specifies; for outputs of few numbers, and downstream of
    numbers that are rounded to codes, which depend on luck; and if ONNX Runtime is compared with
    itself, because its kernels have the same errors with and without optimizations.
    """
    model, engine = original.model, evidence.engine
    draws = _draws(evidence, outputs, model)
    more: list[list[Outputs]] = []
    if evidence.method != "float64" and engine is not None:
        known = evidence.disturbed
        most = max(draws, MOST_RUNS if known else RUNS)
        more = _runs_of_disturbed(engine, original, feeds, most, seed, known)
    else:
        if _has_halves(model) and engine is not None:
            more.append(native(model, feeds))
        per_sample = [disturbed(model, inputs, draws=draws, seed=seed) for inputs in feeds]
        more.extend([outcomes[draw] for outcomes in per_sample] for draw in range(draws))
    if not more:
        return evidence
    noise = f"{evidence.noise}, or of further roundings of every weight and result"
    return replace(evidence, originals=[*evidence.originals, *more], noise=noise)


def _draws(evidence: Evidence, outputs: Iterable[str], model: ir.Model) -> int:
    """Return how many draws make up for an output of few numbers; 0 if no output is small.

    Of codes, in an output or upstream of it, few lie so near to the middle between two that a
    rounding moves them.
    """
    arrays = [truth[name] for name in outputs for truth in evidence.truths]
    if any(is_code(array.dtype) for array in arrays) or _computes_codes(model):
        return _DRAWS_OF_CODES
    # Copies, as of a Pad or an Expand, share one rounding error.
    counts = [np.unique(array).size for array in arrays if is_wide_float(array.dtype)]
    few = [count for count in counts if 0 < count < _FEW]
    return min(-(-_FEW // min(few)), _DRAWS) if few else 0


def _computes_codes(model: ir.Model) -> bool:
    return any(is_code(dtype.numpy()) for dtype in _computed(model))


def _computed(model: ir.Model) -> frozenset[ir.DataType]:
    """Return the types of the results of all nodes, constants among them."""
    typed = model.clone()
    fill_types(typed)
    values = (value for graph in all_graphs(typed) for node in graph for value in node.outputs)
    return frozenset(value.dtype for value in values if value.dtype is not None)


def _runs_of_disturbed(
    engine: OnnxRuntime,
    original: Source,
    feeds: Sequence[Feeds],
    draws: int,
    seed: int,
    known: int = 0,
) -> list[list[Outputs]]:
    """Run the original in ONNX Runtime with weights and results moved by a rounding.

    Returns the runs numbered from `known` to `draws`.
    """
    seeds = range(seed + known, seed + draws)
    sources = (Source(disturbed_model(original.model, one)) for one in seeds)
    return [engine.run(source, feeds, optimize=False) for source in sources]


def _has_halves(model: ir.Model) -> bool:
    values = (*model.graph.initializers.values(), *model.graph.inputs)
    return any(v.dtype in HALVES for v in values) or bool(HALVES & _computed(model))


def against_itself(
    evidence: Evidence,
    original: Source,
    feeds: Sequence[Feeds],
    outputs: Iterable[str],
    engine: OnnxRuntime,
    seed: int,
    runs: int,
) -> Evidence:
    """Use the original without optimizations as the truth of a model that runs so too.

    This is for outputs where ONNX Runtime is far from the float64 truth, because one of them is
    wrong or the model is chaotic: the distance would excuse any error. The noise is the largest
    change over at least `runs` runs of the original in ONNX Runtime with every weight and result
    moved by a rounding, which includes the errors of its kernels.
    """
    draws = max(_draws(evidence, outputs, original.model), runs)
    if evidence.method != "float64":
        known = evidence.originals
        more = _runs_of_disturbed(engine, original, feeds, draws, seed, len(known))
        return replace(evidence, originals=[*known, *more])
    _, plain = evidence.originals[:2]  # with and without optimizations
    return replace(
        evidence,
        method="onnxruntime",
        truths=plain,
        originals=_runs_of_disturbed(engine, original, feeds, draws, seed),
        optimize=False,
        reason="ONNX Runtime is so far from a float64 run of the original that the distance would "
        "excuse any error",
        noise=_OF_DISTURBED,
    )
