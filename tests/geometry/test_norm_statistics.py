"""Statistics that merge, against numpy on all numbers at once."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from onnxfold.geometry.norm_statistics import NormStatistic

# Of a merge and of a sum: about one unit of 2^-53 for each of some dozens of steps.
ROUNDING = 1e-13


def _merged(quantity: str, parts: list[np.ndarray]) -> NormStatistic:
    total = NormStatistic(quantity)
    for part in parts:
        total = total.merged(NormStatistic.of(quantity, part))
    return total


@pytest.mark.parametrize("quantity", ["angle_uniform", "norm", "mean", "uniform_share"])
def test_moments_extremes_and_quantiles_agree_with_numpy(quantity: str) -> None:
    rng = np.random.default_rng(1)
    values = {
        "angle_uniform": 90 + 3 * rng.standard_normal(20_000),
        "norm": rng.lognormal(2, 1, 20_000),
        "mean": 1e-3 * rng.standard_normal(20_000),
        "uniform_share": rng.random(20_000),
    }[quantity]
    found = _merged(quantity, np.array_split(values, 37)).to_json()
    assert found["count"] == 20_000
    assert found["mean"] == pytest.approx(values.mean(), rel=ROUNDING, abs=1e-19)
    assert found["std"] == pytest.approx(values.std(), rel=ROUNDING)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    centre = 90.0 if quantity == "angle_uniform" else 0.0
    for share, quantile in found["quantiles"].items():
        exact = np.quantile(values, float(share), method="lower")
        # The law of the sketch: 0.5 percent of the distance from the center.
        assert abs(quantile - exact) <= 0.0050001 * abs(exact - centre)


def test_histogram_counts_every_number_between_its_edges() -> None:
    values = np.array([89.5, 90.0, 90.999, 91.0, 180.0])
    bars = NormStatistic.of("angle_a", values).to_json()["histogram"]
    assert bars == [
        {"from": 89.0, "to": 90.0, "count": 1},
        {"from": 90.0, "to": 91.0, "count": 2},
        {"from": 91.0, "to": 92.0, "count": 1},
        {"from": 180.0, "to": 181.0, "count": 1},
    ]
    signed = NormStatistic.of("mean", np.array([-3.0, 0.0, 0.02, 1.0])).to_json()["histogram"]
    for bar, value in zip(signed, (-3.0, 0.0, 0.02, 1.0), strict=True):
        assert bar["from"] <= value <= bar["to"]
        assert bar["count"] == 1


def test_numbers_that_are_not_finite_are_left_out_and_counted() -> None:
    statistic = NormStatistic.of("norm", np.array([1.0, np.nan, np.inf]))
    assert (statistic.count, statistic.left_out) == (1, 2)
    merged = statistic.merged(NormStatistic.of("norm", np.array([np.nan])))
    assert (merged.count, merged.left_out, merged.mean) == (1, 3, 1.0)
    assert NormStatistic.of("norm", np.array([np.nan])).to_json()["mean"] is None


def test_state_survives_json() -> None:
    statistic = NormStatistic.of("mean", np.random.default_rng(2).standard_normal(1000) / 3)
    assert NormStatistic.from_state(json.loads(json.dumps(statistic.state()))) == statistic


def test_small_means_of_long_runs_are_kept_where_float32_loses_them() -> None:
    """The docstring's bound: k merges err by at most k units of 2^-53 of the numbers' mean size."""
    rng = np.random.default_rng(3)
    parts = [1e-4 + rng.standard_normal(500).astype(np.float32) for _ in range(2000)]
    total = _merged("mean", [part.astype(np.float64) for part in parts])
    everything = np.concatenate(parts).astype(np.float64)
    exact = math.fsum(everything) / everything.size
    bound = 2000 * 2.0**-53 * np.abs(everything).mean()
    assert abs(total.mean - exact) <= bound
    running = np.add.accumulate(everything.astype(np.float32), dtype=np.float32)[-1]
    assert abs(float(running) / everything.size - exact) > bound
