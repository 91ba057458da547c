"""A token and TLS: who may ask, and what is said where nobody is kept out."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfold.errors import UsageError
from onnxfold.serving import NamedModel, ServeSettings
from onnxfold.serving.settings import read_token, tls_files
from tests.serving.server.extra import demand_extra
from tests.serving.server.process import Server, serving

demand_extra("trustme")

TOKEN = "only-for-friends"  # noqa: S105 - of this test


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An authority, a certificate of 127.0.0.1 with its key, and a token."""
    import trustme

    folder = tmp_path_factory.mktemp("access")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    paths = {name: folder / name for name in ("authority", "cert", "key", "token")}
    authority.cert_pem.write_to_path(str(paths["authority"]))
    issued.private_key_pem.write_to_path(str(paths["key"]))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(paths["cert"]), append=True)
    paths["token"].write_text(TOKEN + "\n")
    return paths


@pytest.fixture(scope="module")
def secure(folder: Path, files: dict[str, Path]) -> Iterator[Server]:
    """A server with both, whose stop in the end is clean too."""
    options = ("--tls-cert", files["cert"], "--tls-key", files["key"])
    options = (*options, "--token-file", files["token"])
    with serving(folder, folder / "scaled.onnx", "--no-optimize", *options) as running:
        assert "ready: https://" in running.log.read_text()
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log.read_text()


def asked(files: dict[str, Path], url: str, *, token: str | None, body: object = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    context = ssl.create_default_context(cafile=str(files["authority"]))
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_only_who_has_the_token_is_answered(secure: Server, files: dict[str, Path]) -> None:
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    url = f"https://{secure.http}/v2/models/scaled/infer"
    for token in (None, "", "only-for-friend", TOKEN + "s"):
        status, said = asked(files, url, token=token, body={"inputs": [one]})
        assert status == 401
        assert json.loads(said)["error"] == "the request does not have this server's token"
    status, said = asked(files, url, token=TOKEN, body={"inputs": [one]})
    assert status == 200
    assert json.loads(said)["outputs"][0]["data"] == [2, 4, 6, 8]


def test_health_is_told_to_all_and_metrics_are_not(secure: Server, files: dict[str, Path]) -> None:
    for path in ("live", "ready"):
        assert asked(files, f"https://{secure.http}/v2/health/{path}", token=None)[0] == 200
    metrics = f"https://{secure.metrics}/metrics"
    assert asked(files, metrics, token=None)[0] == 401
    assert b"onnxfold_run_seconds" in asked(files, metrics, token=TOKEN)[1]


def test_without_tls_nothing_is_answered(secure: Server) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://{secure.http}/v2/health/live", timeout=60)


def test_only_who_has_the_token_is_answered_over_grpc(
    secure: Server, files: dict[str, Path]
) -> None:
    import tritonclient.grpc
    import tritonclient.utils

    x = np.ones((1, 4), np.float32)
    one = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
    one.set_data_from_numpy(x)
    with tritonclient.grpc.InferenceServerClient(
        secure.grpc, ssl=True, root_certificates=str(files["authority"])
    ) as connection:
        assert connection.is_server_live()
        assert connection.is_server_ready()
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": TOKEN}):
            for call in (connection.get_model_config, connection.get_model_metadata):
                with pytest.raises(tritonclient.utils.InferenceServerException) as told:
                    call("scaled", headers=headers)
                assert "UNAUTHENTICATED" in str(told.value.status())
            with pytest.raises(tritonclient.utils.InferenceServerException) as told:
                connection.infer("scaled", [one], headers=headers)
            assert "UNAUTHENTICATED" in str(told.value.status())
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = connection.infer("scaled", [one], headers=headers)
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def test_who_listens_to_the_network_is_warned(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()

    def warning(**chosen: Any) -> str | None:
        return ServeSettings(models=(NamedModel("m", path),), **chosen).open_to_others

    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.5"):
        assert warning(host=host) is None
    for host in ("0.0.0.0", "::", "192.168.0.9", "models.example"):  # noqa: S104 - no server here
        assert "--token-file demands a token" in str(warning(host=host))
        assert "--tls-cert" in str(warning(host=host, token="t"))  # noqa: S106
        assert warning(host=host, token="t", tls=(path, path)) is None  # noqa: S106


def test_a_token_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("", "two words", "two\nlines", "é"):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"token_file=.*(one line|ascii)"):
            read_token(path)
    with pytest.raises(UsageError, match=r"token_file=.*No such file"):
        read_token(tmp_path / "missing")


def test_a_certificate_needs_its_key(tmp_path: Path, files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="must be given together"):
        tls_files(files["cert"], None)
    with pytest.raises(UsageError, match="tls_cert="):
        tls_files(files["cert"], files["cert"])
    with pytest.raises(UsageError, match="tls_cert="):
        tls_files(tmp_path / "missing", files["key"])
