"""Models against each other in ONNX Runtime: interleaved runs, medians, ratios to the first.

The machine drifts, so every round runs each variant once, and ratios are taken round by round.
A variant is a model with or without onnxfold's kernels; a model without onnxfold functions has
only the plain one.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxfold import model_io, runtime
from onnxfold.errors import ModelError, OnnxfoldError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.lower.functions import DOMAIN

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["Benchmark", "Measurement", "bench"]

_WARM_UP_ROUNDS = 3
_PROFILED_OPERATORS = 8

Feeds = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant: milliseconds per run, and per-round ratios of its time to the first variant's.

    ``operators``: milliseconds per run of the operators that take longest, from one profiled run.
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


@dataclass(frozen=True, slots=True)
class _Variant:
    path: Path
    kernels: bool
    session: ort.InferenceSession

    def run(self, feeds: Feeds) -> float:
        """Run once and return the seconds."""
        start = time.perf_counter()
        self.session.run(None, feeds)
        return time.perf_counter() - start


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
    if not models:
        raise UsageError("name at least one model")
    paths = [Path(model) for model in models]
    first = model_io.load(paths[0])
    spec = InputSpec.parse(inputs) if inputs else InputSpec()
    feeds = make_inputs(first, spec, count=1, seed=seed)[0]
    chosen = providers or ("CPUExecutionProvider",)
    variants = [
        _Variant(path, kernels, _session(path, kernels, threads, chosen))
        for path in paths
        for kernels in _kernel_choices(path, chosen)
    ]
    seconds = _rounds(variants, feeds, rounds, progress)
    ratios = seconds / seconds[:1]
    measurements = []
    for variant, row, relative in zip(variants, seconds, ratios, strict=True):
        median_ms, p20_ms, p80_ms = _spread(1e3 * row)
        ratio, ratio_p20, ratio_p80 = _spread(relative)
        operators = _profile(variant, threads, chosen, feeds)
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
                operators=operators,
            )
        )
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    return Benchmark(_version(), tuple(chosen), threads, rounds, shapes, tuple(measurements))


def _spread(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    median, low, high = np.percentile(values, (50, 20, 80))
    return float(median), float(low), float(high)


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


def _session(
    path: Path, kernels: bool, threads: int, providers: Sequence[str], profile: Path | None = None
) -> ort.InferenceSession:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise OnnxfoldError(
            "bench needs ONNX Runtime: pip install onnxfold[ort], or onnxfold[gpu]"
        ) from error
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if kernels:
        runtime.register(options, runtime.device_of(providers))
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented) as error:
        raise ModelError(f"ONNX Runtime cannot load '{path}': {error}".splitlines()[0]) from error


def _rounds(
    variants: Sequence[_Variant],
    feeds: Feeds,
    rounds: int,
    progress: Callable[[str, float], None] | None,
) -> npt.NDArray[np.float64]:
    """Return seconds: [variant, round]; the order turns by one from round to round."""
    for _ in range(_WARM_UP_ROUNDS):
        for variant in variants:
            variant.run(feeds)
    seconds = np.empty((len(variants), rounds))
    for number in range(rounds):
        for step in range(len(variants)):
            index = (number + step) % len(variants)
            seconds[index, number] = variants[index].run(feeds)
        if progress is not None:
            progress("bench", (number + 1) / rounds)
    return seconds


def _profile(
    variant: _Variant, threads: int, providers: Sequence[str], feeds: Feeds
) -> dict[str, float]:
    """Return milliseconds per operator of one run after a warm-up, the longest first."""
    with tempfile.TemporaryDirectory() as folder:
        session = _session(
            variant.path, variant.kernels, threads, providers, Path(folder) / "profile"
        )
        session.run(None, feeds)
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        operator = _operator(event)
        if operator is not None:
            spent[operator] += event["dur"] / 1e3 / 2  # microseconds of two runs
    longest = sorted(spent.items(), key=lambda item: -item[1])
    return dict(longest[:_PROFILED_OPERATORS])


def _operator(event: Mapping[str, Any]) -> str | None:
    if event.get("cat") != "Node" or not str(event.get("name", "")).endswith("_kernel_time"):
        return None
    return str(event["args"].get("op_name", "")) or None
