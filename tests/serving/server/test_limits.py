"""Requests that are too large or too slow, and a stop while some are still on their way."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from tests.serving.server import models
from tests.serving.server.clients import client
from tests.serving.server.extra import demand_extra
from tests.serving.server.process import Server, serving
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


def test_a_limit_of_one_request_harms_no_other(limited: Server) -> None:
    with client(limited, "http binary") as infer:
        x = np.ones((1, 4), np.float32)
        np.testing.assert_array_equal(infer("scaled", {"x": x})["y"], 2 * x)
