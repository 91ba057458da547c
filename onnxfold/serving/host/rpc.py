"""MLServer's gRPC server with an inference call that keeps tensors as bytes.

MLServer's own turns raw contents into lists and back; this one hands them on.  Outputs always go
as raw contents, which every client reads and which alone can carry FP16.
"""

from __future__ import annotations

import asyncio
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
from mlserver.types import InferenceRequest, RequestInput, RequestOutput

from onnxfold.serving.codec import raw_bytes
from onnxfold.serving.host.model import demand_ready
from onnxfold.serving.host.sockets import unsent

__all__ = ["Rpc"]

# Where a tensor that is not raw has its elements.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
_MESSAGE_BYTES = 2**31 - 1
_POLL_S = 0.01


class _Servicer(InferenceServicer):
    def __init__(self, data_plane: Any, handlers: Any) -> None:
        super().__init__(data_plane, handlers)
        self._under_way = 0
        self._stopping = False
        self._last_ended = asyncio.Event()

    async def drain(self) -> None:
        """Refuse every inference from now on, and return when those under way have ended."""
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
        try:
            await demand_ready(self._data_plane, request.model_name, version)
            result = await self._data_plane.infer(_read(request), request.model_name, version)
        except MLServerError as error:
            code = _CODES.get(error.status_code, grpc.StatusCode.INTERNAL)
            await context.abort(code, str(error))
        return pb.ModelInferResponse(
            model_name=result.model_name,
            id=result.id or "",
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=output.name, datatype=output.datatype, shape=output.shape
                )
                for output in result.outputs
            ],
            raw_output_contents=[raw_bytes(output.data) for output in result.outputs],
        )

    async def ModelReady(  # noqa: N802 - the protocol's name
        self, request: pb.ModelReadyRequest, context: aio.ServicerContext
    ) -> pb.ModelReadyResponse:
        """Say whether a model is ready; one that is not there is not."""
        try:
            ready = await self._data_plane.model_ready(request.name, request.version or None)
        except ModelNotFound:
            ready = False
        return pb.ModelReadyResponse(ready=ready)

    def _ended(self, _: object) -> None:
        self._under_way -= 1
        if self._stopping and not self._under_way:
            self._last_ended.set()


class Rpc(GRPCServer):
    """MLServer's gRPC server with our servicer and a grace period of our choice."""

    def __init__(self, settings: Any, data_plane: Any, handlers: Any, *, grace_s: float) -> None:
        super().__init__(settings, data_plane, handlers)
        self.opened = asyncio.Event()
        self._grace_s = grace_s

    async def start(self) -> None:
        size = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
        self._server = aio.server(
            interceptors=[PromServerInterceptor(enable_handling_time_histogram=True)],
            options=[(name, _MESSAGE_BYTES) for name in size],
        )
        self._servicer = _Servicer(self._data_plane, self._model_repository_handlers)
        add_GRPCInferenceServiceServicer_to_server(self._servicer, self._server)
        host = self._settings.host
        address = f"[{host}]" if ":" in host else host
        self._server.add_insecure_port(f"{address}:{self._settings.grpc_port}")
        await self._server.start()
        self.opened.set()
        await self._server.wait_for_termination()

    async def stop(self, sig: int | None = None) -> None:
        """Answer what is under way, see the answers off, then close; all within the grace period.

        gRPC closes a connection when its last call ends, and a closed connection is reset by
        whatever its client sends next, be it that it has read something: what had not been sent
        of the answer by then would be lost.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._grace_s
        with suppress(TimeoutError):  # calls that have not ended are cancelled below
            async with asyncio.timeout_at(end):
                await self._servicer.drain()
                while unsent(self._settings.grpc_port):
                    await asyncio.sleep(_POLL_S)
        await self._server.stop(grace=max(0.0, end - clock()))


def _read(request: pb.ModelInferRequest) -> InferenceRequest:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InferenceError(
            f"{len(raw)} raw contents for {len(request.inputs)} inputs: each input needs one"
        )
    inputs = []
    for number, tensor in enumerate(request.inputs):
        if tensor.datatype not in _CONTENTS and tensor.datatype != "FP16":
            raise InferenceError(
                f"input '{tensor.name}' has the datatype '{tensor.datatype}', "
                "which the protocol does not know"
            )
        if raw and tensor.HasField("contents"):
            raise InferenceError(f"input '{tensor.name}' has raw contents and others too")
        if not raw and tensor.datatype == "FP16":
            raise InferenceError(f"input '{tensor.name}' is FP16, which must be sent raw")
        data = raw[number] if raw else list(getattr(tensor.contents, _CONTENTS[tensor.datatype]))
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
