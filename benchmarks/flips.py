"""Outcomes of random graphs while one facet of one operator is false in the table.

    python -m benchmarks.flips [--graphs 12] [--seed 0] [--count N] [--keep FILE.csv]

Of each facet: the graphs whose model computes the function anyway, those that the proof refused,
and those whose wrong model was proved, which must be 0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rows import Conditions, conditions, write
from onnxfold.operators import table
from tests.operators.samplers import SAMPLERS
from tests.proof.flips import Flip, flips, outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Conditions):
    """One facet: ``other`` are crashes, wrong types and plans that cost more than they gain."""

    operator: str
    facet: str
    graphs: int
    right: int
    refused: int
    wrong: int
    other: int


def row_of(flip: Flip, graphs: int) -> Row:
    tally = outcomes(flip, graphs)
    right, refused, wrong = (tally[word] for word in ("right", "proof", "numbers"))
    other = graphs - right - refused - wrong
    return Row(
        **conditions(),
        operator=".".join(filter(None, flip.row.key)),
        facet=flip.facet,
        graphs=graphs,
        right=right,
        refused=refused,
        wrong=wrong,
        other=other,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--graphs", type=int, default=12, help="random graphs of each facet")
    parser.add_argument("--seed", type=int, default=0, help="the order of the facets")
    parser.add_argument("--count", type=int, help="how many facets; all where it is not given")
    parser.add_argument("--keep", type=Path, help="write the rows to this CSV file")
    options = parser.parse_args()
    every = [flip for key in sorted(SAMPLERS) for flip in flips(table.ROWS[key])]
    order = np.random.default_rng(options.seed).permutation(len(every))[: options.count]
    rows = []
    for index in order:
        rows.append(row_of(every[index], options.graphs))
        last = rows[-1]
        print(
            f"{last.operator:40} {last.facet:24} right {last.right:3} refused {last.refused:3} "
            f"wrong {last.wrong:3} other {last.other:3}",
            flush=True,
        )
    wrong = sum(row.wrong for row in rows)
    print(f"{len(rows)} of {len(every)} facets, {wrong} wrong models proved")
    if options.keep:
        write(options.keep, sorted(rows, key=lambda row: (row.operator, row.facet)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
