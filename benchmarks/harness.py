"""What every benchmark does: read its options, keep to a budget, name what fails, time in turns."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onnxfold.errors import one_line
from onnxfold.runtime.interleaved_timing import (
    Bound,
    RunCounts,
    Variant,
    memory_for,
    take_turns,
    values_on,
)

__all__ = [
    "BUDGET",
    "CPU",
    "Bar",
    "Budget",
    "arguments",
    "failed",
    "outputs_on",
    "quantiles",
    "show_bars",
    "timed",
]

BUDGET: Final = 540.0  # seconds: where machines are lent, a command often has ten minutes
CPU: Final = "CPUExecutionProvider"


def arguments(
    document: str | None, options: Mapping[str, Any], given: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse a command line: for each name its default, or its type where it has none.

    A list is a default of any number of values, a tuple all that may be chosen from and the default
    too; a dictionary has the keywords of ``add_argument``.
    """
    module = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=f"python -m {module.name}" if module else None,
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, value in options.items():
        parser.add_argument(name, **_keywords(value))
    return parser.parse_args(given)


def _keywords(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, type):
        return {"type": value}
    if isinstance(value, bool):
        return {"action": "store_true"}
    if isinstance(value, list | tuple):
        chosen = {"choices": value} if isinstance(value, tuple) else {}
        return {"nargs": "*", "type": type(value[0]), "default": list(value), **chosen}
    return {"type": type(value), "default": value, "help": "default: %(default)s"}


class Budget:
    """Seconds, from now on, in which a program begins new work; and whether all of it was done."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start, self.incomplete = seconds, time.monotonic(), False

    @property
    def left(self) -> float:
        """Seconds to go, at least 0."""
        return max(0.0, self.seconds - (time.monotonic() - self.start))

    @property
    def spent(self) -> bool:
        """Whether no new work begins."""
        return time.monotonic() - self.start > self.seconds

    def ended(self, left: str) -> bool:
        """Whether the budget is spent; says so, and what is left."""
        if self.spent:
            print(f"the budget is spent: {left}", flush=True)
            self.incomplete = True
        return self.spent

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run one case; where it fails, say so by name and go on."""
        try:
            yield
        except Exception as error:  # said by name; the others still run
            failed(name, error)
            self.incomplete = True


def failed(what: str, error: Exception) -> None:
    """Print one line: what failed, why, and where; the rest of a run on a lent device goes on."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in place)
    print(f"{what}: FAILED, {type(error).__name__}: {one_line(error)}{where}", flush=True)


def timed(
    variants: Sequence[Variant],
    feeds: Mapping[str, npt.NDArray[Any]],
    turns: RunCounts,
    *,
    threads: int = 1,
    provider: str = CPU,
) -> npt.NDArray[np.float64]:
    """Open a session of each variant on the same inputs and outputs; return [variant, round]."""
    sessions = [variant.session(threads, (provider,)) for variant in variants]
    memory = "cuda" if provider.startswith("CUDA") else "cpu"
    given, made = values_on(memory, feeds), outputs_on(memory, sessions[0], feeds)
    return take_turns([Bound(session, given, made).run for session in sessions], turns)


def quantiles(values: npt.ArrayLike, digits: int, **columns: float) -> dict[str, float]:
    """Return percentiles of values by the names of the columns that they go to, rounded."""
    found = np.percentile(values, list(columns.values()))
    return {name: round(float(value), digits) for name, value in zip(columns, found, strict=True)}


class Bar(NamedTuple):
    """What was reached, and what it should be at least."""

    what: str
    reached: float
    least: float


def show_bars(bars: Iterable[Bar]) -> None:
    """Print each bar, and whether it was missed."""
    for bar in bars:
        missed = "" if bar.reached >= bar.least else ", MISSED"
        print(f"{bar.what}: {bar.reached:.3f}, bar {bar.least:g}{missed}", flush=True)


def outputs_on(memory: str, session: Any, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return device memory for a session's outputs, which sessions of one model may share."""
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, dict(feeds))
    return memory_for(memory, session, dict(zip(names, arrays, strict=True)))
