"""A connection that carries answers slowly, so that much of one is still on its way at a stop."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["slow_network", "stuck_network"]

_CHUNK = 16384


@contextmanager
def slow_network(address: str, *, pause_s: float) -> Iterator[str]:
    """Yield an address that leads to `address`; answers come 16 KiB at a time, a pause after each.

    Leaving waits until every connection is closed, from either side.
    """
    host, _, port = address.rpartition(":")

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket() as far:
                # Small, so that what was not carried yet waits at the sender.
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)
                far.connect((host, int(port)))
                asking = threading.Thread(target=_carry, args=(self.request, far, 0.0))
                asking.start()
                _carry(far, self.request, pause_s)
                asking.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as network:
        threading.Thread(target=network.serve_forever, args=(0.01,)).start()
        yield f"127.0.0.1:{network.server_address[1]}"
        network.shutdown()


@contextmanager
def stuck_network(address: str, *, after: int) -> Iterator[tuple[str, threading.Event]]:
    """Yield an address that leads to `address` and takes only so many bytes to it, and an event.

    The event is set when the first connection is stuck; answers are carried all the same.
    """
    host, _, port = address.rpartition(":")
    stuck, leaving = threading.Event(), threading.Event()

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as far:
                threading.Thread(target=_carry, args=(far, self.request, 0.0)).start()
                left = after
                while left and (data := self.request.recv(min(left, _CHUNK))):
                    far.sendall(data)
                    left -= len(data)
                stuck.set()
                leaving.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as network:
        threading.Thread(target=network.serve_forever, args=(0.01,)).start()
        try:
            yield f"127.0.0.1:{network.server_address[1]}", stuck
        finally:
            leaving.set()
            network.shutdown()


def _carry(source: socket.socket, target: socket.socket, pause_s: float) -> None:
    """Hand on what comes until either side closes, or resets, the connection."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
            time.sleep(pause_s)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
