"""What the server's log says of requests: of those that are refused always, of all with -v."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.serving.server.clients import client
from tests.serving.server.extra import demand_extra
from tests.serving.server.process import Server, serving, wait_for

demand_extra()

_GOOD = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]}
_INFER = "/v2/models/scaled/infer"


def _lines(server: Server, pattern: str) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if re.search(pattern, line)]


def _ask(server: Server) -> None:
    import tritonclient.utils

    assert server.post(_INFER, _GOOD)[0] == 200
    assert server.post(_INFER, {"inputs": []})[0] == 400
    assert server.post(_INFER, b"x" * 5000)[0] == 413
    assert server.post("/v2/models/no\n\x1b[31mthing/infer".replace("\n", "%0A").replace(
        "\x1b", "%1B"), _GOOD)[0] == 404  # fmt: skip
    assert server.get("/v2/health/ready")[0] == 200
    with client(server, "grpc") as infer:
        infer("scaled", {"x": np.ones((1, 4), np.float32)})
        with pytest.raises(tritonclient.utils.InferenceServerException):
            infer("scaled", {"z": np.ones((1, 4), np.float32)})


def test_a_refused_request_leaves_a_line_with_the_reason(folder: Path) -> None:
    options = ("--no-optimize", "--max-request-bytes", "4096")
    with serving(folder, folder / "scaled.onnx", *options) as server:
        _ask(server)
        wait_for(lambda: len(_lines(server, "refused: ")) == 4)
        for wanted in (
            rf"refused: 127\.0\.0\.1 POST {_INFER} 400, [\d.]+ ms: .*scaled",
            rf"refused: 127\.0\.0\.1 POST {_INFER} 413, .*more than 4096 bytes",
            r"refused: 127\.0\.0\.1 POST /v2/models/no\\n\\x1b\[31mthing/infer 404",
            r"refused: ipv4:127\.0\.0\.1:\d+ \S*ModelInfer INVALID_ARGUMENT, .*: .*scaled",
        ):
            assert len(_lines(server, wanted)) == 1, wanted
        assert not _lines(server, r" 200, \d+ bytes")


def test_every_request_leaves_a_line_where_that_is_asked(folder: Path) -> None:
    options = ("-v", "--no-optimize", "--max-request-bytes", "4096")
    with serving(folder, folder / "scaled.onnx", *options) as server:
        _ask(server)
        wait_for(lambda: len(_lines(server, "ModelInfer OK, ")) == 1)
        wait_for(lambda: len(_lines(server, "refused: ")) == 4)
        assert len(_lines(server, rf"127\.0\.0\.1 POST {_INFER} 200, \d+ bytes, [\d.]+ ms")) == 1
        assert len(_lines(server, "GET /v2/health/ready 200")) == 1


def test_an_answered_request_leaves_no_line(folder: Path) -> None:
    with serving(folder, folder / "scaled.onnx", "--no-optimize") as server:
        assert server.post(_INFER, _GOOD)[0] == 200
        assert server.get("/v2/health/ready")[0] == 200
        assert not _lines(server, "POST|GET")
