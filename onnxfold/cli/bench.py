"""onnxfold bench."""

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import InputsOption, JsonOption, ProvidersOption, SeedOption


def bench(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL", help="The models; ratios are to the first.")
    ],
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds; each runs every model.")] = 30,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads within an operator.")] = 1,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    providers: ProvidersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time models against each other in ONNX Runtime, with and without onnxfold's kernels.

    Runs are interleaved, so that a machine that slows down slows all of them; the ratio is the
    median over rounds of a model's time to the first one's.
    """
    from onnxfold.report import printed
    from onnxfold.runtime.bench import bench as measure

    with terminal.progress(context.obj, models[0], lines=not as_json) as progress:
        measured = measure(
            models,
            rounds=rounds,
            threads=threads,
            inputs=tuple(inputs or ()),
            seed=seed,
            providers=tuple(providers or ()),
            progress=progress,
        )
    if as_json:
        terminal.print_json(measured.to_json())
    else:
        printed.print_benchmark(terminal.console(), measured.to_json())
