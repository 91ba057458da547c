"""Variants of a model timed in turns in ONNX Runtime, with tensors that stay on the device.

The speed of a machine drifts, so every round runs each variant for one turn, in an order that
changes from round to round; compute ratios per round.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import DependencyError, ModelError, one_line
from onnxfold.graph.constants import Float64
from onnxfold.runtime import library as runtime
from onnxfold.runtime.sessions import demand_name, demand_optimizable

if TYPE_CHECKING:
    import onnxruntime as ort


Feeds = dict[str, npt.NDArray[Any]]
Provider = str | tuple[str, dict[str, str]]

_SLOW_ROUND_S = 1.0
_TRIED_RUNS = 5
_MOST_RUNS = 1000
_PROFILED_RUNS = 5


@dataclass(frozen=True, slots=True)
class Variant:
    """A model file, with or without onnxfold's kernels.

    ``disabled`` names optimizers of ONNX Runtime to turn off, ``dimensions`` fixes the size of
    symbolic dimensions, without ``optimize`` the session runs the graph unchanged.
    """

    path: Path
    kernels: bool = False
    disabled: tuple[str, ...] = ()
    dimensions: tuple[tuple[str, int], ...] = ()
    optimize: bool = True

    def session(
        self, threads: int, providers: Sequence[Provider], *, profile: Path | None = None
    ) -> ort.InferenceSession:
        """Open a session.

        Raises ModelError if ONNX Runtime refuses the model, DependencyError if it is missing,
        OnnxfoldError if kernels are requested but not available.
        """
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise DependencyError(
                "bench needs ONNX Runtime: pip install 'onnxfold[ort]', or 'onnxfold[gpu]'"
            ) from error
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = runtime.ONLY_FATAL
        if not self.optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, size in self.dimensions:
            options.add_free_dimension_override_by_name(name, size)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if self.kernels:
            runtime.register(options, runtime.device_of(providers))
        (demand_optimizable if self.optimize else demand_name)(self.path)
        refusals = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented)
        try:
            return ort.InferenceSession(
                str(self.path),
                options,
                providers=list(providers),
                disabled_optimizers=list(self.disabled),
            )
        except refusals as error:
            message = f"ONNX Runtime cannot load '{self.path}': {one_line(error)}"
            raise ModelError(message) from error


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How often each variant runs.

    A turn is as many runs as fill ``turn_s``, at least one: otherwise each run of a model of a few
    milliseconds would start with the caches full of other models' data. The rounds end at
    ``rounds``, or after ``least`` once ``budget_s`` is spent.
    """

    rounds: int
    least: int = 1
    budget_s: float = float("inf")
    turn_s: float = 0.02
    clock: Callable[[], float] = time.perf_counter


def take_turns(
    runs: Sequence[Callable[[], object]],
    turns: RunCounts,
    progress: Callable[[str, float], None] | None = None,
) -> Float64:
    """Return seconds per run: [variant, round]."""
    start = time.perf_counter()
    first = [_turn(run, 1, turns.clock) for run in runs]
    if time.perf_counter() - start < _SLOW_ROUND_S:
        # A run that waits for another program would make turns of single runs, with cold caches.
        first = [min(_turn(run, 1, turns.clock) for _ in range(_TRIED_RUNS)) for run in runs]
    repeats = [min(_MOST_RUNS, max(1, round(turns.turn_s / max(t, 1e-9)))) for t in first]
    seconds: list[list[float]] = []
    spent = 0.0
    while len(seconds) < turns.rounds and (len(seconds) < turns.least or spent < turns.budget_s):
        row = [0.0] * len(runs)
        for step in range(len(runs)):
            index = (len(seconds) + step) % len(runs)
            row[index] = _turn(runs[index], repeats[index], turns.clock)
        seconds.append(row)
        spent = time.perf_counter() - start
        if progress is not None:
            progress("bench", max(len(seconds) / turns.rounds, min(1.0, spent / turns.budget_s)))
    return np.array(seconds).T


def _turn(run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The nodes of one operator: how many ran, and their total milliseconds in one run.

    Each node counts with its median over the runs.
    """

    name: str
    nodes: int
    milliseconds: float


def operators(
    variant: Variant, threads: int, providers: Sequence[Provider], feeds: Feeds
) -> tuple[OperatorTime, ...]:
    """Profile a few runs and return the operators, the longest first; raises as session does."""
    with tempfile.TemporaryDirectory() as folder:
        session = variant.session(threads, providers, profile=Path(folder) / "profile")
        for _ in range(_PROFILED_RUNS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time"):
            operator = str(event["args"].get("op_name", ""))
            durations[operator, str(event["name"])].append(event["dur"] / 1e3)
    nodes: dict[str, list[float]] = defaultdict(list)
    for (operator, _), milliseconds in durations.items():
        nodes[operator].append(float(np.median(milliseconds)))
    found = [OperatorTime(name, len(each), sum(each)) for name, each in nodes.items()]
    return tuple(sorted(found, key=lambda operator: -operator.milliseconds))


class Bound:
    """A session with inputs and outputs in fixed memory."""

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, ort.OrtValue],
        outputs: Mapping[str, ort.OrtValue],
    ) -> None:
        self.session = session
        self.binding = session.io_binding()
        for name, value in inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        """Run once, and wait for the device."""
        self.session.run_with_iobinding(self.binding)


def values_on(memory: str, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Return copies of arrays in the memory of a device."""
    import onnxruntime as ort

    return {name: ort.OrtValue.ortvalue_from_numpy(array, memory) for name, array in feeds.items()}


def memory_for(
    memory: str, session: ort.InferenceSession, arrays: Mapping[str, npt.NDArray[Any]]
) -> dict[str, ort.OrtValue]:
    """Return device memory for the outputs of a session, with the shapes of arrays."""
    import onnxruntime as ort

    return {
        output.name: ort.OrtValue.ortvalue_from_shape_and_type(
            arrays[output.name].shape, _dtype(output.type), memory
        )
        for output in session.get_outputs()
    }


def _dtype(kind: str) -> np.dtype[Any]:
    """Return the array type of an ONNX Runtime type such as tensor(float16)."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))
