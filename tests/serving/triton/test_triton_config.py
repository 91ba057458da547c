"""config.pbtxt as Triton reads it: its own protobuf, and the rules of its backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxfold.errors import ModelError
from onnxfold.serving.datatypes import BY_NAME
from onnxfold.serving.served_signature import (
    ServedSignature,
    TensorSpec,
    signature_of,
    why_not_batched,
)
from onnxfold.serving.session import open_session
from onnxfold.serving.triton.config import ModelConfig
from onnxfold.serving.triton.deployment import TritonDevice

model_config_pb2 = pytest.importorskip(
    "tritonclient.grpc.model_config_pb2", reason="tritonclient[grpc] is not installed"
)

FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str | None] | None


def parsed(text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, model_config_pb2.ModelConfig())


def config_of(signature: ServedSignature, max_batch: int = 0, **other: Any) -> Any:
    given = {"name": "m", "device": TritonDevice.CPU, "library": None, "threads": None} | other
    return parsed(ModelConfig(signature=signature, max_batch=max_batch, **given).text())


def read_signature(path: Path) -> ServedSignature:
    return signature_of(open_session(path, name="m", library=None), path, "m")


def identity_model(
    path: Path, shape: Shape, *, dtype: int = FLOAT, out: Shape = None, default: bool = False
) -> Path:
    """One Identity from x to y; where asked for, x has a default in the model."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape if out is None else out)],
        [helper.make_tensor("x", dtype, [2], [1.0, 2.0])] if default else [],
    )
    opsets = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def of_shapes(inputs: dict[str, Any], outputs: dict[str, Any]) -> ServedSignature:
    return ServedSignature(
        tuple(TensorSpec(name, BY_NAME["FP32"], tuple(dims)) for name, dims in inputs.items()),
        tuple(TensorSpec(name, BY_NAME["FP32"], tuple(dims)) for name, dims in outputs.items()),
    )


def assert_backend_takes(config: Any, signature: ServedSignature) -> None:
    """ValidateInputs, ValidateOutputs and CompareDimsSupported of Triton's onnxruntime backend."""
    for fields, tensors in ((config.input, signature.inputs), (config.output, signature.outputs)):
        shapes = {tensor.name: tensor.dims for tensor in tensors}
        for field in fields:
            model = [dim if isinstance(dim, int) else -1 for dim in shapes[field.name]]
            dims = list(field.reshape.shape if field.HasField("reshape") else field.dims)
            if not model:
                assert all(dim == 1 for dim in dims)
                continue
            full = [-1, *dims] if config.max_batch_size else dims
            assert full == model
            assert not (config.max_batch_size and getattr(field, "optional", False))


@pytest.mark.parametrize(
    ("onnx_type", "name"),
    [
        *((TensorProto.FLOAT, "FP32"), (TensorProto.FLOAT16, "FP16"), (TensorProto.DOUBLE, "FP64")),
        *((TensorProto.BFLOAT16, "BF16"), (TensorProto.BOOL, "BOOL"), (TensorProto.INT8, "INT8")),
        *((TensorProto.INT16, "INT16"), (TensorProto.INT32, "INT32"), (TensorProto.INT64, "INT64")),
        *((TensorProto.UINT8, "UINT8"), (TensorProto.UINT16, "UINT16")),
        *((TensorProto.UINT32, "UINT32"), (TensorProto.UINT64, "UINT64")),
        (TensorProto.STRING, "STRING"),
    ],
)
def test_every_type_of_the_backend_has_its_name(tmp_path: Path, onnx_type: int, name: str) -> None:
    path = identity_model(tmp_path / "m.onnx", ["n", 3], dtype=onnx_type)
    config = config_of(read_signature(path))
    assert model_config_pb2.DataType.Name(config.input[0].data_type) == f"TYPE_{name}"
    assert config.output[0].data_type == config.input[0].data_type


def test_free_dimensions_are_minus_one(tmp_path: Path) -> None:
    path = identity_model(tmp_path / "m.onnx", ["batch", None, 4, "seq"])
    signature = read_signature(path)
    config = config_of(signature)
    assert list(config.input[0].dims) == [-1, -1, 4, -1]
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert_backend_takes(config, signature)


def test_with_batches_the_first_dimension_is_left_out(tmp_path: Path) -> None:
    signature = read_signature(identity_model(tmp_path / "m.onnx", ["batch", 4, "seq"]))
    config = config_of(signature, max_batch=16)
    assert (config.max_batch_size, list(config.input[0].dims)) == (16, [4, -1])
    assert config.HasField("dynamic_batching")
    assert_backend_takes(config, signature)


def test_one_number_for_each_request_is_reshaped(tmp_path: Path) -> None:
    signature = read_signature(identity_model(tmp_path / "m.onnx", ["batch"]))
    config = config_of(signature, max_batch=4)
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert not config.output[0].reshape.shape
    assert_backend_takes(config, signature)


def test_a_scalar_is_one_element_and_never_in_batches(tmp_path: Path) -> None:
    signature = read_signature(identity_model(tmp_path / "m.onnx", []))
    config = config_of(signature)
    assert list(config.input[0].dims) == [1]
    assert not config.input[0].HasField("reshape")
    assert_backend_takes(config, signature)
    assert why_not_batched(signature) == "input 'x' is a scalar"


def test_an_output_has_the_shape_that_the_session_infers(tmp_path: Path) -> None:
    """The file leaves the last dimension of y free; the backend compares with the inferred 3."""
    path = identity_model(tmp_path / "m.onnx", ["n", 3], out=["n", "unknown"])
    config = config_of(read_signature(path))
    assert list(config.output[0].dims) == [-1, 3]


def test_an_input_with_a_default_is_optional_but_not_in_batches(tmp_path: Path) -> None:
    path = identity_model(tmp_path / "m.onnx", [2], default=True)
    signature = read_signature(path)
    assert config_of(signature).input[0].optional
    assert not config_of(signature, max_batch=2).input


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ({"x": [8, 3]}, {"y": ["b", 3]}, "the first dimension of input 'x' is 8, fixed"),
        ({"x": ["b", 3]}, {"y": [1]}, "the first dimension of output 'y' is 1, fixed"),
        ({"x": ["b"], "z": ["t"]}, {"y": ["b"]}, "'b' of 'x' and 't' of 'z'"),
        ({"x": ["b", "t"]}, {"y": ["t", "b"]}, "the first dimension of output 'y' is 't'"),
        ({"x": ["b", "b"]}, {"y": ["b"]}, "'b' is another dimension of input 'x' too"),
        ({"x": ["b"]}, {"y": ["b", "b"]}, "'b' is another dimension of output 'y' too"),
        ({}, {"y": ["b"]}, "it has no input"),
    ],
)
def test_what_cannot_be_joined_says_why(
    inputs: dict[str, Any], outputs: dict[str, Any], says: str
) -> None:
    assert says in str(why_not_batched(of_shapes(inputs, outputs)))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"x": ["b", 3], "z": ["b"]}, {"y": ["b"]}),
        ({"x": [None, 3], "z": ["b"]}, {"y": [None]}),
        ({"x": ["b", "t"]}, {"y": ["Gather_dim_0", 3]}),  # exporters name what they cannot follow
    ],
)
def test_what_can_be_joined(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    assert why_not_batched(of_shapes(inputs, outputs)) is None


def test_a_value_without_a_rank_is_refused(tmp_path: Path) -> None:
    path = identity_model(tmp_path / "m.onnx", None)
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        read_signature(path)


def test_what_is_no_tensor_of_triton_is_refused(tmp_path: Path) -> None:
    path = identity_model(tmp_path / "m.onnx", ["n"], dtype=TensorProto.FLOAT8E4M3FN)
    with pytest.raises(ModelError, match=r"input 'x' is a tensor\(float8e4m3fn\), which the"):
        read_signature(path)


def test_device_threads_and_library_are_told() -> None:
    signature = of_shapes({"x": [2]}, {"y": [2]})
    config = config_of(signature, device=TritonDevice.GPU, threads=3, library="/models/m/lib.so")
    assert config.platform == "onnxruntime_onnx"
    assert config.backend == "onnxruntime"
    (group,) = config.instance_group
    assert (group.kind, group.count) == (group.KIND_GPU, 1)
    assert config.parameters["intra_op_thread_count"].string_value == "3"
    assert list(config.model_operations.op_library_filename) == ["/models/m/lib.so"]
    plain = config_of(signature)
    assert plain.instance_group[0].kind == group.KIND_CPU
    assert not plain.parameters
    assert not plain.HasField("model_operations")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_name_comes_back(name: str) -> None:
    assert config_of(of_shapes({name: [2]}, {"y": [2]})).input[0].name == name
