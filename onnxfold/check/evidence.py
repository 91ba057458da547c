"""Outputs of two models: the truth, the original in several ways, the changed model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxfold.check.disturbance import disturbed, disturbed_model
from onnxfold.check.reference import (
    Array,
    Precision,
    ResourceLimitError,
    UnsupportedOperator,
    check_supported,
    is_code,
    is_wide_float,
    run,
    unit_roundoff,
)
from onnxfold.check.result import ModelSource
from onnxfold.check.runners import (
    CannotLoad,
    CannotRun,
    Feeds,
    OnnxRuntime,
    native,
    suited,
    why_not_onnxruntime,
)
from onnxfold.errors import InvariantError, ModelError, VerificationError
from onnxfold.graph.array_types import HALVES
from onnxfold.graph.traversal import all_graphs
from onnxfold.inputs import FEWER_INDICES, IMAGE_SIDES, InputSpec, make_inputs
from onnxfold.shapes import fill_types

# Largest tensor in float64 that the truth may need at once.
FLOAT64_LIMIT_BYTES = 2 << 30
# With more parameters than this, a float64 run takes minutes per sample.
FLOAT64_LIMIT_PARAMETERS = 3_000_000_000
# With fewer elements than this, rms errors depend on luck, so noise is drawn several times.
_FEW, _DRAWS = 64, 8
# A number that is rounded to another code in a share p of the runs fails the check only if the
# original alone does not do so: p (1 - p)^n, at most 1 / (e n), 2%.
_DRAWS_OF_CODES = 16
# The least number of runs with disturbed weights and results, and the number before a model is
# reported wrong.
RUNS, MOST_RUNS = 2, 8

Outputs = dict[str, Array]
Done = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Inputs, and the truth for each of them, or None and the reason.

    single: why batches have one row, None if they have more. others: inputs with fewer indices, if
    the model does not run on the first, which then lack a truth.
    """

    feeds: list[Outputs]
    truths: list[Outputs] | None
    reason: str
    single: str | None = None
    others: tuple[list[Outputs], ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of the original, per sample: feeds, truths, its own runs in several ways.

    engine: the runtime that ran it, None for the interpreter. optimize: whether the changed model
    runs with graph optimizations too. depth: nodes on the longest path of the original. reason: why
    the truth is not float64, or None. noise: what its runs measure, in words.
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

    def least_noise(self, dtype: np.dtype[np.generic]) -> float:
        """Return the least relative noise to assume: u, or u sqrt(depth) without a better truth.

        A float64 truth of a float64 model errs as the model does, and so does the unoptimized
        original as a truth; roundings of `depth` nodes in a row add up as a random walk.
        """
        if not is_wide_float(dtype):
            return 0.0
        better = self.method == "float64" and dtype != np.float64
        return unit_roundoff(dtype) * (1.0 if better else float(np.sqrt(self.depth)))


def sample(
    model: ir.Model,
    spec: InputSpec,
    *,
    count: int,
    seed: int,
    limit_bytes: int,
    done: Done,
    rows: bool = False,
) -> Sampled:
    """Make inputs and run the model on them in float64.

    Images of unknown size are tried in several sizes, because a model may accept only one; so are
    batches of one, the only size some exported models accept, and fewer indices if some are out of
    range. `rows`: add samples of constant, shifted and zero rows.
    """
    failed: list[Sampled] = []
    supported = True
    shapes: set[tuple[tuple[int, ...], ...]] = set()
    for single in (False, True):
        for side in IMAGE_SIDES:
            draw = partial(
                make_inputs,
                model,
                spec,
                count=count,
                seed=seed,
                image_side=side,
                single=single,
                rows=rows,
            )
            feeds = draw()
            shape = tuple(array.shape for array in feeds[0].values())
            if shape in shapes:
                break
            shapes.add(shape)
            try:
                feeds, truths = _inside(
                    draw, lambda feeds: _truths(model, feeds, limit_bytes, done)
                )
            except ResourceLimitError:
                raise
            except ModelError as error:
                others = tuple(draw(below=below) for below in FEWER_INDICES)
                failed.append(Sampled(feeds, None, str(error), others=others))
                supported = not isinstance(error, UnsupportedOperator)
            else:
                return Sampled(feeds, truths, "", failed[0].reason if single else None)
        if not supported:
            break
    return failed[0]


def _inside(
    draw: Callable[..., list[Outputs]], run_on: Callable[[list[Outputs]], list[Outputs]]
) -> tuple[list[Outputs], list[Outputs]]:
    """Return inputs and their outputs: the first draw unless it has indices out of range."""
    for below in (None, *FEWER_INDICES):
        feeds = draw(below=below)
        try:
            return feeds, run_on(feeds)
        except ModelError as error:
            if not isinstance(error.__cause__, IndexError) or below == FEWER_INDICES[-1]:
                raise
    raise InvariantError("no indices were tried")


def _truths(model: ir.Model, feeds: Sequence[Feeds], limit_bytes: int, done: Done) -> list[Outputs]:
    """Return float64 outputs for each sample.

    Raises UnsupportedOperator if no float64 run is possible, ModelError if one fails.
    """
    sizes = [t.size for v in model.graph.initializers.values() if (t := v.const_value) is not None]
    if sum(sizes) > FLOAT64_LIMIT_PARAMETERS:
        raise UnsupportedOperator(f"{sum(sizes):,} parameters are too many for a float64 run")
    if 8 * max(sizes, default=0) > limit_bytes:
        raise UnsupportedOperator(
            f"a weight of {max(sizes):,} elements is too large for a float64 run"
        )

    def bounded(value: ir.Value, array: Array) -> Array:
        if array.nbytes > limit_bytes:
            raise UnsupportedOperator(f"value {value.name!r} is too large for a float64 run")
        return array

    check_supported(model)
    truths = []
    for number, inputs in enumerate(feeds):
        truths.append(run(model, inputs, precision=Precision.FLOAT64, observe=bounded))
        done(number + 1)
    return truths


def sample_given(
    model: ir.Model, feeds: Sequence[Outputs], *, limit_bytes: int, done: Done
) -> Sampled:
    """Run the model in float64 on the user's inputs."""
    try:
        return Sampled([*feeds], _truths(model, feeds, limit_bytes, done), "")
    except ResourceLimitError:
        raise
    except ModelError as error:
        return Sampled([*feeds], None, str(error))


def gather(original: ModelSource, sampled: Sampled, engine: OnnxRuntime) -> Evidence:
    """Run the original in its own precision.

    Raises ModelError if it does not run, VerificationError if there is nothing to compare with.
    """
    if sampled.truths is None:
        return _against_runtime(original, sampled, engine)
    feeds, depth = sampled.feeds, _depth(original.model)
    reason = why_not_onnxruntime(original.model)
    if reason is None:
        try:
            originals = [engine.run(original, feeds, optimize=on) for on in (True, False)]
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


def _against_runtime(original: ModelSource, sampled: Sampled, engine: OnnxRuntime) -> Evidence:
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
            raise ModelError(
                f"{error}; a model that cannot be run here can only be written with --no-check"
            ) from error
        except CannotRun as error:
            failed.append(error)
        else:
            break
    else:
        raise ModelError(
            f"{original.label} does not run on the inputs {_shown(sampled.feeds[0])}; if they do "
            f"not suit the model, give others with --inputs; a model that cannot be run here can "
            f"only be written with --no-check ({failed[0]})"
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
    changed: ModelSource, feeds: Sequence[Feeds], engine: OnnxRuntime | None, *, optimize: bool
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
    original: ModelSource,
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
        more = _runs_of_disturbed(engine, original, feeds, max(draws, RUNS), seed)
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
    typed = model.clone()
    fill_types(typed)
    values = (value for graph in all_graphs(typed) for node in graph for value in node.outputs)
    return any(value.dtype is not None and is_code(value.dtype.numpy()) for value in values)


def _runs_of_disturbed(
    engine: OnnxRuntime,
    original: ModelSource,
    feeds: Sequence[Feeds],
    draws: int,
    seed: int,
    known: int = 0,
) -> list[list[Outputs]]:
    """Run the original in ONNX Runtime with weights and results moved by a rounding.

    Returns the runs numbered from `known` to `draws`.
    """
    seeds = range(seed + known, seed + draws)
    sources = (ModelSource(disturbed_model(original.model, one)) for one in seeds)
    return [engine.run(source, feeds, optimize=False) for source in sources]


def _has_halves(model: ir.Model) -> bool:
    values = (*model.graph.initializers.values(), *model.graph.inputs)
    return any(v.dtype in HALVES for v in values)


def against_itself(
    evidence: Evidence,
    original: ModelSource,
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
        noise="what moving every weight and result by a rounding does to it",
    )
