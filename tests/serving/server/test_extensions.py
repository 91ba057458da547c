"""Triton's extensions as perf_analyzer uses them: configuration, statistics, versions, states.

perf_analyzer is not available as a package: what is tested is each call that it makes, in its
order, by Triton's own client library (perf_analyzer, src/client_backend/triton).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.serving.server.extra import demand_extra
from tests.serving.server.models import DATATYPES
from tests.serving.server.process import Server
from tests.serving.server.test_protocol import images, x_input

demand_extra()

LIBRARIES = ("http", "grpc")


def library(name: str) -> ModuleType:
    import tritonclient.grpc
    import tritonclient.http

    return tritonclient.grpc if name == "grpc" else tritonclient.http


def connected(server: Server, name: str) -> Any:
    return library(name).InferenceServerClient(server.grpc if name == "grpc" else server.http)


def as_json(name: str) -> dict[str, bool]:
    return {"as_json": True} if name == "grpc" else {}


def config_of(connection: Any, name: str, model: str) -> dict[str, Any]:
    config = connection.get_model_config(model, **as_json(name))
    return config["config"] if name == "grpc" else config


def statistics_of(connection: Any, name: str, model: str = "") -> list[dict[str, Any]]:
    return connection.get_inference_statistics(model, **as_json(name))["model_stats"]


def digits_input(name: str, rows: int) -> Any:
    x = images(rows)
    one = library(name).InferInput("images", list(x.shape), "FP32")
    one.set_data_from_numpy(x)
    return one


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_calls_of_perf_analyzer_are_answered(server: Server, name: str) -> None:
    with connected(server, name) as connection:
        metadata = connection.get_server_metadata(**as_json(name))
        assert {"statistics", "model_configuration"} <= set(metadata["extensions"])
        model = connection.get_model_metadata("digits", **as_json(name))
        assert model["versions"] == ["1"]
        config = config_of(connection, name, "digits")
        # With batches a client leaves the first dimension of the metadata to its own batch size.
        assert config["max_batch_size"] == 16
        assert "dynamic_batching" in config
        (declared,) = config["input"]
        sizes = [int(size) for size in declared["dims"]]  # JSON of protobuf has them as strings
        assert (declared["name"], declared["data_type"]) == ("images", "TYPE_FP32")
        assert sizes == [int(size) for size in model["inputs"][0]["shape"][1:]] == [1, 8, 8]
        (before,) = statistics_of(connection, name, "digits")
        for rows in (1, 3):
            connection.infer("digits", [digits_input(name, rows)], model_version="1")
        (after,) = statistics_of(connection, name, "digits")
    assert (after["name"], after["version"]) == ("digits", "1")
    assert grown(before, after, "inference_count") == 4
    assert grown(before, after, "execution_count") == 2
    parts = after["inference_stats"]
    # perf_analyzer aborts where the counts of the computation's parts differ.
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert grown(before["inference_stats"][part], parts[part], "count") == 2
    assert grown(before["inference_stats"]["compute_infer"], parts["compute_infer"], "ns") > 0
    assert grown(before["inference_stats"]["success"], parts["success"], "ns") >= sum(
        grown(before["inference_stats"][part], parts[part], "ns")
        for part in ("queue", "compute_input", "compute_infer")
    )


def grown(before: dict[str, Any], after: dict[str, Any], field: str) -> int:
    return int(after.get(field, 0)) - int(before.get(field, 0))


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_request_that_fails_is_counted_as_one(server: Server, name: str) -> None:
    import tritonclient.utils

    def failures(connection: Any) -> int:
        (counted,) = statistics_of(connection, name, "failing")
        return int(counted["inference_stats"].get("fail", {}).get("count", 0))

    one = library(name).InferInput("ids", [1, 1], "INT64")
    one.set_data_from_numpy(np.full((1, 1), 5))
    with connected(server, name) as connection:
        before = failures(connection)
        with pytest.raises(tritonclient.utils.InferenceServerException):
            connection.infer("failing", [one])
        assert failures(connection) == before + 1


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_configuration_names_every_type_as_triton_does(server: Server, name: str) -> None:
    with connected(server, name) as connection:
        config = config_of(connection, name, "every_type")
    types = {one["name"]: one["data_type"] for one in config["input"]}
    assert types == {
        datatype: "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
        for datatype in DATATYPES
    }
    assert int(config.get("max_batch_size", 0)) == 0  # strings run one request at a time
    assert [int(size) for size in config["output"][0]["dims"]] == [-1, 3]


@pytest.mark.parametrize("name", LIBRARIES)
def test_models_are_listed_with_their_state_and_version(server: Server, name: str) -> None:
    with connected(server, name) as connection:
        index = connection.get_model_repository_index(**as_json(name))
        entries = index["models"] if name == "grpc" else index
        assert {one["name"]: (one["state"], one["version"]) for one in entries}["digits"] == (
            "READY",
            "1",
        )
        names = {one["name"] for one in statistics_of(connection, name)}
        assert names == {one["name"] for one in entries}


def test_an_answer_names_the_version(server: Server) -> None:
    for path in ("/v2/models/scaled/infer", "/v2/models/scaled/versions/1/infer"):
        status, said = server.post(path, {"inputs": [x_input()]})
        assert (status, said["model_name"], said["model_version"]) == (200, "scaled", "1")
    with connected(server, "grpc") as connection:
        answer = connection.infer("digits", [digits_input("grpc", 1)]).get_response()
    assert answer.model_version == "1"


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("asked", [("nothing", ""), ("digits", "7")])
def test_what_is_not_there_has_no_configuration(
    server: Server, name: str, asked: tuple[str, str]
) -> None:
    import tritonclient.utils

    with connected(server, name) as connection:
        for call in (connection.get_model_config, connection.get_inference_statistics):
            with pytest.raises(tritonclient.utils.InferenceServerException) as told:
                call(*asked)
            assert str(told.value.status()) in ("404", "StatusCode.NOT_FOUND")
