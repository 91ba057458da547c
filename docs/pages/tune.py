"""The tables of docs/tune.md: what `tune` chose, compared with the tools alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.tables import Row, between, read_rows, table

__all__ = ["with_tune"]

# By device: the rows, and chains of one tool, with the converter where the precision is reduced.
_FUSIONS = ("fusions", "unflatten > fusions")
_TABLES: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    "gpu": (
        "gpu_tune.csv",
        {
            "float16 converter": ("fp16",),
            "optimizer": ("optimizer > fp16", "optimizer"),
            "fusions": _FUSIONS,
        },
    ),
    "cpu": (
        "tune.csv",
        {
            "optimizer": ("optimizer",),
            "fusions": _FUSIONS,
            "`quantize_dynamic`": ("int8", "int8-channel"),
        },
    ),
}


def with_tune(page: str) -> str:
    """Replace what is generated in tune.md."""
    for device, (file, alone) in _TABLES.items():
        rows = read_rows(file)
        cases = dict.fromkeys(map(_case, rows))
        lines = [_line([row for row in rows if _case(row) == case], alone) for case in cases]
        headings = ("model", "export", "batch", "ms", *(f"{n} alone" for n in alone), "`tune`")
        headings = (*headings, "ms", "chain")
        if device == "cpu":
            headings = (*headings, "of the best of")
            lines = [(*line, _of_best(case)) for line, case in zip(lines, cases, strict=True)]
        begin = f"<!-- {device}: written by docs/generate.py -->\n"
        made = table(headings, lines)
        page = between(page, begin, f"<!-- end of {device} -->", made)
    return page


def _case(row: Row) -> tuple[str, ...]:
    """Return what was tuned: an export, on a processor."""
    return row["model"], row["dtype"], row["cpu"]


def _line(rows: Sequence[Row], single: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    ratios = {row["chain"]: float(row["ratio"]) for row in rows if row["status"] == "right"}
    every = ([ratios[chain] for chain in chains if chain in ratios] for chains in single.values())
    alone = [f"{max(found):.2f}" if found else "" for found in every]
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


def _of_best(case: tuple[str, ...]) -> str:
    """Return how near the winner is to the best of all right chains, where none was cut off."""
    rows = read_rows("tune_exhaustive.csv")
    found = [row for row in rows if _case(row) == case and row["skipped"] == "0"]
    return f"{float(found[0]['of_best']):.3f}, {found[0]['candidates']}" if found else ""
