"""The output of ``optimize`` for many models: a row for each, and why some failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.fleet import FleetRow
from onnxfold.report.fitted_tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

_NONE = "-"


def print_many(console: Console, rows: Sequence[FleetRow], *, full: bool, dry_run: bool) -> None:
    """Print a row for each model, the reasons of failures, and the totals."""
    results = [_result(row, dry_run=dry_run) for row in rows]
    cells = [
        (row.model, *_counts(row.found.get("report", {})), _styled(result))
        for row, result in zip(rows, results, strict=True)
    ]
    headings = ("model", "LayerNorms fold", "session nodes", "result")
    print_table(console, headings, cells, names=(0,), full=full)
    for row in rows:
        if row.failure is not None:
            console.print(f"failed: {row.failure}", style="red")
        for warning in row.found.get("warnings", ()):
            console.print(f"{row.model}: {warning}", style="yellow")
    counted = ", ".join(f"{number} {result}" for result, number in Counter(results).items())
    console.print(f"{len(rows)} model{'s' * (len(rows) != 1)}: {counted}")


def _result(row: FleetRow, *, dry_run: bool) -> str:
    if row.error is not None:
        return "failed"
    if dry_run:
        return "planned"
    return "written" if row.found["report"]["changed"] else "unchanged"


def _styled(result: str) -> Any:
    from rich.text import Text

    return Text(result, {"failed": "bold red", "written": "green"}.get(result, ""))


def _counts(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return how many norms fold, and what a session executes before and after."""
    if not report:
        return _NONE, _NONE
    summary = report["inspect"]["summary"]
    folds = f"{summary['folded'] - summary.get('folds_of_others', 0)} of {summary['layer_norms']}"
    sides = [report.get("before_after", {}).get(side, {}) for side in ("before", "after")]
    counts = [side.get("session_operators") for side in sides]
    if None in counts:
        return folds, _NONE
    return folds, " -> ".join(f"{sum(each.values()):,}" for each in counts)
