"""A connection of HTTP/2 with calls of gRPC whose messages never come whole."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["HalfMessages"]

_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW = 0, 1, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW = 4  # a setting
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_HEAD = {
    ":method": "POST",
    ":scheme": "http",
    ":path": _METHOD,
    ":authority": "localhost",
    "te": "trailers",
    "content-type": "application/grpc",
}
_FIELDS = b"".join(
    struct.pack("BB", 0, len(name)) + name.encode() + struct.pack("B", len(value)) + value.encode()
    for name, value in _HEAD.items()
)
_FRAME_BYTES = 1 << 14


class HalfMessages:
    """Sends of each message as much as the server takes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._windows, self._initial = {0: 65535}, 65535
        self._changed = threading.Condition()
        self._calls = 0
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def call(self, size: int, wait_s: float) -> int:
        """Call with a message of so many bytes, and all but its last; return how many were sent.

        The server takes no more where it says nothing for ``wait_s``.
        """
        stream, self._calls = 2 * self._calls + 1, self._calls + 1
        with self._changed:
            self._windows[stream] = self._initial
            self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, _FIELDS))
        message, sent = struct.pack(">BI", 0, size) + bytes(size - 1), 0
        while sent < len(message):
            with self._changed:
                if not self._changed.wait_for(lambda: self._room(stream) > 0, wait_s):
                    break
                part = message[sent : sent + min(self._room(stream), _FRAME_BYTES)]
                for each in (0, stream):
                    self._windows[each] -= len(part)
                self._socket.sendall(_frame(_DATA, 0, stream, part))
            sent += len(part)
        return sent

    def _room(self, stream: int) -> int:
        return min(self._windows[0], self._windows[stream])

    def _read(self) -> None:
        # Which the server resets where something was on its way when it closed.
        with suppress(ConnectionResetError), self._socket.makefile("rb") as stream:
            while head := stream.read(9):
                size, kind, flags, number = struct.unpack(">I", b"\0" + head[:3]) + struct.unpack(
                    ">BBI", head[3:]
                )
                payload = stream.read(size)
                with self._changed:
                    self._take(kind, flags, number, payload)
                    self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW:
            (more,) = struct.unpack(">I", payload)
            self._windows[stream] = self._windows.get(stream, self._initial) + more
        elif kind == _SETTINGS and not flags & _ACK:
            settings = dict(struct.iter_unpack(">HI", payload))
            more = settings.get(_INITIAL_WINDOW, self._initial) - self._initial
            self._initial += more
            self._windows |= {each: n + more for each, n in self._windows.items() if each}
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
