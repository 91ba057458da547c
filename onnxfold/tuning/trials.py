"""Runs of candidates on the device in separate processes, and the gate that judges their outputs.

The truth is a float64 run of the input model. At full precision a candidate passes as a fold does:
it may err at most a small multiple of the input model's own error on the device. A reduced
precision has an error budget (`onnxfold.check.budget`), on the user's data if given, otherwise on
drawn inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from onnxfold.check.budget import Budget, judge_budget
from onnxfold.check.compare import check_interface
from onnxfold.check.criterion import AcceptanceCriterion
from onnxfold.check.runners import Outputs
from onnxfold.check.truth import Truth, judged
from onnxfold.errors import VerificationError
from onnxfold.graph.constants import Array, Float64
from onnxfold.model_io.load import Source
from onnxfold.options import DEFAULT_NOISE_LIMIT, Metric
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.processes import JobFailed, Processes, stored
from onnxfold.tuning.tune_result import Candidate

_ROUNDS, _LEAST_ROUNDS = 150, 9


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a run: outputs for each feed, the session's operators, and a first time.

    ratio: the speed relative to the input model, from a few rounds; None if it ran alone.
    """

    outputs: list[dict[str, Array]]
    operators: Mapping[str, int]
    milliseconds: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Trials:
    """Runs files on stored feeds with stored true outputs; the first feed is timed."""

    processes: Processes
    options: TuneOptions
    source: Path
    feeds: tuple[Path, ...]
    truths: tuple[Path, ...]

    def run(self, path: Path, seconds: float, *, kernels: bool, optimize: bool = True) -> Trial:
        """Run a file on every feed, and time it against the input; raises JobFailed."""
        alone = path == self.source
        with TemporaryDirectory(dir=self.processes.folder) as folder:
            result = self.processes.run(
                "run",
                seconds,
                **self._track(),
                entrant={"path": str(path), "kernels": kernels, "optimize": optimize},
                beside=None if alone and not optimize else _entrant(self.source, kernels=False),
                feeds=[str(feed) for feed in self.feeds],
                outputs=folder,
            )
            outputs = [stored(Path(folder, f"{n}.npz")) for n in range(len(self.feeds))]
        return Trial(
            outputs, result.get("operators") or {}, result.get("milliseconds"), result.get("ratio")
        )

    def ranked(self, before: Path, after: Path, seconds: float) -> list[str]:
        """Return names of nodes of `before` by their contribution to the error of `after`.

        Returns [] if that cannot be determined, for example in time.
        """
        try:
            result = self.processes.run(
                "blame",
                seconds,
                before=str(before),
                after=str(after),
                feeds=[str(feed) for feed in self.feeds],
                truths=[str(truth) for truth in self.truths],
            )
        except JobFailed:
            return []
        return list(result["nodes"])

    def fault(
        self, before: Path, after: Path, judged: slice, allowed: float, seconds: float
    ) -> str | None:
        """Return what no precision explains in a file whose outputs are close enough, or None.

        ``judged``: the feeds to compare on. ``allowed``: the relative error of its budget. Raises
        JobFailed.
        """
        result = self.processes.run(
            "broken",
            seconds,
            before=str(before),
            after=str(after),
            allowed=allowed,
            feeds=[str(feed) for feed in self.feeds[judged]],
            truths=[str(truth) for truth in self.truths[judged]],
        )
        fault: str | None = result["fault"]
        return fault

    def race(self, entrants: Sequence[Candidate], seconds: float) -> Float64:
        """Return the seconds of entrants timed in turns: [entrant, round]; raises JobFailed."""
        result = self.processes.run(
            "race",
            3 * seconds + 60,
            **self._track(),
            entrants=[_entrant(e.path or self.source, kernels=e.kernels) for e in entrants],
            rounds=_ROUNDS,
            least=_LEAST_ROUNDS,
            most_seconds=seconds,
        )
        return np.asarray(result["seconds"], dtype=np.float64)

    def _track(self) -> dict[str, Any]:
        return {
            "providers": list(self.options.providers),
            "threads": self.options.threads,
            "timed": str(self.feeds[0]),
            "shaped": str(self.truths[0]),
            "timed_here": self.options.timed,
        }


def _entrant(path: Path, *, kernels: bool) -> dict[str, Any]:
    return {"path": str(path), "kernels": kernels}


Run = Callable[[bool], list[Outputs]]  # with optimizations or without
# Rows that overflow no narrow type, and on which a norm divides by little more than epsilon.
_HARMLESS = frozenset({"constant", "zero"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate passes, why not, and its worst errors by metric."""

    passed: bool
    reason: str | None
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gate:
    """Judge of candidates' outputs on the feeds of a truth."""

    source: Source
    truth: Truth
    options: TuneOptions

    def budget(self, precision: TargetPrecision) -> Budget:
        """Return the error budget of a precision, or the user's if given."""
        metric, limit = self.options.metric, self.options.max_error
        if limit is not None:
            return Budget({metric or Metric.RELATIVE: limit})
        if metric is not None:
            return Budget({metric: Budget.default_limit(precision.value, metric)})
        return Budget.default(precision.value)

    @property
    def judged_on(self) -> slice:
        """The feeds on which a reduced precision is judged: the user's, if given.

        Artificial numbers would exceed the ranges that a quantizer has seen in data.
        """
        drawn = self.truth.drawn
        given = self.options.data is not None
        return slice(drawn, None) if given else slice(drawn - len(self.truth.rows))

    def judge(self, run: Run, candidate: Source, precision: TargetPrecision) -> Verdict:
        """Return whether a candidate is correct.

        `run` returns its outputs, one mapping for each feed. The session has all optimizations, or
        none if the run is asked for that.
        """
        try:
            check_interface(self.source, candidate)
        except VerificationError as error:
            return Verdict(False, str(error))
        if precision is TargetPrecision.FP32 and self.options.max_error is None:
            criterion = AcceptanceCriterion(DEFAULT_NOISE_LIMIT)
            found = judged(self.source, candidate, self.truth, criterion, run)
            return Verdict(found.passed, found.worst, {"noise_ratio": found.noise_ratio})
        drawn, rows, outputs = self.truth.drawn, self.truth.rows, run(True)
        report = judge_budget(
            self.truth.outputs[self.judged_on], outputs[self.judged_on], self.budget(precision)
        )
        for number, kind in enumerate(rows, drawn - len(rows)):
            if report.passed and kind in _HARMLESS and not _is_finite(outputs[number]):
                sentence = f"it gives NaN or infinity where inputs have {kind} rows"
                report = replace(report, passed=False, sentence=sentence)
        worst: dict[str, float] = {}
        for output in report.outputs:
            for metric, size in output.worst.items():
                worst[metric.value] = max(worst.get(metric.value, 0.0), size)
        return Verdict(report.passed, report.sentence, worst)


def _is_finite(outputs: Outputs) -> bool:
    floats = (array for array in outputs.values() if array.dtype.kind == "f")
    return all(bool(np.isfinite(array).all()) for array in floats)
