"""The running server over time: load, reload, metrics, start and stop."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onnxfold
from tests.serving.server import models
from tests.serving.server.clients import KINDS, Infer, calling, client
from tests.serving.server.conftest import DIGITS, ROOT
from tests.serving.server.extra import demand_extra
from tests.serving.server.process import Server, free_ports, serving, wait_for
from tests.serving.server.slow_network import slow_network
from tests.serving.server.test_protocol import images, local

demand_extra()

_MIXED = [KINDS[number % len(KINDS)] for number in range(8)]


def digits_asker(folder: Path) -> Callable[[Infer, np.random.Generator], None]:
    """Ask for the digits and compare with a local session that runs the rows alone."""
    session = local(folder / "digits.onnx")

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        x = generator.random((int(generator.integers(1, 4)), 1, 8, 8), dtype=np.float32)
        want = session.run(None, {"images": x})[0]
        got = infer("digits", {"images": x})["logits"]
        # Rows of a larger batch are summed in another order: some roundings of values below 32.
        np.testing.assert_allclose(got, want, rtol=0, atol=32 * 64 * 2.0**-24)

    return ask


def test_concurrent_results_are_those_of_a_local_session(server: Server, folder: Path) -> None:
    before = server.metric("model_infer_request_success_total", model="digits")
    with calling(server, _MIXED, digits_asker(folder)) as callers:
        wait_for(lambda: callers.answered > 20 * len(_MIXED) or bool(callers.failures))
    assert not callers.failures
    after = server.metric("model_infer_request_success_total", model="digits")
    assert after - before == callers.answered


def test_batches_are_counted_and_fewer_than_requests(server: Server, folder: Path) -> None:
    with calling(server, ["grpc"] * 8, digits_asker(folder)) as callers:
        wait_for(lambda: callers.answered > 100 or bool(callers.failures))
    assert not callers.failures
    runs = server.metric("onnxfold_batch_requests_count", model="digits")
    assert 0 < runs < server.metric("onnxfold_batch_requests_sum", model="digits")
    assert server.metric("onnxfold_run_seconds_count", model="digits") == runs
    assert server.metric("onnxfold_requests_waiting", model="digits") == 0


def test_a_model_that_mixes_rows_answers_each_alone(server: Server) -> None:
    def ask(infer: Infer, generator: np.random.Generator) -> None:
        x = generator.standard_normal((2, 4)).astype(np.float32)
        weights = np.exp(x - x.max(axis=0))
        got = infer("cross_row", {"x": x})["y"]
        # exp, a sum of two and a quotient: each below one, a handful of roundings.
        np.testing.assert_allclose(got, weights / weights.sum(axis=0), rtol=0, atol=16 * 2.0**-24)

    with calling(server, _MIXED, ask) as callers:
        wait_for(lambda: callers.answered > 20 * len(_MIXED) or bool(callers.failures))
    assert not callers.failures


def test_a_reload_under_load_loses_no_request(server: Server, folder: Path) -> None:
    factors = {2.0}

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        x = generator.standard_normal((1, 4)).astype(np.float32)
        y = infer("scaled", {"x": x})["y"]
        assert any(np.array_equal(y, x * np.float32(factor)) for factor in factors)

    with calling(server, _MIXED, ask) as callers:
        for factor in (3.0, 5.0, 7.0, 2.0):
            factors.add(factor)
            models.write(models.scaled(factor), folder / "scaled.onnx")
            assert server.post("/v2/repository/models/scaled/load", b"")[0] == 200
            with client(server, "grpc") as infer:
                y = infer("scaled", {"x": np.ones((1, 4), np.float32)})["y"]
            np.testing.assert_array_equal(y, np.full((1, 4), factor))  # the new one answers now
            time.sleep(0.3)
    assert not callers.failures
    assert callers.answered > len(_MIXED)


def test_a_model_that_does_not_load_leaves_the_old_one(server: Server, folder: Path) -> None:
    path = folder / "cross_row.onnx"
    kept = path.read_bytes()
    path.write_bytes(b"no model")
    try:
        status, said = server.post("/v2/repository/models/cross_row/load", b"")
        assert status == 400
        assert "cross_row.onnx: not an ONNX model" in said["error"]
        with client(server, "grpc") as infer:
            assert infer("cross_row", {"x": np.zeros((2, 4), np.float32)})["y"][0, 0] == 0.5
    finally:
        path.write_bytes(kept)


def test_models_are_unloaded_and_loaded(server: Server) -> None:
    import tritonclient.grpc
    import tritonclient.http

    for library, address in (
        (tritonclient.http, server.http),
        (tritonclient.grpc, server.grpc),
    ):
        with library.InferenceServerClient(address) as connection:
            connection.unload_model("two_inputs")
            assert not connection.is_model_ready("two_inputs")
            assert connection.is_model_ready("digits")
            connection.load_model("two_inputs")
            assert connection.is_model_ready("two_inputs")
            index = connection.get_model_repository_index()
            entries = index if isinstance(index, list) else index.models
            assert len(entries) == 7
    assert server.post("/v2/repository/models/nothing/load", b"")[0] == 404


def arrived(server: Server, model: str) -> float:
    started = server.metric("onnxfold_batch_requests_sum", model=model)
    return started + server.metric("onnxfold_requests_waiting", model=model)


def test_a_stop_answers_what_is_under_way(folder: Path) -> None:
    asked = np.array(400)

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        got = infer("slow", {"trips": asked})["y"]
        np.testing.assert_array_equal(got, np.eye(256))

    with serving(folder, folder / "slow.onnx", "--no-optimize", "--grace", "280") as server:
        with calling(server, KINDS, ask, once=True) as callers:
            # The last to come runs or waits when the signal comes, and so may the others.
            while arrived(server, "slow") < len(KINDS) and not callers.failures:
                time.sleep(0.01)
            assert server.stop() == 0
        assert not callers.failures
        assert callers.answered == len(KINDS)


_INPUT = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [3.0] * 4}


def _asks_until_closed(server: Server, failures: list[str], answers: list[int]) -> None:
    """Ask on one kept connection until an answer says that it closes, as a client should."""
    body = json.dumps({"inputs": [_INPUT]})
    connection = http.client.HTTPConnection(server.http, timeout=120)
    try:
        while True:
            connection.request("POST", "/v2/models/scaled/infer", body)
            answer = connection.getresponse()
            said = answer.read()
            answers.append(answer.status)
            if answer.status != 200 and b"the server is stopping" not in said:
                failures.append(f"{answer.status}: {said!r}")
            if answer.getheader("connection") == "close":
                return
    except (OSError, http.client.HTTPException) as error:
        failures.append(f"after {len(answers)} answers: {type(error).__name__}: {error}")
    finally:
        connection.close()


def test_a_stop_answers_every_request_of_kept_connections(folder: Path) -> None:
    failures: list[str] = []
    answers: list[int] = []
    with serving(folder, folder / "scaled.onnx", "--no-optimize") as server:
        idle = socket.create_connection(tuple(server.http.split(":")), timeout=120)
        threads = [
            threading.Thread(target=_asks_until_closed, args=(server, failures, answers))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        while len(answers) < 100 and not failures:
            time.sleep(0.01)
        assert server.stop() == 0
        for thread in threads:
            thread.join(timeout=120)
        assert idle.recv(100) == b""  # closed, not reset
        idle.close()
        log = server.log.read_text()
    assert not failures
    assert answers.count(200) >= 100
    assert "Traceback" not in log
    assert "Cancel" not in log


def test_what_the_grace_period_does_not_see_end_is_told_so(folder: Path) -> None:
    def ask(infer: Infer, generator: np.random.Generator) -> None:
        infer("slow", {"trips": np.array(8000)})

    with serving(folder, folder / "slow.onnx", "--no-optimize", "--grace", "0.2") as server:
        with calling(server, KINDS, ask, once=True) as callers:
            while arrived(server, "slow") < len(KINDS) and not callers.failures:
                time.sleep(0.01)
            assert server.stop() == 0
        assert callers.answered == 0
        told = {kind: said for kind, _, said in (f.partition(": ") for f in callers.failures)}
        for kind in ("http binary", "http json"):
            assert told[kind] == "InferenceServerException: [503] the server is stopping"
        assert told["grpc"].startswith("InferenceServerException: [StatusCode.UNAVAILABLE] ")
        assert "Traceback" not in server.log.read_text()


def test_answers_on_their_way_at_a_stop_arrive(folder: Path) -> None:
    """The runs have ended when the signal comes; most of what they gave has not been sent."""

    def ask(infer: Infer, generator: np.random.Generator) -> None:
        y = infer("large", {"x": np.array([3], np.float32)})["y"]
        np.testing.assert_array_equal(y, np.full((1024, 1024), 3))

    kinds = [*KINDS, *KINDS]
    with serving(folder, folder / "large.onnx", "--no-optimize") as server:
        with (
            slow_network(server.http, pause_s=0.001) as http,
            slow_network(server.grpc, pause_s=0.001) as grpc,
            calling(replace(server, http=http, grpc=grpc), kinds, ask, once=True) as called,
        ):
            while server.metric("onnxfold_run_seconds_count", model="large") < len(kinds):
                time.sleep(0.001)
            assert server.stop() == 0
        assert not called.failures
        assert called.answered == len(kinds)


def test_clients_that_leave_harm_nobody_and_an_interrupt_stops_too(folder: Path) -> None:
    """One leaves in the middle of its request, one before its answer, and one sends no HTTP."""
    body = b'{"inputs": [{"name": "trips", "shape": [], "datatype": "INT64", "data": [400]}]}'
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    requests = (head.encode() + body[:9], head.encode() + body, b"no request\r\n\r\n")
    with serving(folder, folder / "slow.onnx", "--no-optimize") as server:
        host, _, port = server.http.partition(":")
        for request in requests:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(request)
                time.sleep(0.1)
        with client(server, "http json") as infer:
            y = infer("slow", {"trips": np.array(1)})["y"]
        np.testing.assert_array_equal(y, np.eye(256))
        assert server.stop(signal.SIGINT) == 0
        assert "Traceback" not in server.log.read_text()


def test_models_are_optimized_before_they_are_served(folder: Path) -> None:
    with serving(folder, f"plain={DIGITS}", folder / "digits.onnx") as server:
        assert "plain: with onnxfold's kernels, up to 16 rows at a time" in server.log.read_text()
        x = images(2)
        with client(server, "grpc") as infer:
            plain, digits = (infer(name, {"images": x})["logits"] for name in ("plain", "digits"))
        np.testing.assert_array_equal(plain, digits)


def failed(*words: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "onnxfold", "serve", *(str(word) for word in words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_the_page_on_serving_shows_what_happens(folder: Path, tmp_path: Path) -> None:
    """The printed lines are real, and the client of the page runs, but for the ports."""
    shutil.copy(folder / "digits.onnx", tmp_path / "model.onnx")
    page = (ROOT / "docs" / "serve.md").read_text()
    (shown,) = re.findall(r"```text\n([^`]*)```", page)
    with serving(tmp_path, tmp_path / "model.onnx") as server:
        said = server.log.read_text()
        for port, address in (
            ("8080", server.http),
            ("8081", server.grpc),
            ("8082", server.metrics),
        ):
            shown = shown.replace(f"127.0.0.1:{port}", address)
            page = page.replace(f"127.0.0.1:{port}", address)
        assert set(shown.splitlines()) <= set(said.splitlines())
        (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        assert done.stdout


def test_a_taken_port_is_one_line(server: Server, folder: Path) -> None:
    taken = server.http.partition(":")[2]
    code, said = failed(folder / "scaled.onnx", "--http-port", taken)
    assert code == 2
    assert said.startswith(f"onnxfold: --http-port: cannot listen on 127.0.0.1:{taken}")
    assert said.count("\n") == 1


def test_a_model_that_cannot_be_served_is_one_line(folder: Path, tmp_path: Path) -> None:
    ports = [str(port) for port in free_ports(3)]
    options = ("--http-port", ports[0], "--grpc-port", ports[1], "--metrics-port", ports[2])
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    for words in ((broken,), (broken, "--no-optimize")):
        code, said = failed(*words, folder / "scaled.onnx", *options)
        assert code == 3
        assert said.splitlines()[-1].startswith("onnxfold: ")
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_minute_of_load_with_reloads(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "digits.onnx", tmp_path / "digits.onnx")
    with serving(tmp_path, tmp_path / "digits.onnx", "--workers", "2") as server:
        with calling(server, _MIXED, digits_asker(folder)) as callers:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                os.utime(tmp_path / "digits.onnx")
                assert server.post("/v2/repository/models/digits/load", b"")[0] == 200
                time.sleep(2)
        assert not callers.failures
        assert server.metric("model_infer_request_success_total") == callers.answered
        assert server.metric("model_infer_request_failure_total") == 0
        assert server.stop() == 0


def test_the_local_reference_is_the_served_file(folder: Path) -> None:
    """The comparisons above mean something: the digits model that is served is a folded one."""
    assert onnxfold.inspect(folder / "digits.onnx")["summary"]["layer_norms"] == 0
