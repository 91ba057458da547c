"""Selection of the candidates for the final, and of the winner."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxfold.graph.array_types import Float64
from onnxfold.tuning.candidate import Candidate, Status

_FINALISTS = 5
# The error of a short measurement: candidates this close to the fastest reach the final.
_NEAR = 0.9
_Z95 = 1.96


def finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the input and the correct candidates that were fastest in a short measurement.

    Candidates without kernels have reserved places, because not everybody can register a library.
    """
    timed = [c for c in candidates if c.chain and c.status is Status.RIGHT and c.ratio is not None]
    ranked = sorted(timed, key=lambda candidate: -(candidate.ratio or 0.0))
    if not ranked:
        return [c for c in candidates if not c.chain]
    least = _NEAR * (ranked[0].ratio or 0.0)
    chosen = [c for c in ranked if (c.ratio or 0.0) >= least][:_FINALISTS]
    plain = next((c for c in ranked if not c.kernels), None)
    if plain is not None and plain not in chosen:
        chosen.append(plain)
    return [*(c for c in candidates if not c.chain), *chosen]


def challengers(
    candidates: Sequence[Candidate], entrants: Sequence[Candidate], seconds: Float64
) -> list[Candidate]:
    """Return correct candidates outside the final whose short measurement beats its winner's time.

    The machine was disturbed during one of the two, so only a final with them can tell. Those with
    which it failed have a reason, and are left out.
    """
    least = winner(entrants, seconds).ratio or 0.0
    right = (c for c in candidates if c.status is Status.RIGHT and c not in entrants)
    faster = [c for c in right if not c.reason and (c.ratio or 0.0) > least]
    return sorted(faster, key=lambda candidate: -(candidate.ratio or 0.0))[:_FINALISTS]


def note_times(entrants: Sequence[Candidate], seconds: Float64) -> None:
    """Record the final: [entrant, round] seconds, ratios to the first, round by round."""
    for entrant, row in zip(entrants, seconds, strict=True):
        low, ratio, high = np.percentile(seconds[0] / row, (10, 50, 90))
        entrant.milliseconds = float(1e3 * np.median(row))
        entrant.ratio_low, entrant.ratio, entrant.ratio_high = float(low), float(ratio), float(high)


def winner(entrants: Sequence[Candidate], seconds: Float64) -> Candidate:
    """Return the fastest entrant, or the simplest of those statistically equal to it.

    An entrant is equal to the fastest if the 95 % confidence interval of the median of their ratio,
    round by round, contains 1. Simple means without a library and with few steps.
    """
    medians = np.median(seconds[0] / seconds, axis=1)
    best = int(np.argmax(medians))
    equals = [
        index
        for index, row in enumerate(seconds)
        if index == best or least_median(row / seconds[best]) <= 1.0
    ]
    simplest = min(equals, key=lambda i: (entrants[i].kernels, len(entrants[i].chain), -medians[i]))
    return entrants[simplest]


def least_median(ratios: Float64) -> float:
    """Return the lower end of the 95 % confidence interval of the median, by order statistics."""
    count = len(ratios)
    rank = math.floor((count - _Z95 * math.sqrt(count)) / 2)
    return float(np.sort(ratios)[max(rank, 0)])
