"""The running server as clients see it: what it describes, answers and refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnxfold
from tests.serving.server.clients import KINDS, client
from tests.serving.server.extra import demand_extra
from tests.serving.server.models import DATATYPES
from tests.serving.server.process import Server
from tests.serving.server.test_codec import example

demand_extra()


def local(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxfold.session(path, options)


def images(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, 1, 8, 8), dtype=np.float32)


def x_input(**changes: Any) -> dict[str, Any]:
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
    return {key: value for key, value in {**one, **changes}.items() if value is not None}


def test_health_and_readiness(server: Server) -> None:
    assert server.get("/v2/health/live")[0] == 200
    assert server.get("/v2/health/ready")[0] == 200
    assert server.get("/v2/models/digits/ready")[0] == 200
    assert server.get("/v2/models/nothing/ready")[0] == 404


def test_health_over_grpc(server: Server) -> None:
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(server.grpc) as connection:
        assert connection.is_server_live()
        assert connection.is_server_ready()
        assert connection.is_model_ready("digits")
        assert not connection.is_model_ready("nothing")
        assert connection.get_server_metadata().name == "onnxfold"


def test_metadata_is_that_of_the_graph(server: Server) -> None:
    status, said = server.get("/v2/models/every_type")
    assert status == 200
    assert said["platform"] == "onnxruntime_onnx"
    assert said["inputs"] == [
        {"name": name, "datatype": name, "shape": [-1, 3]} for name in DATATYPES
    ]
    assert [one["name"] for one in said["outputs"]] == [f"{name}_out" for name in DATATYPES]
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(server.grpc) as connection:
        metadata = connection.get_model_metadata("slow")
    (trips,) = metadata.inputs
    assert (trips.name, trips.datatype, list(trips.shape)) == ("trips", "INT64", [])
    assert list(metadata.outputs[0].shape) == [256, 256]


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_a_local_session(server: Server, folder: Path, kind: str) -> None:
    session = local(folder / "digits.onnx")
    with client(server, kind) as infer:
        for rows in (1, 3, 40):  # 40 is more than a batch holds, and runs alone
            x = images(rows)
            got = infer("digits", {"images": x})
            np.testing.assert_array_equal(got["logits"], session.run(None, {"images": x})[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_datatype_goes_there_and_back(server: Server, kind: str) -> None:
    names = [name for name in DATATYPES if (kind, name) != ("http json", "FP16")]
    arrays = {name: example(name) for name in DATATYPES}
    with client(server, kind) as infer:
        if kind == "http json":  # the client refuses to write FP16 as JSON; we do not
            document = {
                "inputs": [
                    {"name": n, "datatype": n, "shape": [2, 3], "data": a.tolist()}
                    for n, a in arrays.items()
                ]
            }
            status, said = server.post("/v2/models/every_type/infer", document)
            assert status == 200, said
            got = {
                one["name"]: np.array(one["data"], dtype=object).reshape(one["shape"])
                for one in said["outputs"]
            }
        else:
            got = infer("every_type", arrays)
    for name in names:
        said = got[f"{name}_out"]
        if name == "BYTES" and kind != "http json":
            said = np.array([one.decode() for one in said.reshape(-1)], dtype=object).reshape(2, 3)
        np.testing.assert_array_equal(said, arrays[name])


def test_grpc_contents_that_are_not_raw(server: Server) -> None:
    """What a client without numpy sends: elements in typed fields."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc import service_pb2_grpc

    request = pb.ModelInferRequest(model_name="two_inputs", id="17")
    for name in ("a", "b"):
        tensor = request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
        tensor.contents.fp32_contents.extend([1.0, 2.0])
    request.outputs.add(name="y")
    with grpc.insecure_channel(server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert (answer.id, answer.model_name) == ("17", "two_inputs")
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], "<f4"), [2.0, 4.0])


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_outputs_asked_for_come_back(server: Server, kind: str) -> None:
    a, b = np.ones((1, 2), np.float32), np.full((1, 2), 3, np.float32)
    with client(server, kind) as infer:
        assert list(infer("two_inputs", {"b": b, "a": a})) == ["y", "z"]
        got = infer("two_inputs", {"b": b, "a": a}, outputs=["z"])
    assert list(got) == ["z"]
    np.testing.assert_array_equal(got["z"], a - b)


def test_json_and_binary_mix_in_one_request(server: Server) -> None:
    b = np.full((1, 2), 3, np.float32).tobytes()
    head = json.dumps(
        {
            "id": "x1",
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2]]},
                {
                    "name": "b",
                    "datatype": "FP32",
                    "shape": [1, 2],
                    "parameters": {"binary_data_size": len(b)},
                },
            ],
            "outputs": [{"name": "y"}],
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, said = server.post("/v2/models/two_inputs/infer", head + b, headers)
    assert status == 200
    assert said["id"] == "x1"
    assert said["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [4.0, 5.0]}
    ]


def test_a_compressed_body_is_read(server: Server) -> None:
    body = gzip.compress(json.dumps({"inputs": [x_input()]}).encode())
    status, said = server.post("/v2/models/scaled/infer", body, {"Content-Encoding": "gzip"})
    assert (status, said["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    status, said = server.post("/v2/models/scaled/infer", b"{}", {"Content-Encoding": "gzip"})
    assert status == 400
    assert "not gzip" in said["error"]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        ({}, "input 'x' is missing"),
        ({"inputs": {}}, "input 'x' is missing"),
        ({"inputs": 7}, "'inputs' is not a list"),
        ({"inputs": [{}]}, "an input has no name"),
        ({"inputs": [x_input(name="y")]}, "no input 'y'; its inputs are 'x'"),
        ({"inputs": [x_input(), x_input()]}, "'x' is there twice"),
        ({"inputs": [x_input(datatype="FP64")]}, "input 'x' must be FP32, not FP64"),
        ({"inputs": [x_input(datatype=None)]}, "input 'x' has no datatype"),
        (
            {"inputs": [x_input(shape=[4])]},
            "input 'x' must have the shape [batch, 4], not [4]",
        ),
        (
            {"inputs": [x_input(shape=[1, 5])]},
            "input 'x' must have the shape [batch, 4], not [1, 5]",
        ),
        (
            {"inputs": [x_input(shape=[-1, 4])]},
            "the shape [-1, 4] of input 'x' has a negative size",
        ),
        ({"inputs": [x_input(shape="1,4")]}, "shape of input 'x' is not a list"),
        ({"inputs": [x_input(data=[1.0])]}, "1 elements but its shape has 4"),
        ({"inputs": [x_input(data=["a"] * 4)]}, "input 'x' is FP32 and has other values"),
        ({"inputs": [x_input(data=7)]}, "data of input 'x' is not a list"),
        ({"inputs": [x_input(data=None)]}, "input 'x' must have either"),
        (
            {"inputs": [x_input(data=None, parameters={"binary_data_size": 16})]},
            "input 'x' claims 16 bytes, the body has 0 left",
        ),
        ({"inputs": [x_input()], "outputs": [{"name": "q"}]}, "no output 'q'"),
        ({"inputs": [x_input()], "outputs": [{}]}, "an output has no name"),
    ],
)
def test_a_bad_request_is_told_why(server: Server, document: object, sentence: str) -> None:
    status, said = server.post("/v2/models/scaled/infer", document)
    assert status == 400
    assert sentence in said["error"]


def test_a_header_size_beyond_the_body_is_refused(server: Server) -> None:
    for size in ("999999", "-1", "x"):
        headers = {"Inference-Header-Content-Length": size}
        status, said = server.post("/v2/models/scaled/infer", b"{}", headers)
        assert status == 400
        assert "not a size within the body" in said["error"]


def test_bytes_that_no_input_claims_are_refused(server: Server) -> None:
    head = json.dumps({"inputs": [x_input()]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, said = server.post("/v2/models/scaled/infer", head + b"rest", headers)
    assert (status, said["error"]) == (400, "the body has 4 bytes that belong to no input")


def test_a_value_that_the_model_refuses_is_a_bad_request(server: Server) -> None:
    one = {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [5]}
    status, said = server.post("/v2/models/failing/infer", {"inputs": [one]})
    assert status == 400
    assert "failing: the model refuses these values" in said["error"]


def test_results_that_are_not_finite_need_binary_data(server: Server) -> None:
    status, said = server.post(
        "/v2/models/scaled/infer", {"inputs": [x_input(data=[3e38, 1.0, 1.0, 1.0])]}
    )
    assert status == 400
    assert "ask for binary data" in said["error"]
    with client(server, "http binary") as infer:
        got = infer("scaled", {"x": np.array([[3e38, 1, 1, 1]], np.float32)})
    assert np.isinf(got["y"][0, 0])


def test_unknown_models_and_versions_are_404(server: Server) -> None:
    for path in ("/v2/models/nothing", "/v2/models/scaled/versions/7"):
        assert server.get(path)[0] == 404
        status, said = server.post(f"{path}/infer", {"inputs": [x_input()]})
        assert status == 404
        assert "not found" in said["error"]
    assert server.metric("model_infer_request_failure_total", model="nothing") == 0


@pytest.mark.parametrize(
    ("model", "arrays", "code", "sentence"),
    [
        ("nothing", {"x": np.zeros((1, 4), "f4")}, "NOT_FOUND", "nothing not found"),
        ("scaled", {"q": np.zeros((1, 4), "f4")}, "INVALID_ARGUMENT", "no input 'q'"),
        (
            "scaled",
            {"x": np.zeros((1, 4), "f8")},
            "INVALID_ARGUMENT",
            "'x' must be FP32, not FP64",
        ),
        (
            "scaled",
            {"x": np.zeros((1, 5), "f4")},
            "INVALID_ARGUMENT",
            "'x' must have the shape [batch, 4], not [1, 5]",
        ),
        (
            "scaled",
            {"x": np.zeros(4, "f4")},
            "INVALID_ARGUMENT",
            "'x' must have the shape [batch, 4], not [4]",
        ),
        ("two_inputs", {"a": np.zeros((1, 4), "f4")}, "INVALID_ARGUMENT", "'b' is missing"),
        ("failing", {"ids": np.full((1, 1), 9)}, "INVALID_ARGUMENT", "refuses these values"),
    ],
)
def test_a_bad_call_over_grpc_is_told_why(
    server: Server, model: str, arrays: dict[str, np.ndarray], code: str, sentence: str
) -> None:
    import tritonclient.utils

    refused = tritonclient.utils.InferenceServerException
    with client(server, "grpc") as infer, pytest.raises(refused) as caught:
        infer(model, arrays)
    assert code in str(caught.value.status())
    assert sentence in caught.value.message()


def test_raw_contents_over_grpc_must_fit(server: Server) -> None:
    import grpc
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc import service_pb2_grpc

    def ask(**words: Any) -> str:
        request = pb.ModelInferRequest(model_name="scaled", **words)
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        return str(caught.value.details())

    x = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    assert "12 bytes of data" in ask(inputs=[x], raw_input_contents=[b"\0" * 12])
    assert "2 raw contents for 1 inputs" in ask(inputs=[x], raw_input_contents=[b"", b""])
    assert "datatype 'FLOAT'" in ask(inputs=[{**x, "datatype": "FLOAT"}])
    assert "FP16, which must be sent raw" in ask(inputs=[{**x, "datatype": "FP16"}])
    both = {**x, "contents": {"fp32_contents": [1.0]}}
    assert "raw contents and others" in ask(inputs=[both], raw_input_contents=[b"\0" * 16])
    assert "0 elements but its" in ask(inputs=[x])
