"""The table of docs/precision.md: errors before and after, from results/precision.csv."""

from __future__ import annotations

from pages.tables import Row, between, read_rows, table

__all__ = ["with_precision"]

_BEGIN = "<!-- precision: written by docs/generate.py -->\n"
_END = "<!-- end of precision -->"
_BASES = ("as it is", "scaled", "rotated", "split", "readers in float")
# The rows have a scale for each channel too, and static int8 of every model.
_SHOWN = {
    "digits": ("int8", "int8-static", "int4-blocks32"),
    "recipes": ("int8", "int4-blocks32"),
    "gammas": ("int8",),
    "streams": ("fp16",),
    "trained": ("fp16", "int8", "int8-static"),
}


def with_precision(page: str) -> str:
    """Replace what is generated in precision.md."""
    by_case: dict[tuple[str, str], dict[str, Row]] = {}
    for row in read_rows("precision.csv"):
        if row["precision"] in _SHOWN[row["family"]]:
            by_case.setdefault((row["subject"], row["precision"]), {})[row["basis"]] = row
    lines = [
        (
            subject,
            found["as it is"]["outliers"],
            precision,
            *(_error(found.get(basis)) for basis in _BASES),
        )
        for (subject, precision), found in by_case.items()
    ]
    headings = ("model", "largest channel", "precision", *_BASES)
    return between(page, _BEGIN, _END, table(headings, lines))


def _error(row: Row | None) -> str:
    if row is None:
        return ""
    error = float(row["error"])
    said = "not finite" if error == float("inf") else f"{error:.3g} %"
    right = f", {row['right']} of {row['samples'].strip()}" if row["right"] else ""
    return said + right
