"""MLServer's gRPC server with an inference call that keeps tensors as bytes.

MLServer's own call converts raw contents to lists and back; this one passes them on. Outputs are
always raw contents, which every client reads and which alone can represent FP16.
"""

import asyncio
import hmac
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import grpc
from grpc import aio
from mlserver.errors import InferenceError, MLServerError, ModelNotFound
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.dataplane_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from mlserver.grpc.interceptors import PromServerInterceptor
from mlserver.grpc.server import GRPCServer
from mlserver.grpc.servicers import InferenceServicer
from mlserver.types import (
    InferenceRequest,
    RepositoryIndexRequest,
    RequestInput,
    RequestOutput,
)

from onnxfold.serving.codec import raw_bytes
from onnxfold.serving.datatypes import BY_NAME
from onnxfold.serving.host import extensions
from onnxfold.serving.host.access_log import CallLog
from onnxfold.serving.host.arrivals import CHANNEL_OPTIONS, Arrivals
from onnxfold.serving.host.model import demand_ready, ready_model, statistics
from onnxfold.serving.host.sockets import unsent
from onnxfold.serving.request_bodies import BodyBudget, RefusedError
from onnxfold.serving.settings import ServeSettings

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
_MESSAGE_BYTES = 2**31 - 1
_POLL_S = 0.01
_LAST_S = 0.5
# Called without a token, by orchestrators; they are empty.
_OPEN_CALLS = (f"/{extensions.SERVICE}/ServerLive", f"/{extensions.SERVICE}/ServerReady")


class _Servicer(InferenceServicer):
    def __init__(self, data_plane: Any, handlers: Any, budget: BodyBudget) -> None:
        super().__init__(data_plane, handlers)
        self._budget = budget
        self._under_way = 0
        self._stopping = False
        self._last_ended = asyncio.Event()

    async def drain(self) -> None:
        """Refuse every inference from now on, and return when those in progress have ended."""
        self._stopping = True
        if self._under_way:
            await self._last_ended.wait()

    async def ServerReady(  # noqa: N802 - the protocol's name
        self, request: pb.ServerReadyRequest, context: aio.ServicerContext
    ) -> pb.ServerReadyResponse:
        ready = not self._stopping and await self._data_plane.ready()
        return pb.ServerReadyResponse(ready=ready)

    async def ModelInfer(  # noqa: N802 - the protocol's name
        self, request: pb.ModelInferRequest, context: aio.ServicerContext
    ) -> pb.ModelInferResponse:
        if self._stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        self._under_way += 1
        context.add_done_callback(self._ended)
        version = request.model_version or None
        with self._budget.share() as share:
            try:
                share.take(request.ByteSize())
                await demand_ready(self._data_plane, request.model_name, version)
                result = await self._data_plane.infer(_read(request), request.model_name, version)
            except RefusedError as refused:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(refused))
            except MLServerError as error:
                code = _CODES.get(error.status_code, grpc.StatusCode.INTERNAL)
                await context.abort(code, str(error))
        return pb.ModelInferResponse(
            model_name=result.model_name,
            model_version=result.model_version,
            id=result.id or "",
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=output.name, datatype=output.datatype, shape=output.shape
                )
                for output in result.outputs
            ],
            raw_output_contents=[raw_bytes(output.data) for output in result.outputs],
        )

    async def RepositoryIndex(  # noqa: N802 - the protocol's name
        self, request: pb.RepositoryIndexRequest, context: aio.ServicerContext
    ) -> pb.RepositoryIndexResponse:
        """Return the models and their states; MLServer's own writes a state as 'State.READY'."""
        index = await self._model_repository_handlers.index(
            RepositoryIndexRequest(ready=request.ready)
        )
        entry = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[
                entry(
                    name=one.name,
                    version=one.version or "",
                    state=one.state.value,
                    reason=one.reason,
                )
                for one in index
            ]
        )

    async def ModelReady(  # noqa: N802 - the protocol's name
        self, request: pb.ModelReadyRequest, context: aio.ServicerContext
    ) -> pb.ModelReadyResponse:
        """Return whether a model is ready, False for an unknown one."""
        try:
            ready = await self._data_plane.model_ready(request.name, request.version or None)
        except ModelNotFound:
            ready = False
        return pb.ModelReadyResponse(ready=ready)

    def _ended(self, _: object) -> None:
        self._under_way -= 1
        if self._stopping and not self._under_way:
            self._last_ended.set()


def _extensions(registry: Any) -> grpc.GenericRpcHandler:
    """Answer the calls of Triton's extensions that MLServer's service lacks."""

    async def config(request: Any, context: aio.ServicerContext) -> Any:
        model = await _found(ready_model(registry, request.name, request.version or None), context)
        return extensions.config_response(model.config())

    async def stats(request: Any, context: aio.ServicerContext) -> Any:
        wanted = statistics(registry, request.name or None, request.version or None)
        return extensions.statistics_response(await _found(wanted, context))

    calls = {"ModelConfig": config, "ModelStatistics": stats}
    return grpc.method_handlers_generic_handler(
        extensions.SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=extensions.message(f"{name}Request").FromString,
                response_serializer=extensions.message(f"{name}Response").SerializeToString,
            )
            for name, call in calls.items()
        },
    )


async def _found(wanted: Awaitable[Any], context: aio.ServicerContext) -> Any:
    try:
        return await wanted
    except MLServerError as error:
        await context.abort(_CODES.get(error.status_code, grpc.StatusCode.INTERNAL), str(error))


class _Token(aio.ServerInterceptor):
    """Admits a call with the token, as `authorization: Bearer TOKEN`."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        shown = dict(call.invocation_metadata).get("authorization", "")
        if call.method in _OPEN_CALLS or hmac.compare_digest(str(shown).encode(), self._wanted):
            return await continuation(call)
        return grpc.stream_unary_rpc_method_handler(_unauthenticated)  # before its message is read


async def _unauthenticated(_: object, context: aio.ServicerContext) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the call does not have this server's token"
    )


class Rpc(GRPCServer):
    """MLServer's gRPC server with our servicer and grace period."""

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

    async def start(self) -> None:
        asked = self._asked
        at_once = asked.most_buffered // asked.max_request_bytes
        self._server = aio.server(
            interceptors=[
                CallLog(),
                *([] if asked.token is None else [_Token(asked.token)]),
                Arrivals(at_once, asked.body_timeout_s, _OPEN_CALLS),
                PromServerInterceptor(enable_handling_time_histogram=True),
            ],
            options=[
                *CHANNEL_OPTIONS,
                ("grpc.max_send_message_length", _MESSAGE_BYTES),
                ("grpc.max_receive_message_length", asked.max_request_bytes),
            ],
        )
        self._servicer = _Servicer(self._data_plane, self._model_repository_handlers, self._budget)
        add_GRPCInferenceServiceServicer_to_server(self._servicer, self._server)
        self._server.add_generic_rpc_handlers((_extensions(self._registry),))
        host = self._settings.host
        address = f"[{host}]" if ":" in host else host
        at = f"{address}:{self._settings.grpc_port}"
        if asked.tls is None:
            self._server.add_insecure_port(at)
        else:
            chain, key = (path.read_bytes() for path in asked.tls)
            self._server.add_secure_port(at, grpc.ssl_server_credentials([(key, chain)]))
        await self._server.start()
        self.opened.set()
        await self._server.wait_for_termination()

    async def stop(self, sig: int | None = None) -> None:
        """Answer requests in progress, wait until the responses are sent, then close.

        All within the grace period. gRPC closes a connection when its last call ends, and a closed
        connection is reset by the client's next message, even if that only acknowledges: the unsent
        rest of a response would be lost.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._asked.grace_s
        with suppress(TimeoutError):  # unfinished calls are canceled below
            async with asyncio.timeout_at(end):
                await self._servicer.drain()
                while unsent(self._settings.grpc_port):
                    await asyncio.sleep(_POLL_S)
        # The rest are calls with incomplete messages, which are not awaited.
        await self._server.stop(grace=max(0.0, min(_LAST_S, end - clock())))


def _read(request: pb.ModelInferRequest) -> InferenceRequest:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InferenceError(
            f"{len(raw)} raw contents for {len(request.inputs)} inputs: each input needs one"
        )
    inputs = []
    for number, tensor in enumerate(request.inputs):
        datatype = BY_NAME.get(tensor.datatype)
        if datatype is None:
            raise InferenceError(
                f"input '{tensor.name}' has the datatype '{tensor.datatype}', "
                "which is unknown to the protocol"
            )
        if raw and tensor.HasField("contents"):
            raise InferenceError(f"input '{tensor.name}' has raw contents and others too")
        if raw:
            data = raw[number]
        elif datatype.contents is None:
            raise InferenceError(
                f"input '{tensor.name}' is {datatype.name}, which must be sent raw"
            )
        else:
            data = list(getattr(tensor.contents, datatype.contents))
        inputs.append(
            RequestInput.model_construct(
                name=tensor.name, datatype=tensor.datatype, shape=list(tensor.shape), data=data
            )
        )
    return InferenceRequest.model_construct(
        id=request.id or None,
        parameters=None,
        inputs=inputs,
        outputs=[RequestOutput.model_construct(name=output.name) for output in request.outputs],
    )
