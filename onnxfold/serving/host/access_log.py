"""A line in the log for each request: always for refused ones, for all on request."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from grpc import aio

LOG = logging.getLogger("mlserver.access")  # MLServer sets the format and the stream
_LEAST_ERROR = 400
_LONGEST_REASON = 200


class Answered:
    """The response to an HTTP request, and its log line."""

    def __init__(self, scope: Mapping[str, Any], send: Callable[[Any], Awaitable[None]]) -> None:
        self._scope = scope
        self._send = send
        self._start = time.perf_counter()
        self._status = 0
        self._bytes = 0
        self._reason = b""

    async def send(self, message: Any) -> None:
        """Note the status, and the beginning of an error, and send the message on."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        body = message.get("body", b"")
        self._bytes += len(body)
        if self._status >= _LEAST_ERROR and len(self._reason) < _LONGEST_REASON:
            self._reason += body[:_LONGEST_REASON]
        await self._send(message)

    def log(self, *, quietly: bool) -> None:
        """Write the line, unless a refusal is to be ``quietly`` refused."""
        client, *_ = self._scope.get("client") or ("-",)
        asked = f"{client} {self._scope['method']} {self._scope['path']}"
        spent = f"{1e3 * (time.perf_counter() - self._start):.1f} ms"
        if self._status < _LEAST_ERROR:
            LOG.info("%s %d, %d bytes, %s", asked, self._status, self._bytes, spent)
            return
        level = logging.INFO if quietly else logging.WARNING
        reason = self._reason[:_LONGEST_REASON].decode(errors="replace")
        LOG.log(level, "refused: %s %d, %s: %s", asked, self._status, spent, reason)


class CallLog(aio.ServerInterceptor):
    """Writes the line of each gRPC call; health calls are refused quietly here too."""

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        """Return the call's handler with the line after it."""
        handler = await continuation(call)
        if handler is None:
            return None

        async def logged(messages: Any, context: aio.ServicerContext) -> Any:
            start = time.perf_counter()
            try:
                return await handler.stream_unary(messages, context)
            finally:
                _log_call(call.method, context, time.perf_counter() - start)

        return grpc.stream_unary_rpc_method_handler(
            logged, handler.request_deserializer, handler.response_serializer
        )


def _log_call(method: str, context: aio.ServicerContext, seconds: float) -> None:
    code, spent = context.code(), f"{1e3 * seconds:.1f} ms"
    asked = f"{context.peer()} {method}"
    if not code or code is grpc.StatusCode.OK:  # 0 if it was not set
        LOG.info("%s OK, %s", asked, spent)
    else:
        name = getattr(code, "name", code)
        details = str(context.details())[:_LONGEST_REASON]
        LOG.warning("refused: %s %s, %s: %s", asked, name, spent, details)
