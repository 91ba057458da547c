"""The table of docs/tune.md: what `tune` chose, beside the tools alone."""

from __future__ import annotations

from collections.abc import Sequence

from pages.tables import Row, between, read_rows, table

__all__ = ["with_tune"]

_BEGIN, _END = "<!-- gpu: written by docs/generate.py -->\n", "<!-- end of gpu -->"
# Chains of one tool, with the converter where the precision is reduced.
_ALONE = {
    "float16 converter": ("fp16",),
    "optimizer": ("optimizer > fp16", "optimizer"),
    "fusions": ("fusions", "unflatten > fusions"),
}


def with_tune(page: str) -> str:
    """Replace what is generated in tune.md."""
    rows = read_rows("gpu_tune.csv")
    cases = dict.fromkeys((row["model"], row["dtype"]) for row in rows)
    lines = [_line([row for row in rows if (row["model"], row["dtype"]) == case]) for case in cases]
    headings = ("model", "export", "batch", "ms", *(f"{n} alone" for n in _ALONE), "`tune`", "ms")
    return between(page, _BEGIN, _END, table((*headings, "chain"), lines))


def _line(rows: Sequence[Row]) -> tuple[str, ...]:
    ratios = {row["chain"]: float(row["ratio"]) for row in rows if row["status"] == "right"}
    alone = [
        next((f"{ratios[chain]:.2f}" for chain in chains if chain in ratios), "")
        for chains in _ALONE.values()
    ]
    first, best = rows[0], next(row for row in rows if row["winner"] == "True")
    size = first["batch"] if first["sequence"] == "0" else f"{first['batch']} x {first['sequence']}"
    low, ratio, high = (float(best[name]) for name in ("ratio_low", "ratio", "ratio_high"))
    return (
        first["model"],
        first["dtype"],
        size,
        f"{float(first['milliseconds']):.2f}",
        *alone,
        f"**{ratio:.2f}** ({low:.2f} to {high:.2f})",
        f"{float(best['milliseconds']):.2f}",
        f"`{best['chain']}`",
    )
