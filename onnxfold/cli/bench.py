"""onnxfold bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption, ThreadsOption, with_options
from onnxfold.report.fitted_tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

_QUIET = "stop other programs, give --threads a core each, or try --rounds 200"


@with_options("inputs", "seed", "providers")
def bench(
    context: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL", help="The models; the first is what others are compared with."
        ),
    ],
    *,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds; each runs every model.")] = 30,
    threads: ThreadsOption = 1,
    chosen: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Time models against each other in ONNX Runtime, with and without onnxfold's kernels.

    Runs are interleaved, so a machine that slows down slows all of them. Speeds are medians over
    rounds: 1.09 is 1.09 times as fast as the first model. If rounds differ more than the models do,
    the result is undecided.
    """
    from onnxfold.runtime.bench import bench as measure

    with terminal.progress(context.obj, models[0], lines=not as_json) as progress:
        measured = measure(
            models,
            rounds=rounds,
            threads=threads,
            **chosen,
            progress=progress,
        )
    if as_json:
        terminal.print_json(measured.to_json())
    else:
        print_benchmark(terminal.console(context.obj), measured.to_json())


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
