"""Models compared in ONNX Runtime: interleaved runs, medians, relative speeds.

Every round runs each variant for one turn, and speeds are computed per round. A variant is a model
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
from onnxfold.fleet import check_threads
from onnxfold.graph.constants import Float64
from onnxfold.inputs import FEWER_INDICES, InputSpec, make_inputs
from onnxfold.operators.functions import DOMAIN
from onnxfold.options import GivenInputs
from onnxfold.runtime import library as runtime
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, operators, take_turns

_PROFILED_OPERATORS = 8
_LEAST_ROUNDS = 3
_DIGITS = 4  # tenths of a microsecond, and of a per mille


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant: milliseconds per run, and its speed relative to the first, per round.

    ``apart``: the speed differs from the first one's by more than rounds differ from one another
    (from the 20th to the 80th percentile); smaller differences mean nothing. ``operators``:
    milliseconds per run of the slowest operators, from profiled runs.
    """

    model: str
    kernels: bool
    median_ms: float
    p20_ms: float
    p80_ms: float
    speed: float
    speed_p20: float
    speed_p80: float
    apart: bool
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
    inputs: GivenInputs = (),
    seed: int = 0,
    providers: tuple[str, ...] = (),
    progress: Callable[[str, float], None] | None = None,
    budget_s: float | None = None,
) -> Benchmark:
    """Time models in one process, in turns within each round.

    All models get the same inputs, made for the first. With a budget no round begins after it, but
    for the first three, and no operators are timed. Raises UsageError for impossible options,
    ModelError if a model cannot be read or run, OnnxfoldError without onnxruntime.
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
    spec = InputSpec.of(inputs)
    chosen = providers or ("CPUExecutionProvider",)
    variants = [
        Variant(path, kernels) for path in paths for kernels in _kernel_choices(path, chosen)
    ]
    sessions = [variant.session(threads, chosen) for variant in variants]
    draw = partial(make_inputs, first, spec, count=1, seed=seed)
    feeds = _taken(draw, sessions[0])
    runs = [partial(session.run, None, feeds) for session in sessions]
    _try_each(variants, runs)
    counts = RunCounts(rounds)
    if budget_s is not None:
        counts = RunCounts(rounds, min(rounds, _LEAST_ROUNDS), budget_s)
    seconds = take_turns(runs, counts, progress)
    speeds = seconds[:1] / seconds
    measurements = []
    for variant, row, relative in zip(variants, seconds, speeds, strict=True):
        median_ms, p20_ms, p80_ms = _spread(1e3 * row)
        speed, low, high = _spread(relative)
        slowest = () if budget_s is not None else operators(variant, threads, chosen, feeds)
        longest = slowest[:_PROFILED_OPERATORS]
        measurements.append(
            Measurement(
                model=str(variant.path),
                kernels=variant.kernels,
                median_ms=median_ms,
                p20_ms=p20_ms,
                p80_ms=p80_ms,
                speed=speed,
                speed_p20=low,
                speed_p80=high,
                apart=is_apart(speed, low, high),
                operators={operator.name: _rounded(operator.milliseconds) for operator in longest},
            )
        )
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    ran = seconds.shape[1]
    return Benchmark(_version(), tuple(chosen), threads, ran, shapes, tuple(measurements))


def _taken(draw: Callable[..., list[dict[str, Any]]], session: Any) -> dict[str, Any]:
    """Return inputs on which a session runs: the first draw, or one with fewer indices."""
    for below in (None, *FEWER_INDICES):
        (feeds,) = draw(below=below)
        try:
            session.run(None, feeds)
        except runtime.runtime_errors():
            continue
        return feeds
    return draw()[0]


def is_apart(speed: float, low: float, high: float) -> bool:
    """Whether a speed differs from 1 by more than its rounds differ from one another."""
    return abs(speed - 1) > high - low


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
    """Return the choices of kernels: without, and with if the model calls them and they exist."""
    functions = model_io.load(path).functions
    if not any(domain == DOMAIN for domain, *_ in functions):
        return (False,)
    try:
        runtime.get_library_path(runtime.device_of(providers))
    except OnnxfoldError:
        return (False,)
    return (False, True)
