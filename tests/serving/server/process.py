"""`onnxfold serve` as a process of its own, on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Server", "free_ports", "serving", "wait_for"]

_START_S = 300.0  # a few seconds on a machine that does nothing else


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[str]
    log: Path
    http: str
    grpc: str
    metrics: str

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=300)

    def peak_memory(self) -> int:
        """The most bytes that the server had in memory at once."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024

    def connections(self) -> int:
        """How many connections to the HTTP port are open, at the server's end."""
        port = f":{int(self.http.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(port) and row[3] == "01" for row in rows)

    def is_ready(self) -> bool:
        """Whether it answers, and says that it is ready."""
        try:
            return self.get("/v2/health/ready")[0] == 200
        except urllib.error.URLError:
            return False

    def get(self, path: str) -> tuple[int, Any]:
        return _answer(urllib.request.Request(f"http://{self.http}{path}"))

    def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return _answer(
            urllib.request.Request(
                f"http://{self.http}{path}", data=data, headers=dict(headers or {}), method="POST"
            )
        )

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that carry these labels."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        total = 0.0
        for line in text.splitlines():
            match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if match and all(
                f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()
            ):
                total += float(match[2])
        return total


def wait_for(come: Callable[[], bool]) -> None:
    """Wait until something has come true; a test that waits for ever fails."""
    until = time.monotonic() + _START_S
    while not come():
        assert time.monotonic() < until
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, and that no connection is given as its own: those begin at 32768."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - no secret
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports += [port] * (port not in ports)
    return ports


@contextmanager
def serving(folder: Path, *words: str | Path) -> Iterator[Server]:
    """Start a server, wait until it says that it is ready, and stop it in the end."""
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", "onnxfold", "serve", *(str(word) for word in words)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    log = folder / f"serve-{http}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, text=True)
    server = Server(process, log, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}")
    try:
        _wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=300)


def _wait_until_ready(server: Server) -> None:
    until = time.monotonic() + _START_S
    while "ready: " not in server.log.read_text():
        if server.process.poll() is not None or time.monotonic() > until:
            raise AssertionError(f"the server did not start: {server.log.read_text()}")
        time.sleep(0.05)


def _answer(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.status, _read(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error.read())


def _read(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body
