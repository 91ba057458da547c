"""The output of ``bench``: times, relative speeds, and the slowest operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from onnxfold.report.fitted_tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

_QUIET = "stop other programs, give --threads a core each, or try --rounds 200"


def print_benchmark(console: Console, document: Mapping[str, Any]) -> None:
    """Print the models by letter, one row per model and kernel choice, and the conclusions."""
    measured: Sequence[Mapping[str, Any]] = document["measurements"]
    letters = _letters(measured)
    for model, letter in letters.items():
        console.print(f"{letter}: {model}", soft_wrap=True)
    rows = [
        (
            letters[row["model"]],
            "onnxfold's" if row["kernels"] else "stock",
            f"{row['median_ms']:.3f}",
            f"{row['p20_ms']:.3f} to {row['p80_ms']:.3f}",
            f"{row['speed']:.2f}",
            f"{row['speed_p20']:.2f} to {row['speed_p80']:.2f}",
        )
        for row in measured
    ]
    headings = ("ms", "20% to 80%", "times as fast", "20% to 80%")
    print_table(console, ("", "kernels"), rows, headings)
    for row in measured[1:]:
        console.print(_verdict(row, measured[0], letters), style="bold")
    for row in measured:
        spent = ", ".join(f"{name} {ms:.3f}" for name, ms in row["operators"].items())
        console.print(f"slowest operators of {_named(row, letters)}: {spent} ms")
    shapes = ", ".join(f"{name} {shape}" for name, shape in document["inputs"].items())
    threads = f"{document['threads']} thread{'' if document['threads'] == 1 else 's'}"
    console.print(
        f"onnxruntime {document['onnxruntime']}, {', '.join(document['providers'])}, "
        f"{threads}, {document['rounds']} rounds in turns, {shapes}"
    )


def _letters(measured: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a short name for each model: a letter, followed by a number from the 27th on."""
    models = dict.fromkeys(row["model"] for row in measured)
    count = len(ascii_uppercase)
    return {
        model: ascii_uppercase[number % count] + (str(number // count) if number >= count else "")
        for number, model in enumerate(models)
    }


def _named(row: Mapping[str, Any], letters: Mapping[str, str]) -> str:
    return letters[row["model"]] + (" with onnxfold's kernels" if row["kernels"] else "")


def _verdict(row: Mapping[str, Any], first: Mapping[str, Any], letters: Mapping[str, str]) -> str:
    who, than = _named(row, letters), _named(first, letters)
    if row["apart"]:
        return f"{who} is {row['speed']:.2f} times as fast as {than}"
    return (
        f"{who} against {than}: undecided, because rounds differ more ({row['speed_p20']:.2f} to "
        f"{row['speed_p80']:.2f} times as fast) than the models do; {_QUIET}"
    )
