"""uvicorn's HTTP connection with a time limit for the head of a request, and a stop that is clean.

uvicorn times what is idle between two requests, and nothing that has begun: whoever sends half a
head holds a connection for as long as they like. At a stop it closes what is idle at once, and a
request that is on its way there then is lost.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from onnxfold.serving.host.access_log import LOG

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(H11Protocol):
    """A connection that is closed where a head is not complete after `header_timeout_s`.

    408 says so where a part of it has come; a connection that was silent is closed without a word.
    """

    def __init__(
        self, *arguments: Any, header_timeout_s: float, linger_s: float, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._header_timeout_s = header_timeout_s
        self._linger_s = linger_s
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._leaving and self._answering():
            self.cycle.keep_alive = False
        self._time_head()

    def shutdown(self) -> None:
        """Close after the answer that is under way, or the next one; soon where none is."""
        self._leaving = True
        if self._answering():
            super().shutdown()
        else:
            self.loop.call_later(self._linger_s, self._leave)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _leave(self) -> None:
        if not self._answering() and not self.transport.is_closing():
            super().shutdown()

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
            LOG.warning("refused: %s 408: its head did not come in time", (self.client or "-")[0])
        self.transport.close()
