"""A queue before gRPC calls: how many messages arrive at once, and for how long.

gRPC buffers an incomplete message without reporting its size. A call is therefore treated as a
stream of one message, requested when it is its turn: until then the received part fits in the
window of its stream.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

# What comes of a message that nobody has asked for yet: the window of a stream, 64 KiB, which
# does not grow with the speed of the network, for as many calls as one connection may have open.
CHANNEL_OPTIONS = (("grpc.http2.bdp_probe", 0), ("grpc.max_concurrent_streams", 256))
_CLOSED = "the call ended before its message"


class Arrivals(aio.ServerInterceptor):
    """Lets so many messages come in at once; others wait for their turn.

    A message may take as long as it needs where none waits, otherwise ``patience_s``.  Those of
    the calls ``unread`` are empty.
    """

    def __init__(self, count: int, patience_s: float, unread: Collection[str]) -> None:
        self._turns = asyncio.Semaphore(count)
        self._patience_s = patience_s
        self._unread = unread
        self._waiting = 0
        self._coming: dict[asyncio.Timeout, float] = {}  # since when

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        """Return the call's handler after its turn; calls of many messages are not taken."""
        handler = await continuation(call)
        if handler is None or handler.unary_unary is None:
            return None

        async def arrived(messages: Any, context: aio.ServicerContext) -> Any:
            try:
                request = await self._message(call.method, handler, messages)
            except StopAsyncIteration:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _CLOSED)
            except TimeoutError:
                said = f"the message took over {self._patience_s:g} s while others waited"
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{said}; ask again")
            return await handler.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(
            arrived, handler.request_deserializer, handler.response_serializer
        )

    async def _message(self, method: str, handler: Any, messages: Any) -> Any:
        if method in self._unread:
            return handler.request_deserializer(b"")
        async with self._turn():
            return await anext(messages)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self._waiting += 1
        if self._turns.locked():
            self._hurry()
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            async with asyncio.timeout(self._patience_s if self._waiting else None) as limit:
                self._coming[limit] = asyncio.get_running_loop().time()
                try:
                    yield
                finally:
                    del self._coming[limit]
        finally:
            self._turns.release()

    def _hurry(self) -> None:
        for limit, start in self._coming.items():
            limit.reschedule(start + self._patience_s)
