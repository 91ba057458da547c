"""MLServer's REST server with an inference endpoint for the binary tensor data extension.

MLServer's own endpoint converts JSON lists through pydantic, and refuses binary data; this one
reads arrays out of the body and writes them into it. The rest is MLServer's: health, metadata, the
model repository, its counters.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import orjson
import uvicorn
from fastapi import Request
from fastapi.responses import Response
from mlserver.errors import InferenceError, MLServerError
from mlserver.metrics.server import MetricsServer
from mlserver.rest.app import APIRoute
from mlserver.rest.server import RESTServer
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    RepositoryIndexRequest,
    RequestInput,
    RequestOutput,
)

from onnxfold.serving.codec import RequestError, elements, raw_bytes
from onnxfold.serving.host.connection import Connection
from onnxfold.serving.host.intake import Intake
from onnxfold.serving.host.model import demand_ready, ready_model, statistics
from onnxfold.serving.request_bodies import BodyBudget, size_in
from onnxfold.serving.settings import ServeSettings

_JSON_SIZE = "inference-header-content-length"
_VERSIONED = ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}")
_INDEX = "/v2/repository/index"


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that reports when it listens and leaves signals to its owner."""

    def __init__(self, config: uvicorn.Config, opened: asyncio.Event) -> None:
        super().__init__(config)  # its configuration has just set up the logging of uvicorn
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._opened = opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._opened.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Metrics(MetricsServer):
    """MLServer's metrics server, stopped by us."""

    def __init__(self, settings: Any, asked: ServeSettings, budget: BodyBudget) -> None:
        super().__init__(settings)
        self.opened = asyncio.Event()
        self._asked = asked
        self._budget = budget

    async def start(self) -> None:
        config = self._get_config()
        _guard(config, self._asked, self._budget)
        self._server = _Uvicorn(config, self.opened)
        await self._server.serve()


class Rest(RESTServer):
    """MLServer's REST server with our inference endpoint, stopped by us."""

    def __init__(
        self,
        settings: Any,
        data_plane: Any,
        handlers: Any,
        registry: Any,
        asked: ServeSettings,
        budget: BodyBudget,
    ) -> None:
        super().__init__(settings, data_plane, handlers)
        self._registry = registry
        self.opened = asyncio.Event()
        self._asked = asked
        self._budget = budget
        self._replace_routes()

    async def start(self) -> None:
        config = self._get_config()
        config.timeout_graceful_shutdown = self._asked.grace_s
        self._intake = _guard(config, self._asked, self._budget)
        self._server = _Uvicorn(config, self.opened)
        await self._server.serve()

    async def stop(self, sig: int | None = None) -> None:
        """Refuse incomplete requests; complete ones are answered within the grace period."""
        self._intake.stop()
        await super().stop(sig)

    async def infer(
        self, request: Request, model_name: str, model_version: str | None = None
    ) -> Response:
        """Answer POST /v2/models/{model}/infer."""
        await demand_ready(self._data_plane, model_name, model_version)
        payload, wanted = _read(await request.body(), request.headers)
        try:
            response = await self._data_plane.infer(payload, model_name, model_version)
        except asyncio.CancelledError:  # uvicorn cancels requests that outlast the grace period
            raise MLServerError("the server is stopping", status_code=503) from None
        return _written(response, wanted)

    async def config(self, model_name: str, model_version: str | None = None) -> Response:
        """Answer GET /v2/models/{model}/config."""
        model = await ready_model(self._registry, model_name, model_version)
        return Response(orjson.dumps(model.config()), media_type="application/json")

    async def statistics(
        self, model_name: str | None = None, model_version: str | None = None
    ) -> Response:
        """Answer GET /v2/models/{model}/stats, and /v2/models/stats for all models."""
        document = await statistics(self._registry, model_name, model_version)
        return Response(orjson.dumps(document), media_type="application/json")

    async def index(self, request: Request) -> Any:
        """Answer POST /v2/repository/index, whose body may be missing."""
        asked = _json(await request.body() or b"{}")
        payload = RepositoryIndexRequest(ready=bool(asked.get("ready")))
        return await self._model_repository_handlers.index(payload)

    def _replace_routes(self) -> None:
        """Install our endpoints; remove streams and `generate`, which an ONNX model lacks."""
        router = self._app.router
        theirs = ("/infer", "/infer_stream", "/generate", "/generate_stream")
        router.routes[:] = [
            route
            for route in router.routes
            if not route.path.endswith(theirs) and route.path != _INDEX
        ]
        for path in _VERSIONED:
            for name, method, endpoint in (
                ("infer", "POST", self.infer),
                ("config", "GET", self.config),
                ("stats", "GET", self.statistics),
            ):
                router.routes.append(
                    APIRoute(f"{path}/{name}", endpoint, methods=[method], response_model=None)
                )
        # Placed before the metadata of a model, so no model can be named `stats`.
        router.routes.insert(0, APIRoute("/v2/models/stats", self.statistics, response_model=None))
        router.routes.append(APIRoute(_INDEX, self.index, methods=["POST"], response_model=None))


def _guard(config: uvicorn.Config, asked: ServeSettings, budget: BodyBudget) -> Intake:
    """Add the limits, the token and TLS to an application."""
    config.app = intake = Intake(config.app, asked, budget)
    config.http = partial(
        Connection, header_timeout_s=asked.header_timeout_s, linger_s=asked.linger_s
    )
    if asked.tls is not None:
        config.ssl_certfile, config.ssl_keyfile = asked.tls
    return intake


def _json(text: bytes | memoryview) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InferenceError(f"the request is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InferenceError("the request is not a JSON object")
    return document


def _read(
    body: bytes, headers: Mapping[str, str]
) -> tuple[InferenceRequest, Mapping[str, bool | None]]:
    """Return the request, and whether each output, and "" for the rest, is requested as binary."""
    said = headers.get(_JSON_SIZE)
    split = len(body) if said is None else size_in(said, len(body))
    if split is None:
        raise InferenceError(
            f"the header {_JSON_SIZE} is not a size within the body: '{str(said)[:40]}'"
        )
    binary = memoryview(body)[split:]
    document = _json(memoryview(body)[:split])
    inputs, offset = [], 0
    for entry in _list(document, "inputs"):
        one, used = _input(entry, binary[offset:])
        inputs.append(one)
        offset += used
    if offset != len(binary):
        raise InferenceError(f"the body has {len(binary) - offset} bytes that belong to no input")
    outputs = _list(document, "outputs")
    for entry in outputs:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InferenceError("an output has no name")
    wanted = {"": bool(_parameters(document).get("binary_data_output"))}
    wanted |= {
        entry["name"]: bool(parameters["binary_data"])
        for entry in outputs
        if "binary_data" in (parameters := _parameters(entry))
    }
    identity = document.get("id")
    request = InferenceRequest.model_construct(
        id=None if identity is None else str(identity),
        parameters=None,
        inputs=inputs,
        outputs=[RequestOutput.model_construct(name=entry["name"]) for entry in outputs],
    )
    return request, wanted


def _list(document: Mapping[str, Any], key: str) -> Sequence[Any]:
    entries = document.get(key) or []
    if not isinstance(entries, list):
        raise InferenceError(f"'{key}' is not a list")
    return entries


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InferenceError("'parameters' is not an object")
    return parameters


def _input(entry: Any, binary: memoryview) -> tuple[RequestInput, int]:
    """Return an input and the number of its bytes in the binary part."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InferenceError("an input has no name")
    name, shape = entry["name"], entry.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise InferenceError(f"the shape of input '{name}' is not a list of whole numbers")
    data, size = entry.get("data"), _parameters(entry).get("binary_data_size")
    if (size is None) == (data is None):
        raise InferenceError(
            f"input '{name}' must have either 'data' or the parameter 'binary_data_size'"
        )
    if size is None:
        size = 0
        if not isinstance(data, list):
            raise InferenceError(f"the data of input '{name}' is not a list")
    elif type(size) is not int or not 0 <= size <= len(binary):
        raise InferenceError(f"input '{name}' claims {size} bytes, the body has {len(binary)} left")
    else:
        data = binary[:size]
    datatype = entry.get("datatype")
    if not isinstance(datatype, str):
        raise InferenceError(f"input '{name}' has no datatype")
    return RequestInput.model_construct(name=name, datatype=datatype, shape=shape, data=data), size


def _written(response: InferenceResponse, wanted: Mapping[str, bool | None]) -> Response:
    outputs, tail = [], []
    for output in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if wanted.get(output.name, wanted[""]):
            content = raw_bytes(output.data)
            entry["parameters"] = {"binary_data_size": len(content)}
            tail.append(content)
        else:
            try:
                entry["data"] = elements(output.data)
            except RequestError as error:
                raise InferenceError(f"{response.model_name}: {error}") from error
        outputs.append(entry)
    head = orjson.dumps(
        {
            "model_name": response.model_name,
            "model_version": response.model_version,
            "id": response.id,
            "outputs": outputs,
        }
    )
    if not tail:
        return Response(head, media_type="application/json")
    return Response(
        b"".join([head, *tail]),
        media_type="application/octet-stream",
        headers={_JSON_SIZE: str(len(head))},
    )
