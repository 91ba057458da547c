"""MLServer assembled for onnxfold: start, readiness, signals, a stop that loses no request."""

import asyncio
import logging
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlserver import MLServer, ModelSettings, Settings
from mlserver.errors import MLServerError, ModelNotFound
from mlserver.handlers import ModelRepositoryHandlers
from mlserver.repository import ModelRepository

from onnxfold import __version__
from onnxfold.errors import OnnxfoldError, UsageError
from onnxfold.serving.host.access_log import LOG
from onnxfold.serving.host.model import OnnxModel, Shared, model_settings
from onnxfold.serving.host.rest import Metrics, Rest
from onnxfold.serving.host.rpc import Rpc
from onnxfold.serving.host.sockets import allow_connections
from onnxfold.serving.plain_logs import plain_logs
from onnxfold.serving.request_bodies import BodyBudget
from onnxfold.serving.settings import ServeSettings

Started = Callable[[Sequence[OnnxModel]], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]


def run(settings: ServeSettings, *, log_level: int, started: Started) -> None:
    """Serve until SIGTERM or SIGINT; `started` receives the models when all are ready.

    Raises UsageError for a port in use, and as loading does for a model that cannot be served;
    requests in progress at the signal are answered. Logs are written from ``log_level`` on: refused
    requests are warnings, all others information.
    """
    for name, port in (
        ("--http-port", settings.http_port),
        ("--grpc-port", settings.grpc_port),
        ("--metrics-port", settings.metrics_port),
    ):
        _check_port(settings.host, port, name)
    allow_connections()
    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    with plain_logs(), tempfile.TemporaryDirectory(prefix="onnxfold-serve-") as folder:
        shared = Shared(settings, Path(folder))
        try:
            asyncio.run(_serve(shared, log_level=log_level, started=started))
        finally:
            shared.executor.shutdown()
            shared.last_resort.cancel()
            for number, handler in usual.items():
                signal.signal(number, handler)


async def _serve(shared: Shared, *, log_level: int, started: Started) -> None:
    server = _Server(shared, log_level=log_level)
    await server.run(started)


class _Repository(ModelRepository):
    """The models of the command line: which may be loaded, unloaded and loaded again."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def find(self, name: str) -> list[ModelSettings]:
        found = [one for one in await self.list() if one.name == name]
        if not found:
            raise ModelNotFound(name)
        return found

    async def list(self) -> Sequence[ModelSettings]:
        return [model_settings(model, self._shared) for model in self._shared.settings.models]


class _Handlers(ModelRepositoryHandlers):
    async def load(self, name: str) -> bool:
        """Load a model again; if that fails, report it and keep the old one."""
        try:
            return bool(await super().load(name))
        except OnnxfoldError as error:
            raise MLServerError(str(error), status_code=400) from error


class _Server(MLServer):
    def __init__(self, shared: Shared, *, log_level: int) -> None:
        self._shared = shared
        self._stopping = asyncio.Event()
        asked = shared.settings
        super().__init__(
            Settings(
                debug=False,
                parallel_workers=0,
                server_name="onnxfold",
                server_version=__version__,
                extensions=_EXTENSIONS,
                host=asked.host,
                http_port=asked.http_port,
                grpc_port=asked.grpc_port,
                metrics_port=asked.metrics_port,
                gzip_enabled=False,
            )
        )
        for name in ("mlserver", "mlserver.rest", "mlserver.grpc"):
            logging.getLogger(name).setLevel(max(log_level, logging.WARNING))
        LOG.setLevel(log_level)

    def _create_servers(self) -> None:
        self._model_repository_handlers = _Handlers(
            repository=_Repository(self._shared), model_registry=self._model_registry
        )
        asked = self._shared.settings
        budget = BodyBudget(asked.most_buffered)
        parts: tuple[Any, Any, Any, Any, ServeSettings, BodyBudget] = (
            self._settings,
            self._data_plane,
            self._model_repository_handlers,
            self._model_registry,
            asked,
            budget,
        )
        self._rest_server = Rest(*parts)
        self._grpc_server = Rpc(*parts)
        self._metrics_server = Metrics(self._settings, asked, budget)
        self._kafka_server = None

    def _add_signal_handlers(self) -> None:
        """Stop on a signal; the end is scheduled then, whatever the loop is busy with."""
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            self._shared.last_resort.start()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._stopping.set)

        for number in _SIGNALS:
            signal.signal(number, stop)

    async def run(self, started: Started) -> None:
        """Open the ports, load the models, serve until a signal, stop."""
        wanted = [model_settings(one, self._shared) for one in self._shared.settings.models]
        # Created first, so that the models are known, and not ready, when the ports open.
        loading = asyncio.gather(*(self._model_registry.load(one) for one in wanted))
        servers = (self._rest_server, self._grpc_server, self._metrics_server)
        running = [asyncio.ensure_future(server.start()) for server in servers]
        serving = asyncio.gather(*running)
        opened = asyncio.gather(*(server.opened.wait() for server in servers))
        stopped = asyncio.ensure_future(self._stopping.wait())
        await _first(opened, serving)
        try:
            await _first(loading, stopped, serving)
            if loading.done():
                started(loading.result())
                await _first(stopped, serving)
        finally:
            for task in (opened, stopped, loading):
                task.cancel()
            await self._stop(running[0], serving)

    async def _stop(self, rest: asyncio.Future[None], serving: asyncio.Future[Any]) -> None:
        """Accept no further requests, answer those in progress, then release the models."""
        await asyncio.gather(self._rest_server.stop(), self._grpc_server.stop())
        await asyncio.wait((rest,))  # stopping is a request, carried out a little later
        for model in list(await self._model_registry.get_models()):
            await model.unload()
        await self._metrics_server.stop()
        await serving


async def _first(*waited: asyncio.Future[Any]) -> None:
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)


def _check_port(host: str, port: int, option: str) -> None:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--host {host} with {option} {port} is not an address: {error}"
        ) from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except (OSError, OverflowError) as error:
            raise UsageError(f"{option}: cannot listen on {host}:{port}: {error}") from error
