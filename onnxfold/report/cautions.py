"""Facts about a result that a user must know even in quiet mode, one sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnxfold.check.result import FAR
from onnxfold.report import sentences


def unmatched(exclude: str, norms: Iterable[str]) -> Iterator[str]:
    """Yield a warning for a pattern that matches no name of a norm."""
    if not any(re.search(exclude, name) for name in norms):
        yield f"warning: --exclude {exclude!r} matches the name of no norm"


def of_norms(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield faults of the request, from the document of ``inspect``."""
    if document.get("unmatched_exclude") is not None:
        yield from unmatched(document["unmatched_exclude"], ())


def of_plan(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield costs of the result of a run, and what was left out of it."""
    if report["inspect"].get("range_warnings"):
        yield sentences.widest(report["inspect"]["range_warnings"])
    for left in report.get("left_out", ()):
        moves = [{"name": name} for name in left.get("moves", ())]
        where = f" for {named(moves)}" if moves else ""
        yield f"the pass '{left['name']}' was left out{where}: {left['reason']}"


def of_check(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the outputs for which a comparison is weaker than for others."""
    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    noisy = [row for row in outputs if row["relative_noise"] is None or row["relative_noise"] > FAR]
    if noisy:
        noisy.sort(key=lambda row: -(row["relative_noise"] or float("inf")))
        size = digits(noisy[0]["relative_noise"], 2)
        yield (
            f"warning: {named(noisy)}: rounding errors of the original alone are {size} times the "
            f"output's size (chaotic, quantized or close to 0), so that an error of "
            f"{digits(noisy[0]['bound'], 2)} passes"
        )
    if names := document.get("nothing_compared"):
        yield (
            f"warning: nothing was compared for {named([{'name': name} for name in names])}: it "
            "is empty, or all of it is NaN or infinite, in the original too; give inputs for which "
            "it is not (--inputs)"
        )


def of_result(report: Mapping[str, Any]) -> list[str]:
    """Return every sentence on a run of optimize or convert."""
    verification = report.get("verification", {})
    check = of_check(verification) if "outputs" in verification else ()
    return [*of_norms(report["inspect"]), *of_plan(report), *check]


def named(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the first of some outputs, and count the others."""
    others = f" and {sentences.counted(len(rows) - 1, 'other output')}" if len(rows) > 1 else ""
    return f"'{rows[0]['name']}'{others}"


def digits(number: float | None, count: int) -> str:
    """Return a number of the JSON document, in which infinities and NaN are null."""
    return "not finite" if number is None else f"{number:.{count}g}"
