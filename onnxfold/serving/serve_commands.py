"""onnxfold serve and onnxfold triton."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from onnxfold.cli import terminal
from onnxfold.cli.guard import go_on_as_usual
from onnxfold.cli.options import FOLDED, Model, ReportOption, with_options
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import OnnxfoldError, printable
from onnxfold.serving.settings import NamedModel, ServeSettings, read_token, tls_files
from onnxfold.serving.triton.deployment import Deployment

if TYPE_CHECKING:
    from rich.console import Console

    from onnxfold.serving.host.model import OnnxModel

_NEEDED = ("mlserver", "onnxruntime")
# Refused requests are warnings, all others information.
_LOG_LEVELS = {
    Verbosity.QUIET: logging.ERROR,
    Verbosity.NORMAL: logging.WARNING,
    Verbosity.VERBOSE: logging.INFO,
}

_Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="ONNX models, each PATH or NAME=PATH; the name is that of the file.",
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Answer only requests with `authorization: Bearer` and this token."
    ),
]
_TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE.pem", help="Speak TLS with this certificate chain.")
]
_TlsKey = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The key of --tls-cert.")]


@with_options(of=ServeSettings)
def serve(
    context: typer.Context,
    models: _Models,
    *,
    chosen: dict[str, Any],
    token_file: _TokenFile = None,
    tls_cert: _TlsCert = None,
    tls_key: _TlsKey = None,
) -> None:
    """Serve models over REST and gRPC: the Open Inference Protocol (KServe V2).

    Each model is optimized, proved and checked first, into a temporary file, unless onnxfold wrote
    it or `--no-optimize` is set. Waiting requests are batched if their shapes allow it and a trial
    at the start finds the rows independent. SIGTERM finishes requests in progress, then exits with
    0. Needs `pip install 'onnxfold[serve]'`.

    `onnxfold serve model.onnx` serves it as `model`:
    POST http://127.0.0.1:8080/v2/models/model/infer

    `onnxfold serve fast=model.onnx plain=other.onnx --workers 2 --max-batch 32`

    Refused requests are logged, with the reason; with `-v` every request is.

    Ready: GET /v2/health/ready. Metrics: http://127.0.0.1:8082/metrics.
    Load a changed file: POST /v2/repository/models/model/load.
    """
    _check_installed()
    go_on_as_usual()
    from onnxfold.serving.host.server import run

    settings = ServeSettings(
        models=tuple(NamedModel.parse(text) for text in models),
        **chosen,
        token=None if token_file is None else read_token(token_file),
        tls=tls_files(tls_cert, tls_key),
    )
    quiet = context.obj is Verbosity.QUIET

    if settings.open_to_others is not None:
        _say(f"onnxfold: warning: {settings.open_to_others}", sys.stderr)

    def started(loaded: Sequence[OnnxModel]) -> None:
        if not quiet:
            for model in loaded:
                _say(_described(model, settings.max_batch), sys.stdout)
            _say(_ready(settings), sys.stdout)

    run(settings, log_level=_LOG_LEVELS[context.obj], started=started)


def _say(line: str, stream: TextIO) -> None:
    """Write a line at once; a server continues even if its log cannot be written (a full disk)."""
    with suppress(OSError):
        os.write(stream.fileno(), f"{printable(line)}\n".encode())


def _ready(settings: ServeSettings) -> str:
    at = f"[{settings.host}]" if ":" in settings.host else settings.host
    http = "http" if settings.tls is None else "https"
    return (
        f"ready: {http}://{at}:{settings.http_port}/v2, gRPC {at}:{settings.grpc_port}, "
        f"metrics {http}://{at}:{settings.metrics_port}/metrics"
    )


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


@with_options(of=Deployment, into="deployment")
@with_options(*FOLDED)
def triton(
    context: typer.Context,
    model: Model,
    *,
    deployment: dict[str, Any],
    chosen: dict[str, Any],
    report: ReportOption = None,
) -> None:
    """Optimize a model and write it into a model repository of Triton Inference Server.

    DIR gets the folder of the model: its configuration, the kernels, and the version. Nothing is
    written unless the proof and the check pass; existing versions stay.

    `onnxfold triton model.onnx --repository models --max-batch 16`

    `onnxfold triton model.onnx --repository models --repository-in-server /models`
    for a server that has DIR mounted at /models.
    """
    from onnxfold.serving.triton.repository import publish

    verbosity: Verbosity = context.obj
    terminal.check_reports(report, model, force=deployment["force"])
    with terminal.progress(verbosity, model, deployment["repository"]) as progress:
        published = publish(model, Deployment(**deployment), progress=progress, **chosen)
    terminal.tell_result(published.report, report, verbosity, as_json=False, source=model)
    _print_deployment(terminal.console(verbosity), published.report)
    if verbosity is Verbosity.QUIET:
        terminal.warn(_cautions(published.report))


def _print_deployment(console: Console, report: Mapping[str, Any]) -> None:
    """Print what happened to the model repository, after the result of optimize."""
    from onnxfold.model_io import shown_path
    from onnxfold.report.printed import print_cautions

    document = report["triton"]
    for path in document["files"]:
        if path != report["output"]["path"]:
            console.print(f"wrote {shown_path(path)}", soft_wrap=True)
    if not report["output"]["functions"]:
        console.print(f"no kernels: {document['without_kernels']}")
    print_cautions(console, _cautions(report))
    command = f"tritonserver --model-repository={document['server_repository']}"
    console.print(f"serve it with: {command}", soft_wrap=True)


def _cautions(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a model in a repository needs but lacks, and what was not tried."""
    document = report["triton"]
    if document["without_kernels"] is not None and report["output"]["functions"]:
        yield f"no kernels: {document['without_kernels']}"
    if document["batches_not_tried"] is not None:
        yield f"batching of requests was not tried: {document['batches_not_tried']}"
