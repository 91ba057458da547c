"""What stands before the endpoints: a request comes in whole, plain and within its limits, or not.

Endpoints and MLServer read bodies without any bound, and undo gzip whatever it becomes. Here a body
is counted as it comes and as it is decompressed, has a time to arrive, and a stop does not wait for
one that is still on its way.
"""

import asyncio
import hmac
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from onnxfold.serving.host import metrics
from onnxfold.serving.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # asked without a token, by orchestrators
# zlib's window bits: with the header of gzip, and with that of zlib, which HTTP calls deflate.
_WINDOWS = {"gzip": 31, "deflate": 15}
# A body that comes faster than this may take as long as it needs.
_BYTES_PER_S = 64 * 1024


class _RefusedError(Exception):
    """A request that no endpoint gets to see; the sentence goes back to the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _LeftError(Exception):
    """The client closed the connection in the middle of its request."""


class Intake:
    """An ASGI application around another, which gets only requests that may and did come in."""

    def __init__(self, app: Any, settings: ServeSettings) -> None:
        self._app = app
        self._settings = settings
        self._stopping = False
        self._coming: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """Refuse the requests that have not come whole, now and from now on."""
        self._stopping = True
        for limit in self._coming:
            limit.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        try:
            self._check_token(scope["path"], headers)
            body = await self._body(headers, receive)
        except _LeftError:
            return
        except _RefusedError as refused:
            metrics.REFUSED.labels(str(refused.status)).inc()
            await _refuse(refused, send)
            return
        plain = [pair for pair in scope["headers"] if pair[0] != b"content-encoding"]
        try:
            await self._app({**scope, "headers": plain}, _once(body, receive), send)
        except asyncio.CancelledError:
            # uvicorn cancels what the grace period has not seen end, and closes its connection; it
            # would write a traceback for what is no fault.
            return

    def _check_token(self, path: str, headers: Mapping[str, bytes]) -> None:
        token = self._settings.token
        if token is None or path in OPEN_PATHS:
            return
        if not hmac.compare_digest(headers.get("authorization", b""), b"Bearer " + token.encode()):
            raise _RefusedError(401, "the request does not have this server's token")

    async def _body(self, headers: Mapping[str, bytes], receive: Receive) -> bytes:
        encoding = headers.get("content-encoding", b"identity").decode("latin-1").lower()
        if encoding not in ("identity", *_WINDOWS):
            raise _RefusedError(415, f"a body may be gzip or deflate, not '{encoding}'")
        limit, length = self._settings.max_request_bytes, headers.get("content-length", b"0")
        if length.isdigit() and int(length) > limit and "expect" in headers:
            raise _too_large(limit)  # before the client sends it
        try:
            body = await self._whole(receive)
        except TimeoutError:
            if self._stopping:
                raise _RefusedError(503, "the server is stopping") from None
            raise _RefusedError(408, "the body of the request did not come in time") from None
        if encoding == "identity" or not body:
            return body
        return await asyncio.to_thread(_inflated, body, encoding, limit)

    async def _whole(self, receive: Receive) -> bytes:
        """Return the body; one that is too large is read on, or its client would see no answer."""
        loop = asyncio.get_running_loop()
        start, count, chunks = loop.time(), 0, list[bytes]()
        async with asyncio.timeout_at(self._end(start, 0)) as limit:
            self._coming.add(limit)
            try:
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _LeftError
                    more = message.get("more_body", False)
                    chunks.append(message.get("body", b""))
                    count += len(chunks[-1])
                    if count > self._settings.max_request_bytes:
                        chunks.clear()
                    elif not self._stopping:
                        limit.reschedule(self._end(start, count))
            finally:
                self._coming.discard(limit)
        if count > self._settings.max_request_bytes:
            raise _too_large(self._settings.max_request_bytes)
        return b"".join(chunks)

    def _end(self, start: float, count: int) -> float:
        if self._stopping:
            return start
        return start + self._settings.body_timeout_s + count / _BYTES_PER_S


def _inflated(raw: bytes, encoding: str, limit: int) -> bytes:
    """Undo an encoding, of all members where it is gzip, and never beyond the limit."""
    parts, room, rest = list[bytes](), limit, raw
    while rest:
        decoder = zlib.decompressobj(_WINDOWS[encoding])
        try:
            parts.append(decoder.decompress(rest, room + 1))
        except zlib.error as error:
            raise _RefusedError(400, f"the body is not {encoding}: {error}") from error
        room -= len(parts[-1])
        if room < 0:
            raise _too_large(limit)
        if not decoder.eof:
            raise _RefusedError(400, f"the body is not {encoding}: it ends too early")
        rest = decoder.unused_data if encoding == "gzip" else b""
    return b"".join(parts)


def _too_large(limit: int) -> _RefusedError:
    return _RefusedError(413, f"the body has more than {limit} bytes, the limit of this server")


def _once(body: bytes, receive: Receive) -> Receive:
    """Give the body, and then what the connection says: that the client left."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refused: _RefusedError, send: Send) -> None:
    """Answer as MLServer does, and close: what is left of the request is not read."""
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
