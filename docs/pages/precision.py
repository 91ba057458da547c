"""The table of docs/precision.md: errors before and after, and what is left of them.

From results/precision.csv, and rotation_seeds.csv for the best of 64 seeds.
"""

from __future__ import annotations

from collections.abc import Mapping

from pages.tables import Row, between, read_rows, table

__all__ = ["with_precision"]

_BEGIN = "<!-- precision: written by docs/generate.py -->\n"
_END = "<!-- end of precision -->"
_BASES = ("as it is", "scaled", "rotated", "split", "readers in float")
_SEEDS, _AXES, _GAMMAS = "64", ", principal axes", ", large gammas"
# The rows have a scale for each channel too, and static int8 of every model.
_SHOWN = {
    "digits": ("int8", "int8-static", "int4-blocks32"),
    "recipes": ("int8", "int4-blocks32"),
    "gammas": ("int8", "int8-channel"),
    "streams": ("fp16",),
    "trained": ("fp16", "int8", "int8-static"),
}


def with_precision(page: str) -> str:
    """Replace what is generated in precision.md."""
    by_case: dict[tuple[str, str], dict[str, Row]] = {}
    for row in read_rows("precision.csv"):
        if row["precision"] in _SHOWN[row["family"]]:
            by_case.setdefault((row["subject"], row["precision"]), {})[row["basis"]] = row
    seeds = {
        (row["subject"], row["precision"]): row["rotated"]
        for row in read_rows("rotation_seeds.csv")
        if row["seeds"] == _SEEDS
    }
    lines = []
    for (subject, precision), found in by_case.items():
        # A rotation takes the gammas in, so both twins become the same file.
        best = seeds.get((subject.replace(_AXES + _GAMMAS, _AXES), precision))
        plain = by_case.get((subject.partition(",")[0], precision), {}).get("as it is")
        floor = plain if subject.endswith((_AXES, _GAMMAS)) else found.get("readers in float")
        lines.append(
            (
                subject,
                found["as it is"]["outliers"],
                precision,
                *(_error(found.get(basis)) for basis in _BASES[:3]),
                f"{float(best):.3g} %" if best else "",
                *(_error(found.get(basis)) for basis in _BASES[3:]),
                *(_left(found, best, floor) if "," in subject and floor else ("", "")),
            )
        )
    bases = (*_BASES[:3], f"best of {_SEEDS}", *_BASES[3:])
    headings = ("model", "largest channel", "precision", *bases, "left", "floor")
    return between(page, _BEGIN, _END, table(headings, lines))


def _left(found: Mapping[str, Row], best: str | None, floor: Row) -> tuple[str, str]:
    """Return what is left of an error, and what would be left without outliers."""
    reached = [found[basis]["error"] for basis in ("rotated", "split") if basis in found]
    left = best or min(reached, key=float)
    error = float(found["as it is"]["error"])
    return f"{float(left) / error:.2f}", f"{float(floor['error']) / error:.2f}"


def _error(row: Row | None) -> str:
    if row is None:
        return ""
    error = float(row["error"])
    said = "not finite" if error == float("inf") else f"{error:.3g} %"
    right = f", {row['right']} of {row['samples'].strip()}" if row["right"] else ""
    return said + right
