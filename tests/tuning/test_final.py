"""The final: who is timed in turns, and who is called back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfold.tuning.processes import JobFailed
from onnxfold.tuning.search import Search, winner
from onnxfold.tuning.tune_result import Candidate, Status

_SPEEDS = {(): 1.0, ("slim",): 1.1, ("script",): 1.2, ("optimizer",): 2.0, ("fusions",): 3.0}


@dataclass
class _Races:
    """Times every chain at its speed, without a process; with some of them it fails."""

    failing: tuple[str, ...] | None = None
    seen: list[list[str]] = field(default_factory=list)

    def race(self, entrants: Sequence[Candidate], _seconds: float) -> np.ndarray:
        self.seen.append([" ".join(each.chain) for each in entrants])
        if self.failing in [each.chain for each in entrants]:
            raise JobFailed("no memory")
        return np.array([[1 / _SPEEDS[each.chain]] * 9 for each in entrants])


def _search(races: _Races, **ratios: float) -> Search:
    given: dict[str, Any] = dict.fromkeys(Search.__dataclass_fields__)
    given |= {"final": None, "trials": races, "candidates": [Candidate(())]}
    given["candidates"] += [
        Candidate((name,), Status.RIGHT, ratio=ratio) for name, ratio in ratios.items()
    ]
    return Search(**given)


def _won(search: Search) -> tuple[str, ...]:
    assert search.final is not None
    return winner(*search.final).chain


def test_the_final_ends_with_its_first_race_where_nobody_seemed_faster() -> None:
    search = _search(races := _Races(), slim=1.1, script=1.2, optimizer=2.0, fusions=3.0)
    search._final(10.0)
    assert races.seen == [["", "fusions"]]
    assert _won(search) == ("fusions",)


def test_who_seemed_faster_than_the_winner_is_timed_with_it() -> None:
    search = _search(races := _Races(), slim=4.0, script=1.15, optimizer=2.0, fusions=2.9)
    search._final(10.0)
    assert races.seen == [["", "slim"], ["", "slim", "fusions", "optimizer", "script"]]
    assert _won(search) == ("fusions",)


def test_a_race_that_fails_is_run_once_more_with_fewer() -> None:
    search = _search(races := _Races(("fusions",)), slim=4.0, fusions=3.9)
    search._final(10.0)
    assert races.seen == [["", "slim", "fusions"], ["", "slim"]]
    assert _won(search) == ("slim",)


def test_where_every_race_fails_there_is_no_final() -> None:
    search = _search(_Races(()), slim=4.0, fusions=3.9)
    search._final(10.0)
    assert search.final is None
