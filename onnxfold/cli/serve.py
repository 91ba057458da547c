"""onnxfold serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from onnxfold.cli.options import ProvidersOption
from onnxfold.cli.startup import go_on_as_usual
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import OnnxfoldError

if TYPE_CHECKING:
    from onnxfold.serving.host.model import OnnxModel

__all__ = ["serve"]

_NEEDED = ("mlserver", "onnxruntime")

_Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535)]


def serve(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [MODEL ...]",
            help="ONNX models, each PATH or NAME=PATH; the name is that of the file.",
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here; 0.0.0.0 for every address.")
    ] = "127.0.0.1",
    http_port: _Port = 8080,
    grpc_port: _Port = 8081,
    metrics_port: _Port = 8082,
    max_batch: Annotated[
        int,
        typer.Option(
            metavar="ROWS", help="Run requests that wait together, up to this; 1 turns it off."
        ),
    ] = 16,
    batch_delay_ms: Annotated[
        float,
        typer.Option(metavar="MS", help="Let a request wait this long for others to join it."),
    ] = 0.0,
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads within an operator; 0: one for each core.")
    ] = 1,
    workers: Annotated[int, typer.Option(metavar="N", help="Runs that go on at once.")] = 1,
    no_optimize: Annotated[
        bool, typer.Option("--no-optimize", help="Serve the models as they are.")
    ] = False,
    providers: ProvidersOption = None,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long a stop waits for requests under way."),
    ] = 30.0,
) -> None:
    """Serve models over REST and gRPC: the Open Inference Protocol (KServe V2).

    Each model is optimized, proved and checked first, into a temporary file, unless onnxfold wrote
    it or `--no-optimize` is set. Requests that wait are run together where the shapes allow it and
    a trial at the start finds the rows independent. SIGTERM answers what is under way, then exits
    with 0. Needs `pip install 'onnxfold[serve]'`.

    `onnxfold serve model.onnx` serves it as `model`:
    POST http://127.0.0.1:8080/v2/models/model/infer

    `onnxfold serve fast=model.onnx plain=other.onnx --workers 2 --max-batch 32`

    Ready: GET /v2/health/ready. Metrics: http://127.0.0.1:8082/metrics.
    Load a changed file: POST /v2/repository/models/model/load.
    """
    _check_installed()
    go_on_as_usual()
    from onnxfold.serving import NamedModel, ServeSettings
    from onnxfold.serving.host.server import run

    settings = ServeSettings(
        models=tuple(NamedModel.parse(text) for text in models),
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        max_batch=max_batch,
        batch_delay_ms=batch_delay_ms,
        threads=threads,
        workers=workers,
        optimize=not no_optimize,
        providers=tuple(providers or ()),
        grace_s=grace,
    )
    quiet = context.obj is Verbosity.QUIET

    def started(loaded: Sequence[OnnxModel]) -> None:
        if not quiet:
            for model in loaded:
                typer.echo(_described(model, max_batch))
            at = f"[{host}]" if ":" in host else host
            typer.echo(
                f"ready: http://{at}:{http_port}/v2, gRPC {at}:{grpc_port}, "
                f"metrics http://{at}:{metrics_port}/metrics"
            )

    run(settings, quiet=quiet, started=started)


def _described(model: OnnxModel, max_batch: int) -> str:
    engine = model.loaded()
    kernels = "with onnxfold's kernels" if engine.kernels is None else "without kernels"
    if engine.unbatched is not None:
        batches = f"one request at a time: {engine.unbatched}"
    else:
        batches = f"up to {max_batch} rows at a time"
    return f"{model.name}: {kernels}, {batches}"


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise OnnxfoldError(
            f"serving needs {' and '.join(missing)}: pip install 'onnxfold[serve]' "
            "(MLServer is for Python 3.11 and 3.12)"
        )
