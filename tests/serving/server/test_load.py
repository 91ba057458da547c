"""Many connections, slow readers, a process that is killed, a full disk, files replaced under way.

Whatever happens, an answer is right or an error. All is bounded in number and on the loopback.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from onnxfold.serving.host.sockets import allow_connections
from tests.serving.server import models
from tests.serving.server.clients import KINDS, Callers, Infer, calling, client
from tests.serving.server.extra import demand_extra
from tests.serving.server.process import Server, free_ports, serving, wait_for
from tests.serving.server.test_limits import head
from tests.serving.server.test_serving import arrived

demand_extra()

CONNECTIONS = 1000


def scaled_request(value: float) -> bytes:
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
    body = json.dumps({"inputs": [one]}).encode()
    return head(f"Content-Length: {len(body)}") + body


def answer_of(connection: socket.socket) -> bytes:
    """Read one whole answer."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += _more(connection)
    before, _, body = said.partition(b"\r\n\r\n")
    (length,) = (
        int(line.partition(b":")[2])
        for line in before.splitlines()
        if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += _more(connection)
    return body


def _more(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    assert piece, "the server closed a connection without an answer"
    return piece


def test_a_thousand_connections_are_all_answered(server: Server) -> None:
    allow_connections()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < CONNECTIONS + 200:
        pytest.skip(f"needs {CONNECTIONS + 200} open files, {allowed} are allowed")
    host, _, port = server.http.partition(":")
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=300))
            for _ in range(CONNECTIONS)
        ]
        for number, connection in enumerate(connections):
            connection.sendall(scaled_request(number))
        for number, connection in enumerate(connections):
            (output,) = json.loads(answer_of(connection))["outputs"]
            assert output["data"] == [2.0 * number] * 4


def test_readers_that_do_not_read_hold_up_nobody(folder: Path) -> None:
    """Four megabytes for each of eight, most of it in the server until they read."""
    body = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}]}'
    path = "POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\n"
    request = f"{path}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with serving(folder, folder / "large.onnx", "--no-optimize") as server, ExitStack() as stack:
        host, _, port = server.http.partition(":")
        slow = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=300))
            for _ in range(8)
        ]
        for connection in slow:
            connection.sendall(request)
        wait_for(lambda: server.metric("onnxfold_run_seconds_count", model="large") >= len(slow))
        for kind in KINDS:
            with client(server, kind) as infer:
                y = infer("large", {"x": np.array([5], np.float32)})["y"]
                np.testing.assert_array_equal(y, np.full((1024, 1024), 5))
        assert server.get("/v2/health/ready")[0] == 200
        for connection in slow:
            (output,) = json.loads(answer_of(connection))["outputs"]
            assert output["data"] == [3.0] * (1 << 20)


def test_a_stop_ends_although_a_reader_never_reads(folder: Path) -> None:
    body = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}]}'
    path = "POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\n"
    options = ("--no-optimize", "--grace", "1")
    with serving(folder, folder / "large.onnx", *options) as server:
        host, _, port = server.http.partition(":")
        with socket.create_connection((host, int(port)), timeout=300) as connection:
            connection.sendall(f"{path}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: server.metric("onnxfold_run_seconds_count", model="large") >= 1)
            assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def test_who_asks_a_server_that_is_killed_gets_an_error(folder: Path) -> None:
    """`kill -9` in the middle of runs: nothing can be answered, and no client waits for ever."""

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        infer("slow", {"trips": np.array(100_000)})

    with serving(folder, folder / "slow.onnx", "--no-optimize") as server:
        with calling(server, KINDS, ask, once=True) as callers:
            wait_for(lambda: arrived(server, "slow") >= len(KINDS) or bool(callers.failures))
            server.process.kill()
        assert server.process.wait(timeout=60) == -9
    assert callers.answered == 0
    assert len(callers.failures) == len(KINDS)


def test_an_optimization_that_is_killed_leaves_the_old_model(folder: Path, tmp_path: Path) -> None:
    """The one process that a server starts: it optimizes a model that is loaded again."""
    path = models.write(models.scaled(2.0), tmp_path / "own.onnx")
    with serving(tmp_path, path) as server:
        killed = threading.Thread(target=kill_children, args=(server.process.pid,))
        killed.start()
        status, said = server.post("/v2/repository/models/own/load", b"")
        killed.join(timeout=120)
        assert status == 400
        assert "own.onnx" in said["error"]
        with client(server, "grpc") as infer:
            x = np.ones((1, 4), np.float32)
            np.testing.assert_array_equal(infer("own", {"x": x})["y"], 2 * x)


def kill_children(parent: int) -> None:
    """Kill -9 the first process that `parent` starts."""
    listed = Path(f"/proc/{parent}/task")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for task in listed.iterdir():
            with suppress(FileNotFoundError):
                for child in (task / "children").read_text().split():
                    os.kill(int(child), 9)
                    return


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_log_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    """Both streams lead to a device that is always full, as a disk may be."""
    http, grpc, metrics = free_ports(3)
    ports = {"--http-port": http, "--grpc-port": grpc, "--metrics-port": metrics}
    options = [word for option, port in ports.items() for word in (option, str(port))]
    command = [sys.executable, "-m", "onnxfold", "serve", str(folder / "scaled.onnx")]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [*command, "--no-optimize", *options], stdout=full, stderr=full, text=True
        )
    addresses = (f"127.0.0.1:{port}" for port in (http, grpc, metrics))
    server = Server(process, Path("/dev/null"), *addresses)
    try:
        wait_for(lambda: server.is_ready() or process.poll() is not None)
        host, _, port = server.http.partition(":")
        with socket.create_connection((host, int(port)), timeout=300) as connection:
            connection.sendall(b"no request\r\n\r\n")  # uvicorn warns of it
            assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
        for kind in KINDS:
            with client(server, kind) as infer:
                x = np.ones((1, 4), np.float32)
                np.testing.assert_array_equal(infer("scaled", {"x": x})["y"], 2 * x)
        assert server.stop() == 0
    finally:
        process.kill()
        process.wait(timeout=60)


def test_files_that_are_replaced_under_way_give_no_wrong_answer(tmp_path: Path) -> None:
    """Written over in place, shortened, and loaded again, while clients ask all the time."""
    path = models.write_external(models.table(1.0), tmp_path / "table.onnx")
    data = tmp_path / "table.data"
    allowed, seen = {1.0}, Counter[float]()

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        ids = generator.integers(0, models.TABLE_ROWS, 8)
        values = set(infer("table", {"ids": ids})["y"].reshape(-1).tolist())
        assert len(values) == 1
        assert values <= allowed
        seen.update(values)

    with serving(tmp_path, path, "--no-optimize") as server:
        with calling(server, KINDS, ask) as callers:
            wait_for(lambda: callers.answered > 20 or bool(callers.failures))
            with data.open("r+b") as file:
                file.write(np.full(models.TABLE_ROWS * 4, 9, np.float32).tobytes())
            answered_after(callers.answered + 20, callers)
            with data.open("r+b") as file:
                file.truncate(8)
            assert server.post("/v2/repository/models/table/load", b"")[0] == 400
            answered_after(callers.answered + 20, callers)
            allowed.add(2.0)
            models.write_external(models.table(2.0), path)
            assert server.post("/v2/repository/models/table/load", b"")[0] == 200
            answered_after(callers.answered + 20, callers)
        assert not callers.failures
        assert set(seen) == {1.0, 2.0}
        assert server.process.poll() is None


def answered_after(count: int, callers: Callers) -> None:
    wait_for(lambda: callers.answered > count or bool(callers.failures))
