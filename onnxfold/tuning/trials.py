"""Runs of candidates on the device, in separate processes: their outputs and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from onnxfold.graph.array_types import Array, Float64
from onnxfold.tuning.candidate import Candidate
from onnxfold.tuning.options import TuneOptions
from onnxfold.tuning.processes import JobFailed, Processes, stored

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
