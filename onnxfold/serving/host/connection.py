"""uvicorn's HTTP connection with a time limit for the head of a request.

uvicorn times what is idle between two requests, and nothing that has begun: whoever sends half a
head holds a connection for as long as they like.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(H11Protocol):
    """A connection that is closed where a head is not complete after `header_timeout_s`.

    408 says so where a part of it has come; a connection that was silent is closed without a word.
    """

    def __init__(self, *arguments: Any, header_timeout_s: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._header_timeout_s = header_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _time_head(self) -> None:
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._header_timeout_s, self._too_late)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self.conn.trailing_data[0]:
            self.transport.write(_TOO_LATE)
        self.transport.close()
