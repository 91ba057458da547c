"""onnxfold serve."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from onnxfold.cli.options import with_options
from onnxfold.cli.startup import go_on_as_usual
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import OnnxfoldError, printable

if TYPE_CHECKING:
    from onnxfold.serving import ServeSettings
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
_Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Listen here; 0.0.0.0 for every address.")
]
_MaxBatch = Annotated[
    int,
    typer.Option(
        metavar="ROWS", help="Run requests that wait together, up to this; 1 turns it off."
    ),
]
_Delay = Annotated[
    float,
    typer.Option(metavar="MS", help="Let a request wait this long for others to join it."),
]
_Threads = Annotated[
    int, typer.Option(metavar="N", help="Threads within an operator; 0: one for each core.")
]
_Workers = Annotated[int, typer.Option(metavar="N", help="Runs that go on at once.")]
_NoOptimize = Annotated[bool, typer.Option("--no-optimize", help="Serve the models as they are.")]
_Grace = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="How long a stop waits for requests under way."),
]
_Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535)]
_MaxRequest = Annotated[
    int,
    typer.Option(
        metavar="BYTES", min=1, help="Refuse larger requests, as sent and as decompressed."
    ),
]
_MaxBuffered = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        min=1,
        show_default="4 of the largest requests",
        help="Bytes of all requests that are held at once; others are refused with 503.",
    ),
]
_HeaderTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long the head of an HTTP request may take.")
]
_BodyTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="How long its body may take; a second more for each 64 KiB."
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


@with_options("providers")
def serve(
    context: typer.Context,
    models: _Models,
    *,
    chosen: dict[str, Any],
    host: _Host = "127.0.0.1",
    http_port: _Port = 8080,
    grpc_port: _Port = 8081,
    metrics_port: _Port = 8082,
    max_batch: _MaxBatch = 16,
    batch_delay_ms: _Delay = 0.0,
    threads: _Threads = 1,
    workers: _Workers = 1,
    no_optimize: _NoOptimize = False,
    grace: _Grace = 30.0,
    max_request_bytes: _MaxRequest = 1 << 28,
    max_buffered: _MaxBuffered = None,
    header_timeout: _HeaderTimeout = 10.0,
    body_timeout: _BodyTimeout = 30.0,
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
    from onnxfold.serving import NamedModel, ServeSettings
    from onnxfold.serving.host.server import run
    from onnxfold.serving.settings import read_token, tls_files

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
        providers=chosen["providers"],
        grace_s=grace,
        max_request_bytes=max_request_bytes,
        max_buffered=max_buffered,
        header_timeout_s=header_timeout,
        body_timeout_s=body_timeout,
        token=None if token_file is None else read_token(token_file),
        tls=tls_files(tls_cert, tls_key),
    )
    quiet = context.obj is Verbosity.QUIET

    if settings.open_to_others is not None:
        _say(f"onnxfold: warning: {settings.open_to_others}", sys.stderr)

    def started(loaded: Sequence[OnnxModel]) -> None:
        if not quiet:
            for model in loaded:
                _say(_described(model, max_batch), sys.stdout)
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
