"""onnxfold bench."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption, ThreadsOption, with_options


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
    from onnxfold.report.printed_bench import print_benchmark
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
