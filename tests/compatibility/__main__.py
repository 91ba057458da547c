"""Run the matrix, keep its rows, and write its page.

    python -m tests.compatibility [SUBJECT ...] [--opsets 18 23] [--untimed]

Rows are kept in benchmarks/results/compatibility.csv as soon as a subject is done; rows of the same
subject, architecture and opset are replaced. The exit code is 1 if a subject accepts an original
but not the file of the default target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from tests.compatibility import page
from tests.compatibility.exports import ARCHITECTURES, OPSETS
from tests.compatibility.matrix import DEFAULT, Row, failures, run
from tests.compatibility.subjects import SUBJECTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS), metavar="SUBJECT")
    parser.add_argument("--opsets", nargs="+", type=int, default=list(OPSETS))
    parser.add_argument("--architectures", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--untimed", action="store_true", help="do not compare times")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"no such subject: {', '.join(unknown)}; known: {', '.join(SUBJECTS)}")
    exports = [(name, opset) for name in options.architectures for opset in options.opsets]
    chosen = [SUBJECTS[name] for name in options.subjects]
    rows: list[Row] = []
    for row in run(chosen, exports, timed=not options.untimed):
        rows.append(row)
        page.keep([row])
    page.write()
    return _verdict(rows)


def _verdict(rows: Iterable[Row]) -> int:
    failed = failures(rows)
    for row in failed:
        place = f"{row.subject}: {row.architecture}, opset {row.opset}"
        sys.stdout.write(f"{place}: {row.outcome}, error {row.error}: {row.text}\n")
    sys.stdout.write(f"{len(failed)} cells of {DEFAULT} are not taken although the original is\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
