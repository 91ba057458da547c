"""Models against each other in ONNX Runtime: interleaved runs, medians, ratios to the first.

Every round gives each variant one turn, and ratios are taken round by round.  A variant is a model
with or without onnxfold's kernels; a model without onnxfold functions has only the plain one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold import model_io
from onnxfold.errors import ModelError, OnnxfoldError, UsageError, one_line
from onnxfold.graph.array_types import Float64
from onnxfold.inputs import FEWER_INDICES, InputSpec, make_inputs
from onnxfold.operators.functions import DOMAIN
from onnxfold.options import check_threads
from onnxfold.runtime import library as runtime
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, operators, take_turns

_PROFILED_OPERATORS = 8
_DIGITS = 4  # tenths of a microsecond, and of a per mille


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant: milliseconds per run, and per-round ratios of its time to the first variant's.

    ``operators``: milliseconds per run of the operators that take longest, from profiled runs.
    """

    model: str
    kernels: bool
    median_ms: float
    p20_ms: float
    p80_ms: float
    ratio: float
    ratio_p20: float
    ratio_p80: float
    operators: dict[str, float]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All variants, and the conditions of the measurement."""

    onnxruntime: str
    providers: tuple[str, ...]
    threads: int
    rounds: int
    inputs: dict[str, list[int]]
    measurements: tuple[Measurement, ...]

    def to_json(self) -> dict[str, object]:
        """Return a JSON document with the fields of this class."""
        return asdict(self)


def bench(
    models: Sequence[str | os.PathLike[str]],
    *,
    rounds: int = 30,
    threads: int = 1,
    inputs: tuple[str, ...] = (),
    seed: int = 0,
    providers: tuple[str, ...] = (),
    progress: Callable[[str, float], None] | None = None,
) -> Benchmark:
    """Time models in one process, one after the other in every round.

    All models get the same inputs, made for the first.  Raises UsageError for impossible options,
    ModelError when a model cannot be read or run, OnnxfoldError without onnxruntime.
    """
    if rounds < 1 or threads < 1:
        raise UsageError(f"rounds and threads must be at least 1, not {rounds} and {threads}")
    check_threads("--threads", threads)
    if not models:
        raise UsageError("name at least one model")
    if providers:
        runtime.check_providers(providers)
    paths = [Path(model) for model in models]
    first = model_io.load(paths[0])
    spec = InputSpec.parse(inputs) if inputs else InputSpec()
    chosen = providers or ("CPUExecutionProvider",)
    variants = [
        Variant(path, kernels) for path in paths for kernels in _kernel_choices(path, chosen)
    ]
    sessions = [variant.session(threads, chosen) for variant in variants]
    draw = partial(make_inputs, first, spec, count=1, seed=seed)
    feeds = _taken(draw, sessions[0])
    runs = [partial(session.run, None, feeds) for session in sessions]
    _try_each(variants, runs)
    seconds = take_turns(runs, RunCounts(rounds), progress)
    ratios = seconds / seconds[:1]
    measurements = []
    for variant, row, relative in zip(variants, seconds, ratios, strict=True):
        median_ms, p20_ms, p80_ms = _spread(1e3 * row)
        ratio, ratio_p20, ratio_p80 = _spread(relative)
        longest = operators(variant, threads, chosen, feeds)[:_PROFILED_OPERATORS]
        measurements.append(
            Measurement(
                model=str(variant.path),
                kernels=variant.kernels,
                median_ms=median_ms,
                p20_ms=p20_ms,
                p80_ms=p80_ms,
                ratio=ratio,
                ratio_p20=ratio_p20,
                ratio_p80=ratio_p80,
                operators={operator.name: _rounded(operator.milliseconds) for operator in longest},
            )
        )
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    return Benchmark(_version(), tuple(chosen), threads, rounds, shapes, tuple(measurements))


def _taken(draw: Callable[..., list[dict[str, Any]]], session: Any) -> dict[str, Any]:
    """Return inputs that a session runs on: the first, or some of fewer indices; else the first."""
    for below in (None, *FEWER_INDICES):
        (feeds,) = draw(below=below)
        try:
            session.run(None, feeds)
        except runtime.runtime_errors():
            continue
        return feeds
    return draw()[0]


def _try_each(variants: Sequence[Variant], runs: Sequence[Callable[[], object]]) -> None:
    """Raise ModelError for a model that does not run on the inputs of the first."""
    for variant, run in zip(variants, runs, strict=True):
        try:
            run()
        except runtime.runtime_errors() as error:
            message = f"'{variant.path}' does not run on these inputs: {one_line(error)}"
            raise ModelError(message) from error


def _spread(values: Float64) -> tuple[float, float, float]:
    median, low, high = np.percentile(values, (50, 20, 80))
    return _rounded(median), _rounded(low), _rounded(high)


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)


def _version() -> str:
    import onnxruntime as ort

    return str(ort.__version__)


def _kernel_choices(path: Path, providers: Sequence[str]) -> tuple[bool, ...]:
    """With and without kernels where the model calls onnxfold functions and a library is there."""
    functions = model_io.load(path).functions
    if not any(domain == DOMAIN for domain, *_ in functions):
        return (False,)
    try:
        runtime.get_library_path(runtime.device_of(providers))
    except OnnxfoldError:
        return (False,)
    return (False, True)
