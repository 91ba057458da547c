"""Requests that are too large or too slow, and a stop while some are still on their way."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from tests.serving.server import models
from tests.serving.server.clients import client
from tests.serving.server.extra import demand_extra
from tests.serving.server.half_messages import HalfMessages
from tests.serving.server.process import Server, serving, wait_for
from tests.serving.server.slow_network import stuck_network

demand_extra()

LIMIT = 100_000
BOMB = 1 << 28  # bytes of zeros; a thousandth of that when compressed


@pytest.fixture(scope="module")
def limited(folder: Path) -> Iterator[Server]:
    options = ("--max-request-bytes", str(LIMIT), "--header-timeout", "1", "--body-timeout", "1")
    with serving(folder, folder / "scaled.onnx", "--no-optimize", *options) as running:
        yield running


def request_of(size: int) -> bytes:
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return json.dumps({"inputs": [one]}).encode().ljust(size)


def compressed(encoding: str, body: bytes) -> bytes:
    return gzip.compress(body) if encoding == "gzip" else zlib.compress(body)


def exchanged(server: Server, *parts: bytes) -> bytes:
    """Send parts over one connection and return all that comes until the server closes it."""
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        for part in parts:
            connection.sendall(part)
        said = b""
        while piece := connection.recv(65536):
            said += piece
    return said


def head(*lines: str) -> bytes:
    first = ("POST /v2/models/scaled/infer HTTP/1.1", "Host: x")
    return "\r\n".join((*first, *lines, "", "")).encode()


def test_a_body_may_be_as_large_as_the_limit_and_no_larger(limited: Server) -> None:
    assert limited.post("/v2/models/scaled/infer", request_of(LIMIT))[0] == 200
    before = limited.metric("onnxfold_requests_refused_total", status="413")
    status, said = limited.post("/v2/models/scaled/infer", request_of(LIMIT + 1))
    assert status == 413
    assert said["error"] == f"the body has more than {LIMIT} bytes, the limit of this server"
    assert limited.metric("onnxfold_requests_refused_total", status="413") == before + 1


def test_a_body_without_a_length_is_counted_too(limited: Server) -> None:
    chunk = b"%x\r\n%s\r\n" % (LIMIT, bytes(LIMIT))
    said = exchanged(limited, head("Transfer-Encoding: chunked"), chunk, chunk, b"0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413 ")


def test_who_asks_first_is_refused_before_the_body_is_sent(limited: Server) -> None:
    said = exchanged(limited, head("Expect: 100-continue", f"Content-Length: {LIMIT + 1}"))
    assert said.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_may_become_as_large_as_the_limit(limited: Server, encoding: str) -> None:
    headers = {"Content-Encoding": encoding}
    for size, expected in ((LIMIT, 200), (LIMIT + 1, 413)):
        body = compressed(encoding, request_of(size))
        assert limited.post("/v2/models/scaled/infer", body, headers)[0] == expected
    body = compressed(encoding, request_of(LIMIT))[:-9]
    status, said = limited.post("/v2/models/scaled/infer", body, headers)
    assert (status, said["error"]) == (400, f"the body is not {encoding}: it ends too early")


def test_members_of_gzip_count_together(limited: Server) -> None:
    request = request_of(LIMIT)
    headers = {"Content-Encoding": "gzip"}
    for rest, expected in ((b"", 200), (b" ", 413)):
        parts = (request[:50], request[50:], rest)
        body = b"".join(gzip.compress(part) for part in parts if part)
        assert limited.post("/v2/models/scaled/infer", body, headers)[0] == expected


def test_many_empty_members_are_refused_at_once(folder: Path) -> None:
    """Each of 200,000 members would copy what is left; a stop meanwhile waits for none of that."""
    member = gzip.compress(b"", mtime=0)
    body = member * (4 * 2**20 // len(member))
    with serving(folder, folder / "scaled.onnx", "--no-optimize", "--grace", "1") as server:
        start = time.monotonic()
        headers = {"Content-Encoding": "gzip"}
        status, said = server.post("/v2/models/scaled/infer", body, headers)
        assert (status, said["error"]) == (400, "the body is not gzip: it has over 10000 members")
        with ExitStack() as stack:
            lines = (f"Content-Length: {len(body)}", "Content-Encoding: gzip")
            half_sent(server, [head(*lines) + body] * 4, stack)
            assert server.stop() == 0
        assert time.monotonic() - start < 30
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000 + "1", "9" * 25, "-1", "\xb2"])
@pytest.mark.parametrize("name", ["Inference-Header-Content-Length", "Content-Length"])
def test_a_header_that_is_no_size_is_a_fault_of_the_client(
    limited: Server, name: str, digits: str
) -> None:
    """Python makes no integer of more than 4,300 digits."""
    body = request_of(200)
    for more in ([], ["Expect: 100-continue"]):
        length = [] if name == "Content-Length" else ["Content-Length: 200"]
        request = head(*length, *more, "Connection: close").decode()
        request = request.replace("\r\n\r\n", f"\r\n{name}: {digits}\r\n\r\n")
        said = exchanged(limited, request.encode("latin-1") + body)
        assert said.partition(b"HTTP/1.1 100 ")[2] or said.startswith(
            (b"HTTP/1.1 4", b"HTTP/1.1 2")
        )
        assert b"HTTP/1.1 5" not in said
    assert "Traceback" not in limited.log.read_text()


def test_all_bodies_share_one_budget(folder: Path) -> None:
    import tritonclient.grpc
    import tritonclient.utils

    size = 100_000
    options = ("--max-request-bytes", str(size), "--max-buffered", str(2 * size))
    with (
        serving(folder, folder / "scaled.onnx", "--no-optimize", *options) as server,
        ExitStack() as stack,
    ):
        part = head(f"Content-Length: {size}") + bytes(size - 1)
        connections = half_sent(server, [part, part], stack)

        def full() -> bool:
            return server.post("/v2/models/scaled/infer", request_of(200))[0] == 503

        wait_for(full)
        status, said = server.post("/v2/models/scaled/infer", request_of(200))
        assert status == 503
        assert said["error"].endswith(f"and at most {2 * size} at once; ask again")
        assert server.metric("onnxfold_requests_refused_total", status="503") > 0
        assert server.get("/v2/health/live")[0] == 200
        x = np.ones((1, 4), np.float32)
        refused = tritonclient.utils.InferenceServerException
        with client(server, "grpc") as infer, pytest.raises(refused, match="ask again"):
            infer("scaled", {"x": x})
        for connection in connections:  # they leave
            connection.close()
        wait_for(lambda: not full())
        with client(server, "grpc") as infer:
            np.testing.assert_array_equal(infer("scaled", {"x": x})["y"], 2 * x)


def test_what_is_decompressed_counts_too(folder: Path) -> None:
    size = 1_000_000
    options = ("--max-request-bytes", str(size), "--max-buffered", str(size + 100))
    with serving(folder, folder / "scaled.onnx", "--no-optimize", *options) as server:
        body, headers = compressed("gzip", request_of(size)), {"Content-Encoding": "gzip"}
        assert server.post("/v2/models/scaled/infer", body, headers)[0] == 503
        body = compressed("gzip", request_of(size // 2))
        for _ in range(3):
            assert server.post("/v2/models/scaled/infer", body, headers)[0] == 200


def test_an_unknown_encoding_is_refused(limited: Server) -> None:
    status, said = limited.post("/v2/models/scaled/infer", b"x", {"Content-Encoding": "br"})
    assert (status, said["error"]) == (415, "a body may be gzip or deflate, not 'br'")


def test_what_swells_when_decompressed_takes_no_memory(folder: Path) -> None:
    """A thousandth of the memory is sent; the server must not come near the rest."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc import service_pb2_grpc

    limit = BOMB >> 3
    options = ("--no-optimize", "--max-request-bytes", str(limit))
    with serving(folder, folder / "scaled.onnx", *options) as server:
        before = server.peak_memory()
        status, _ = server.post(
            "/v2/models/scaled/infer", gzip.compress(bytes(BOMB)), {"Content-Encoding": "gzip"}
        )
        assert status == 413
        request = pb.ModelInferRequest(model_name="scaled", raw_input_contents=[bytes(BOMB)])
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as told:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                request, compression=grpc.Compression.Gzip
            )
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.get("/v2/health/live")[0] == 200
        # What was decompressed before it was refused, twice, and the threads that did it.
        assert server.peak_memory() - before < BOMB // 2


def test_a_head_that_does_not_end_is_told_so(limited: Server) -> None:
    assert exchanged(limited, b"POST /v2/models/sc").startswith(b"HTTP/1.1 408 ")
    assert exchanged(limited, b"") == b""


def test_a_body_that_does_not_end_is_told_so(limited: Server) -> None:
    said = exchanged(limited, head("Content-Length: 100"), b"{")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"the body of the request did not come in time" in said


def test_the_second_request_of_a_connection_has_its_time_too(limited: Server) -> None:
    body = request_of(200)
    said = exchanged(limited, head("Content-Length: 200") + body + b"POST /v2")
    first, _, second = said.partition(b"HTTP/1.1 ")[2].partition(b"HTTP/1.1 ")
    assert first.startswith(b"200 ")
    assert second == b"" or second.startswith(b"408 ")  # idle, or in the middle of a head


def half_sent(server: Server, parts: Sequence[bytes], stack: ExitStack) -> list[socket.socket]:
    host, _, port = server.http.partition(":")
    connections = []
    for part in parts:
        connection = socket.create_connection((host, int(port)), timeout=120)
        connections.append(stack.enter_context(closing(connection)))
        connection.sendall(part)
    return connections


def test_a_stop_waits_for_no_request_that_has_not_come(folder: Path) -> None:
    """The grace period is longer than the test waits."""
    options = ("--no-optimize", "--grace", "3000", "--body-timeout", "3000")
    body = head("Content-Length: 100") + b"{"
    with serving(folder, folder / "scaled.onnx", *options) as server, ExitStack() as stack:
        connections = half_sent(server, [body] * 5 + [body[:20]] * 5, stack)
        while server.connections() < len(connections):
            assert server.process.poll() is None
        assert server.get("/v2/health/live")[0] == 200  # what came before this has been read
        assert server.stop() == 0
        for number, connection in enumerate(connections):
            said = connection.recv(65536)
            assert said.startswith(b"HTTP/1.1 503 ") if number < 5 else said == b""
        assert "Traceback" not in server.log.read_text()


def test_a_stop_ends_although_a_run_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = {"name": "trips", "datatype": "INT64", "shape": [], "data": [10**9]}
    body = json.dumps({"inputs": [one]}).encode()
    request = head(f"Content-Length: {len(body)}").replace(b"scaled", b"slow") + body
    options = ("--no-optimize", "--grace", "0.5")
    with serving(folder, folder / "slow.onnx", *options) as server, ExitStack() as stack:
        (connection,) = half_sent(server, [request], stack)
        wait_for(lambda: server.metric("onnxfold_batch_requests_sum", model="slow") == 1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 30
        assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert "did not end within the grace period" in server.log.read_text()
    assert [path for path in tmp_path.iterdir() if "onnxfold" in path.name] == []


def test_a_stop_waits_for_no_call_that_has_not_come(folder: Path) -> None:
    import tritonclient.grpc
    import tritonclient.utils

    models.write(models.wide(), folder / "wide.onnx")
    options = ("--no-optimize", "--grace", "3000")
    with serving(folder, folder / "wide.onnx", *options) as server:
        with (
            stuck_network(server.grpc, after=1 << 16) as (address, stuck),
            tritonclient.grpc.InferenceServerClient(address) as connection,
        ):
            one = tritonclient.grpc.InferInput("x", [1, 1 << 18], "FP32")
            one.set_data_from_numpy(np.ones((1, 1 << 18), np.float32))
            answers: list[object] = []
            connection.async_infer(
                "wide", [one], lambda result, error: answers.append(error or result)
            )
            assert stuck.wait(120)
            assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def test_as_many_messages_come_at_once_as_the_budget_holds(folder: Path) -> None:
    """Of all others only the window of a stream; and clients that stay silent hold up nobody."""
    import tritonclient.grpc

    size, window = 1 << 20, 1 << 16
    options = ("--max-request-bytes", str(size), "--max-buffered", str(2 * size))
    options += ("--body-timeout", "2", "--no-optimize")
    with (
        serving(folder, folder / "scaled.onnx", *options) as server,
        HalfMessages(server.grpc) as half,
    ):
        with HalfMessages(server.grpc) as other:
            assert half.call(size - 100, 60) > size - 200
            sent = [each.call(size - 100, 0.2) for each in (other, half) for _ in range(5)]
            assert sum(sent) <= size + len(sent) * window
        with tritonclient.grpc.InferenceServerClient(server.grpc) as asking:
            assert asking.is_server_live()
        x = np.ones((1, 4), np.float32)
        with client(server, "grpc") as infer:
            np.testing.assert_array_equal(infer("scaled", {"x": x})["y"], 2 * x)
        refused = "UNAVAILABLE, .*: the message took over 2 s while others waited; ask again"
        assert re.search(refused, server.log.read_text())


def test_a_call_without_the_token_sends_no_message(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    options = ("--no-optimize", "--token-file", tmp_path / "token")
    with (
        serving(folder, folder / "scaled.onnx", *options) as server,
        HalfMessages(server.grpc) as half,
    ):
        assert half.call(1 << 20, 1.0) <= 1 << 16
        assert "UNAUTHENTICATED" in server.log.read_text()


def test_a_limit_of_one_request_harms_no_other(limited: Server) -> None:
    with client(limited, "http binary") as infer:
        x = np.ones((1, 4), np.float32)
        np.testing.assert_array_equal(infer("scaled", {"x": x})["y"], 2 * x)
