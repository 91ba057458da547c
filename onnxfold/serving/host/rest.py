"""MLServer's REST server with an inference endpoint that knows the binary tensor data extension.

MLServer's own endpoint takes and gives JSON lists through pydantic, and refuses binary data; this
one reads arrays out of the body and writes them into it.  Everything else is MLServer's: health,
metadata, the model repository, its counters.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from starlette.requests import ClientDisconnect

from onnxfold.serving.codec import RequestError, elements, raw_bytes
from onnxfold.serving.host.model import demand_ready

__all__ = ["Metrics", "Rest"]

_JSON_SIZE = "inference-header-content-length"
_INFER = ("/v2/models/{model_name}/infer", "/v2/models/{model_name}/versions/{model_version}/infer")
_INDEX = "/v2/repository/index"


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that says when it listens and leaves signals to the one who runs it."""

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

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.opened = asyncio.Event()

    async def start(self) -> None:
        self._server = _Uvicorn(self._get_config(), self.opened)
        await self._server.serve()


class Rest(RESTServer):
    """MLServer's REST server with our inference endpoint, stopped by us."""

    def __init__(self, settings: Any, data_plane: Any, handlers: Any, *, grace_s: float) -> None:
        super().__init__(settings, data_plane, handlers)
        self.opened = asyncio.Event()
        self._grace_s = grace_s
        self._replace_routes()

    async def start(self) -> None:
        config = self._get_config()
        config.timeout_graceful_shutdown = self._grace_s
        self._server = _Uvicorn(config, self.opened)
        await self._server.serve()

    async def infer(
        self, request: Request, model_name: str, model_version: str | None = None
    ) -> Response:
        """Answer POST /v2/models/{model}/infer."""
        await demand_ready(self._data_plane, model_name, model_version)
        payload, wanted = _read(await _body(request), request.headers)
        try:
            response = await self._data_plane.infer(payload, model_name, model_version)
        except asyncio.CancelledError:  # uvicorn cancels what the grace period has not seen end
            raise MLServerError("the server is stopping", status_code=503) from None
        return _written(response, wanted)

    async def index(self, request: Request) -> Any:
        """Answer POST /v2/repository/index, whose body may be missing."""
        asked = _json(await request.body() or b"{}")
        payload = RepositoryIndexRequest(ready=bool(asked.get("ready")))
        return await self._model_repository_handlers.index(payload)

    def _replace_routes(self) -> None:
        """Put our endpoints in; drop streams and `generate`, which an ONNX model has not."""
        router = self._app.router
        theirs = ("/infer", "/infer_stream", "/generate", "/generate_stream")
        router.routes[:] = [
            route
            for route in router.routes
            if not route.path.endswith(theirs) and route.path != _INDEX
        ]
        for path in _INFER:
            router.routes.append(APIRoute(path, self.infer, methods=["POST"], response_model=None))
        router.routes.append(APIRoute(_INDEX, self.index, methods=["POST"], response_model=None))


async def _body(request: Request) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip", "deflate"):
        raise MLServerError(f"a body may be gzip or deflate, not '{encoding}'", status_code=415)
    try:
        body = await request.body()  # MLServer's Request undoes gzip
        return zlib.decompress(body) if encoding == "deflate" else body
    except ClientDisconnect as error:  # nobody will read this, but the log is spared a traceback
        raise InferenceError("the client left in the middle of its request") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InferenceError(f"the body is not {encoding}: {error}") from error


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
    """Return the request, and for each output, and "" for the rest, whether binary is wanted."""
    size = headers.get(_JSON_SIZE)
    if size is not None and not (size.isascii() and size.isdigit() and int(size) <= len(body)):
        raise InferenceError(f"the header {_JSON_SIZE} is no size within the body: '{size}'")
    split = len(body) if size is None else int(size)
    binary = memoryview(body)[split:]
    document = _json(memoryview(body)[:split])
    inputs, offset = [], 0
    for entry in _list(document, "inputs"):
        one, used = _input(entry, binary[offset:])
        inputs.append(one)
        offset += used
    if offset != len(binary):
        raise InferenceError(f"the body holds {len(binary) - offset} bytes that no input claims")
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
    """Return an input and how many bytes of the binary part it takes."""
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
    datatype = str(entry.get("datatype"))
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
    head = orjson.dumps({"model_name": response.model_name, "id": response.id, "outputs": outputs})
    if not tail:
        return Response(head, media_type="application/json")
    return Response(
        b"".join([head, *tail]),
        media_type="application/octet-stream",
        headers={_JSON_SIZE: str(len(head))},
    )
