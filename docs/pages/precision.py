"""The table of docs/precision.md: errors before and after, from results/precision.csv."""

from __future__ import annotations

from pages.tables import Row, between, read_rows, table

__all__ = ["with_precision"]

_BEGIN = "<!-- precision: written by docs/generate.py -->\n"
_END = "<!-- end of precision -->"
_BASES = ("as it is", "scaled", "rotated", "split")


def with_precision(page: str) -> str:
    """Replace what is generated in precision.md."""
    by_case: dict[tuple[str, str], dict[str, Row]] = {}
    for row in read_rows("precision.csv"):
        by_case.setdefault((row["subject"], row["precision"]), {})[row["basis"]] = row
    lines = [
        (subject, precision, *(_error(found.get(basis)) for basis in _BASES))
        for (subject, precision), found in by_case.items()
        if len(found) > 1
    ]
    return between(page, _BEGIN, _END, table(("model", "precision", *_BASES), lines))


def _error(row: Row | None) -> str:
    if row is None:
        return ""
    error = float(row["error"])
    said = "not finite" if error == float("inf") else f"{error:.3g} %"
    right = f", {row['accuracy']} of {row['samples'].strip()}" if row["accuracy"] else ""
    return said + right
