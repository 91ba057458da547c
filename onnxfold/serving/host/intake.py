"""The filter before the endpoints: requests enter complete, decompressed and within limits.

Endpoints and MLServer read bodies without limit, and decompress gzip to any size. Here a body is
counted as received and as decompressed, alone and together with all others, has time limits for
arrival and decompression, and a stop does not wait for one that is incomplete.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import orjson

from onnxfold.serving.host import metrics
from onnxfold.serving.host.access_log import Answered
from onnxfold.serving.request_bodies import (
    WINDOWS,
    BodyBudget,
    RefusedError,
    Share,
    inflated,
    size_in,
    too_large,
)
from onnxfold.serving.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # called without a token, by orchestrators
# A body that arrives faster than this may take as long as it needs.
_BYTES_PER_S = 64 * 1024
_INFLATED_BYTES_PER_S = 16 << 20  # a tenth of the speed of a slow core


class _LeftError(Exception):
    """The client closed the connection in the middle of its request."""


class Intake:
    """An ASGI application around another, which receives only complete, permitted requests."""

    def __init__(self, app: Any, settings: ServeSettings, budget: BodyBudget) -> None:
        self._app = app
        self._settings = settings
        self._budget = budget
        self._stopping = False
        self._until = math.inf  # when complete requests are no longer answered
        self._whole_by = math.inf  # when incomplete ones are refused
        self._coming: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """Refuse incomplete requests soon, and close all connections."""
        self._stopping = True
        self._until = time.monotonic() + self._settings.grace_s
        self._whole_by = asyncio.get_running_loop().time() + self._settings.linger_s
        for limit in self._coming:
            limit.reschedule(self._whole_by)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = Answered(scope, self._last_of_connection(send))
        try:
            with self._budget.share() as share:
                await self._answer(scope, receive, answered.send, share)
        finally:
            answered.log(quietly=scope["path"] in OPEN_PATHS)

    def _last_of_connection(self, send: Send) -> Send:
        """Announce in each response during a stop that the connection closes after it."""

        async def sent(message: Message) -> None:
            if self._stopping and message["type"] == "http.response.start":
                others = [pair for pair in message["headers"] if pair[0] != b"connection"]
                message = {**message, "headers": [*others, (b"connection", b"close")]}
            await send(message)

        return sent

    async def _answer(self, scope: Message, receive: Receive, send: Send, share: Share) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        try:
            self._check_token(scope["path"], headers)
            body = await self._body(headers, receive, share)
        except _LeftError:
            return
        except RefusedError as refused:
            metrics.REFUSED.labels(str(refused.status)).inc()
            await _refuse(refused, send)
            return
        plain = [pair for pair in scope["headers"] if pair[0] != b"content-encoding"]
        try:
            await self._app({**scope, "headers": plain}, _once(body, receive), send)
        except asyncio.CancelledError:
            # uvicorn cancels requests that outlast the grace period, closes their connections, and
            # would write a traceback although nothing is wrong.
            return

    def _check_token(self, path: str, headers: Mapping[str, bytes]) -> None:
        token = self._settings.token
        if token is None or path in OPEN_PATHS:
            return
        if not hmac.compare_digest(headers.get("authorization", b""), b"Bearer " + token.encode()):
            raise RefusedError(401, "the request does not have this server's token")

    async def _body(self, headers: Mapping[str, bytes], receive: Receive, share: Share) -> bytes:
        encoding = headers.get("content-encoding", b"identity").decode("latin-1").lower()
        if encoding not in ("identity", *WINDOWS):
            raise RefusedError(415, f"a body may be gzip or deflate, not '{encoding}'")
        limit, length = self._settings.max_request_bytes, headers.get("content-length", b"0")
        if "expect" in headers and size_in(length.decode("latin-1"), limit) is None:
            raise too_large(limit)  # before the client sends it
        try:
            body = await self._whole(receive, share)
        except TimeoutError:
            if self._stopping:
                raise RefusedError(503, "the server is stopping") from None
            raise RefusedError(408, "the body of the request did not come in time") from None
        if encoding == "identity" or not body:
            return body
        end = time.monotonic() + self._settings.body_timeout_s + limit / _INFLATED_BYTES_PER_S
        check_time = partial(self._check_time, end)
        plain = await asyncio.to_thread(inflated, body, encoding, limit, share, check_time)
        share.give(len(body))
        return plain

    def _check_time(self, end: float) -> None:
        """Raise RefusedError if the decompression of a body has taken too long."""
        now = time.monotonic()
        if now > self._until:
            raise RefusedError(503, "the server is stopping")
        if now > end:
            raise RefusedError(408, "the body of the request took too long to decompress")

    async def _whole(self, receive: Receive, share: Share) -> bytes:
        """Return the body; a refused one is read to its end, so that its client sees the answer."""
        loop = asyncio.get_running_loop()
        start, count, body = loop.time(), 0, bytearray()
        refused: RefusedError | None = None
        async with asyncio.timeout_at(self._end(start, 0)) as limit:
            self._coming.add(limit)
            try:
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _LeftError
                    more = message.get("more_body", False)
                    count += len(message.get("body", b""))
                    if refused is None:
                        refused = self._kept(message.get("body", b""), body, share)
                    if refused is None and not self._stopping:
                        limit.reschedule(self._end(start, count))
            finally:
                self._coming.discard(limit)
        if refused is not None:
            raise refused
        return bytes(body)

    def _kept(self, part: bytes, body: bytearray, share: Share) -> RefusedError | None:
        """Add a part to a body, or discard the body and return why."""
        refused = None
        try:
            share.take(len(part))
            body += part
        except RefusedError as error:
            refused = error
        if len(body) > self._settings.max_request_bytes:
            refused = too_large(self._settings.max_request_bytes)
        if refused is not None:
            share.give(len(body))
            body.clear()
        return refused

    def _end(self, start: float, count: int) -> float:
        if self._stopping:
            return self._whole_by
        return start + self._settings.body_timeout_s + count / _BYTES_PER_S


def _once(body: bytes, receive: Receive) -> Receive:
    """Return the body, and then the connection's events: that the client left."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refused: RefusedError, send: Send) -> None:
    """Respond as MLServer does, and close: the rest of the request is not read."""
    content = orjson.dumps({"error": str(refused)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
