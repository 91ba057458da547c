"""Who wins: the fastest beyond the spread, otherwise the simplest."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.tuning.search import challengers, finalists, least_median, note_times, winner
from onnxfold.tuning.tune_result import Candidate, Status

_ROUNDS = 41


def _candidate(*chain: str, ratio: float | None = None) -> Candidate:
    return Candidate(chain, Status.RIGHT, ratio=ratio)


def _seconds(*medians: float, spread: float = 0.01, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(1, spread, (len(medians), _ROUNDS))
    return np.asarray(medians)[:, None] * noise


def test_the_fastest_wins_beyond_the_spread() -> None:
    entrants = [_candidate(), _candidate("optimizer"), _candidate("fusions", "optimizer")]
    assert winner(entrants, _seconds(1.0, 0.9, 0.7)) is entrants[2]


@pytest.mark.parametrize("seed", range(5))
def test_the_simplest_wins_within_the_spread(seed: int) -> None:
    entrants = [_candidate(), _candidate("optimizer"), _candidate("fusions", "optimizer")]
    seconds = _seconds(1.0, 0.8, 0.7999, spread=0.05, seed=seed)
    assert winner(entrants, seconds) is entrants[1]


def test_the_input_wins_where_nothing_is_faster() -> None:
    entrants = [_candidate(), _candidate("optimizer")]
    assert winner(entrants, _seconds(1.0, 0.9999, spread=0.05)) is entrants[0]
    assert winner(entrants, _seconds(1.0, 1.2)) is entrants[0]


def test_a_library_is_asked_for_only_beyond_the_spread() -> None:
    entrants = [_candidate(), _candidate("optimizer", "fold-ort"), _candidate("fold-kernels")]
    assert winner(entrants, _seconds(1.0, 0.8, 0.8, spread=0.05)) is entrants[1]
    assert winner(entrants, _seconds(1.0, 0.8, 0.6)) is entrants[2]


def test_the_interval_of_the_median_narrows_with_rounds() -> None:
    ratios = np.random.default_rng(0).normal(1.01, 0.05, 2000)
    assert least_median(ratios[:20]) < 1.0 < least_median(ratios)
    assert least_median(np.array([1.5])) == 1.5


def test_times_are_ratios_of_the_same_round() -> None:
    entrants = [_candidate(), _candidate("optimizer")]
    drift = np.linspace(1, 3, _ROUNDS)
    note_times(entrants, np.stack([2 * drift, drift]))
    assert entrants[1].ratio == entrants[1].ratio_low == entrants[1].ratio_high == 2.0
    assert entrants[0].ratio == 1.0


def test_finalists_are_near_the_fastest_and_one_of_them_needs_no_library() -> None:
    timed = [
        _candidate(),
        _candidate("fold-kernels", ratio=1.5),
        _candidate("fusions", "fold-kernels", ratio=1.4),
        _candidate("optimizer", ratio=1.1),
        _candidate("slim", ratio=0.5),
    ]
    wrong = Candidate(("fusions",), Status.WRONG, ratio=9.0)
    chosen = finalists([*timed, wrong])
    assert chosen == timed[:4]


def test_nothing_right_leaves_the_input_alone() -> None:
    entrants = [_candidate(), Candidate(("fusions",), Status.FAILED)]
    assert finalists(entrants) == entrants[:1]


def test_who_seemed_faster_than_the_winner_of_the_final_challenges_it() -> None:
    entrants = [_candidate(), _candidate("optimizer")]
    seconds = _seconds(1.3, 1.0)
    note_times(entrants, seconds)
    faster, slower = _candidate("fusions", ratio=1.4), _candidate("slim", ratio=1.2)
    wrong = Candidate(("script",), Status.WRONG, ratio=9.0)
    fastest, unknown = _candidate("fold-ort", ratio=1.5), _candidate("int8")
    everyone = [*entrants, faster, slower, wrong, fastest, unknown]
    assert challengers(everyone, entrants, seconds) == [fastest, faster]
