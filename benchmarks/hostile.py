"""Mutants of real models through inspect and optimize: `python -m benchmarks.hostile 100000`.

Each mutant runs in a process with a bound on its memory and on the processor time of each command;
`tests/hostile` says how mutants are made and what a command must keep to. A line of JSON for each
mutant that broke it goes to --log as it is found, and a row every 5,000 mutants. SIGINT or SIGTERM
ends a run with the row of what it did; --first goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append, cells
from tests.hostile.campaign import MEMORY_BYTES, Found, mutants

_LIMIT_S = 60.0
_REPORT_EVERY = 5000


@dataclass(slots=True)
class _Tally:
    """Counts so far."""

    started: float = field(default_factory=time.monotonic)
    mutants: int = 0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: int = 0
    crashes: int = 0
    hangs: int = 0
    slowest_s: float = 0.0
    peak_mb: float = 0.0

    def add(self, found: Found) -> None:
        self.mutants += 1
        self.faults += bool(found.faults)
        self.crashes += (found.killed or "").startswith("crash")
        self.hangs += (found.killed or "").startswith(("hang", "slow"))
        for outcome in found.outcomes:
            self.ended[outcome.command, outcome.ended] += 1
            self.slowest_s = max(self.slowest_s, outcome.cpu_s)
            self.peak_mb = max(self.peak_mb, outcome.peak_mb)

    def row(self, campaign: int, first: int) -> Row:
        return Row(
            campaign=campaign,
            first=first,
            mutants=self.mutants,
            inspected=self.ended["inspect", "done"],
            optimized=self.ended["optimize", "done"],
            refused=self.ended["optimize", "refused"],
            check_failed=self.ended["optimize", "check failed"],
            faults=self.faults,
            crashes=self.crashes,
            hangs=self.hangs,
            limit_s=_LIMIT_S,
            slowest_s=round(self.slowest_s, 2),
            limit_mb=MEMORY_BYTES >> 20,
            peak_mb=round(self.peak_mb, 1),
            wall_s=round(time.monotonic() - self.started, 1),
        )


def main() -> None:
    given = {"count": int, "--first": 0, "--campaign": 1, "--log": Path}
    options = arguments(__doc__, {**given, "--results": RESULTS / "hostile.csv"})
    tally = _Tally()
    numbers = range(options.first, options.first + options.count)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        open(options.log or os.devnull, "a", encoding="utf-8") as log,
        suppress(KeyboardInterrupt),
        closing(mutants(numbers, limit_s=_LIMIT_S, campaign=options.campaign)) as found,
    ):
        for each in found:
            tally.add(each)
            _record(log, each)
            if tally.mutants % _REPORT_EVERY == 0:
                row = tally.row(options.campaign, options.first)
                print(json.dumps(cells(row)), file=log, flush=True)
    row = tally.row(options.campaign, options.first)
    append(options.results, [row])
    print(json.dumps(cells(row), indent=1))


def _record(log: TextIO, found: Found) -> None:
    failed = [o.message for o in found.outcomes if o.ended == "check failed"]
    if found.faults or failed:
        record = {
            "number": found.number,
            "done": found.done,
            "faults": found.faults,
            "check_failed": failed,
        }
        print(json.dumps(record), file=log, flush=True)


if __name__ == "__main__":
    main()
