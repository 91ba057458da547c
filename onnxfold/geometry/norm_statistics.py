"""Mergeable statistics of a stream of numbers: moments, extremes, quantiles and a histogram.

Counts are merged by integer addition, so their order does not matter. Mean and sum of squared
deviations merge by Chan's formula in float64, whose rounding depends on the order: batches are
merged in the order of their rows and shards in the order of the data, whichever worker measured
them. After k merges the relative error of the mean is at most about k units of 2^-53 of the mean
size of the numbers; a float32 mean stops moving at 2^24 rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
# The width of a bar of the histogram; other quantities have ten bars per decade.
LINEAR_WIDTHS = {"angle_uniform": 1.0, "angle_a": 1.0, "angle_b": 1.0, "uniform_share": 0.01}
# The origin of quantiles: for angles they are exact to 1 percent of the distance from 90.
_CENTRES = {"angle_uniform": 90.0, "angle_a": 90.0, "angle_b": 90.0}
_ACCURACY = 0.005
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_DECADE_BARS = 10
# Log keys of numbers down to 1e-300 have smaller magnitude, so each sign has its own range.
_HALF = 1 << 20


@dataclass(frozen=True, slots=True)
class NormStatistic:
    """Count, mean, sum of squared deviations, extremes, and two tables of counts.

    ``sketch`` is a DDSketch (Masson, Rim, Lee, VLDB 2019) of the distance from the quantity's
    center: a quantile is exact to 0.5 percent of this distance. ``bars`` is the histogram.
    Non-finite numbers are excluded and counted in ``left_out``.
    """

    quantity: str
    count: int = 0
    left_out: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    sketch: tuple[tuple[int, int], ...] = ()
    bars: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(quantity: str, values: Array) -> "NormStatistic":
        """Return the statistic of an array."""
        finite = values[np.isfinite(values)]
        left_out = values.size - finite.size
        if not finite.size:
            return NormStatistic(quantity, left_out=left_out)
        mean = float(finite.mean())
        width = LINEAR_WIDTHS.get(quantity)
        bars = _log_keys(finite, 10 ** (1 / _DECADE_BARS))
        if width is not None:
            bars = np.floor(finite / width).astype(np.int64)
        return NormStatistic(
            quantity,
            count=finite.size,
            left_out=left_out,
            mean=mean,
            squares=float(np.square(finite - mean).sum()),
            low=float(finite.min()),
            high=float(finite.max()),
            sketch=_counted(_log_keys(finite - _CENTRES.get(quantity, 0.0), _GAMMA)),
            bars=_counted(bars),
        )

    def merged(self, other: "NormStatistic") -> "NormStatistic":
        """Return the statistic of both streams, this one first."""
        count = self.count + other.count
        left_out = self.left_out + other.left_out
        if not other.count or not self.count:
            kept = self if self.count else other
            return NormStatistic(**{**kept.state(), "left_out": left_out})
        step = other.mean - self.mean
        return NormStatistic(
            self.quantity,
            count=count,
            left_out=left_out,
            mean=self.mean + step * (other.count / count),
            squares=self.squares + other.squares + step**2 * (self.count * other.count / count),
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            sketch=_added(self.sketch, other.sketch),
            bars=_added(self.bars, other.bars),
        )

    def state(self) -> dict[str, Any]:
        """Return every field, for reconstruction by :meth:`NormStatistic`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "NormStatistic":
        """Return the statistic of a state that went through JSON."""
        counts = {name: tuple((k, n) for k, n in state[name]) for name in ("sketch", "bars")}
        return NormStatistic(**{**state, **counts})

    def quantile(self, share: float) -> float | None:
        """Return the number below which this share of the numbers lies, or None."""
        if not self.count:
            return None
        rank = share * (self.count - 1)
        below = 0
        for key, number in self.sketch:
            below += number
            if below > rank:
                value = _CENTRES.get(self.quantity, 0.0) + _middle(key, _GAMMA)
                return min(max(value, self.low), self.high)
        return self.high

    def to_json(self) -> dict[str, Any]:
        """Return the report's form; a value without numbers is null."""
        some = self.count > 0
        return {
            "count": self.count,
            "left_out": self.left_out,
            "mean": self.mean if some else None,
            "std": math.sqrt(self.squares / self.count) if some else None,
            "min": self.low if some else None,
            "max": self.high if some else None,
            "quantiles": {f"{share:g}": self.quantile(share) for share in QUANTILES},
            "histogram": self._histogram(),
        }

    def _histogram(self) -> list[dict[str, Any]]:
        """Return the nonempty bars by their lower and upper edges."""
        width = LINEAR_WIDTHS.get(self.quantity)
        bars = []
        for key, number in self.bars:
            if width is None:
                low, high = _edges(key, 10 ** (1 / _DECADE_BARS))
            else:
                low, high = key * width, (key + 1) * width
            bars.append({"from": low, "to": high, "count": number})
        return bars


def _log_keys(values: Array, base: float) -> npt.NDArray[np.int64]:
    """Return for each number the k with base^(k-1) < |v| <= base^k, in the order of the numbers.

    0 has key 0; the keys of positive numbers are shifted up, and mirrored for negative ones.
    """
    with np.errstate(divide="ignore"):
        powers = np.ceil(np.log(np.abs(values)) / math.log(base))
    powers = np.where(values == 0.0, 0.0, powers).astype(np.int64) + _HALF
    return np.where(values == 0.0, 0, np.where(values > 0.0, powers, -powers))


def _edges(key: int, base: float) -> tuple[float, float]:
    if key == 0:
        return 0.0, 0.0
    power = abs(key) - _HALF
    low, high = base ** (power - 1), base**power
    return (low, high) if key > 0 else (-high, -low)


def _middle(key: int, base: float) -> float:
    """Return the number relatively nearest to all numbers of a key: 2 base^k / (base + 1)."""
    if key == 0:
        return 0.0
    return math.copysign(2.0 * base ** (abs(key) - _HALF) / (base + 1.0), key)


def _counted(keys: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    found, numbers = np.unique(keys, return_counts=True)
    return tuple(zip(found.tolist(), numbers.tolist(), strict=True))


def _added(
    first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    total = dict(first)
    for key, number in second:
        total[key] = total.get(key, 0) + number
    return tuple(sorted(total.items()))
