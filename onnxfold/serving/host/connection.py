"""uvicorn's HTTP connection with a time limit for the head of a request, and a clean stop.

uvicorn limits the idle time between two requests, but not the time of a request that has begun: a
client that sends half a head keeps its connection for as long as it likes. On a stop uvicorn closes
idle connections at once, and a request on its way there is lost.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from onnxfold.serving.host.access_log import LOG

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(H11Protocol):
    """A connection that is closed if a head is not complete after `header_timeout_s`.

    It responds 408 if a part of the head has arrived; a silent connection is closed without a
    response.
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
        """Close after the response in progress, or the next one; soon if there is none."""
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
