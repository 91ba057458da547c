"""Facts about a result that a user must know even in quiet mode, one sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnxfold.check.result import FAR
from onnxfold.report.sentences import counted


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
        yield widest(report["inspect"]["range_warnings"])
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
    others = f" and {counted(len(rows) - 1, 'other output')}" if len(rows) > 1 else ""
    return f"'{rows[0]['name']}'{others}"


def digits(number: float | None, count: int) -> str:
    """Return a number of the JSON document, in which infinities and NaN are null."""
    return "not finite" if number is None else f"{number:.{count}g}"


def widest(warnings: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for all weights whose range grows: the count, and the worst."""
    worst = max(warnings, key=lambda warning: warning["widening"])
    others = f", the most of {counted(len(warnings), 'weight')}" if len(warnings) > 1 else ""
    return (
        f"warning: {worst['cause']} widens the range of '{worst['weight']}' "
        f"{worst['widening']:.3g} times{others}, which may exceed the range of float16 and costs "
        "int8 precision; --exclude leaves it"
    )


def inexact(document: Mapping[str, Any] | None) -> list[str]:
    """Return the lines on small means that were dropped."""
    if document is None:
        return []
    norms: Sequence[Mapping[str, Any]] = document["norms"]
    dropped = [norm for norm in norms if norm["reason"] is None]
    checked = document["verification"]
    errors = [o["worst"].get("relative") for o in checked["outputs"]]
    worst = max((error for error in errors if error is not None), default=0.0)
    lines = [
        f"inexact: {len(dropped)} of {counted(len(norms), 'LayerNorm')} that stayed are RMSNorms "
        f"now, whose means are at most {document['drop_means']:g} of the length; outputs err by "
        f"{worst:.2g} at most, {checked['budget']['relative']:g} is allowed ({checked['data']})"
    ]
    for norm in norms:
        if norm["of_length"] is None:
            lines.append(f"{norm['name']}: {norm['reason']}")
            continue
        what = "dropped" if norm["reason"] is None else f"stays: {norm['reason']}"
        lines.append(
            f"{norm['name']}: mean up to {norm['of_length']:.2g} of the length, error "
            f"{norm['error']:.2g}; {what}"
        )
    return lines
