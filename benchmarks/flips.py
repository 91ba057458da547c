"""Outcomes of random graphs while one facet of one operator is false in the table.

    python -m benchmarks.flips [--graphs 12] [--seed 0] [--count N] [--keep FILE.csv]

Of each facet: the graphs whose model computes the function anyway, those that the proof refused,
and those whose wrong model was proved, which must be 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import arguments
from benchmarks.rows import Row, write
from onnxfold.operators import table
from tests.operators.samplers import SAMPLERS
from tests.proof.flips import Flip, flips, outcomes


def row_of(flip: Flip, graphs: int) -> Row:
    tally = outcomes(flip, graphs)
    right, refused, wrong = (tally[word] for word in ("right", "proof", "numbers"))
    other = graphs - right - refused - wrong
    # One facet: ``other`` are crashes, wrong types and plans that cost more than they gain.
    return Row(
        operator=".".join(filter(None, flip.row.key)),
        facet=flip.facet,
        graphs=graphs,
        right=right,
        refused=refused,
        wrong=wrong,
        other=other,
    )


def main() -> int:
    given = {"--graphs": 12, "--seed": 0, "--count": int, "--keep": Path}
    options = arguments(__doc__, given)
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
