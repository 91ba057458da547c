"""How near the winner of `onnxfold tune` is to the best of all its right candidates.

`tune` times most candidates for a moment and a few at length; here all that are right take turns at
length, in one process, by the processor time of one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import CPU, quantiles
from benchmarks.rows import Row
from onnxfold import model_io
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns
from onnxfold.tuning.tune_result import Candidate, Status, TuneResult

__all__ = ["against_best"]

_ROUNDS, _LEAST = 60, 15


def against_best(
    result: TuneResult,
    source: Path,
    kept: Path,
    inputs: Sequence[str],
    seconds: float,
    about: dict[str, Any],
) -> Row:
    """Time every right candidate of a result at length; ``kept`` has their files."""
    entrants = [c for c in result.candidates if c.status is Status.RIGHT or not c.chain]
    (feeds,) = make_inputs(
        model_io.load(source), InputSpec.of(tuple(inputs)), count=1, seed=0, single=True
    )
    runs = []
    for each in entrants:
        path = _file(result, each, source, kept)
        session = Variant(path, each.kernels).session(1, [CPU])
        names = {value.name for value in session.get_inputs()}
        known = {name: array for name, array in feeds.items() if name in names}
        runs.append(partial(session.run, None, known))
    counts = RunCounts(_ROUNDS, _LEAST, seconds, clock=time.process_time)
    spent = take_turns(runs, counts)
    best = int(np.argmax(np.median(spent[0] / spent, axis=1)))
    winner = next(n for n, each in enumerate(entrants) if each is result.winner)
    ratios = spent[best] / spent[winner]
    # The winner of one export beside the best of all right candidates, the export among them.
    # ``of_best`` is how many times as fast as the best the winner is: the median over rounds with
    # the 10th and 90th percentile. ``skipped`` candidates were cut off. ``load``: processes that
    # ran beside, on average, when the rounds ended.
    return Row(
        **about,
        candidates=len(entrants),
        skipped=sum(c.status is Status.SKIPPED for c in result.candidates),
        rounds=spent.shape[1],
        load=round(os.getloadavg()[0], 1),
        winner=entrants[winner].name,
        best=entrants[best].name,
        **quantiles(ratios, 4, of_best=50, of_best_low=10, of_best_high=90),
    )


def _file(result: TuneResult, candidate: Candidate, source: Path, kept: Path) -> Path:
    if not candidate.chain:
        return source
    number = next(n for n, each in enumerate(result.candidates) if each is candidate)
    return next(kept.glob(f"{number:02}-*.onnx"))
