"""The protocol's tensors: every type both ways, and a sentence for whatever does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfold.serving.codec import RequestError, Tensor, decode, elements, raw_bytes, selected
from onnxfold.serving.datatypes import BY_NAME
from onnxfold.serving.served_signature import Array, ServedSignature, TensorSpec

_DTYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def spec(datatype: str, *dims: int | str | None, name: str = "x") -> TensorSpec:
    return TensorSpec(name, BY_NAME[datatype], dims)


def signature(*inputs: TensorSpec) -> ServedSignature:
    return ServedSignature(
        inputs, (spec("FP32", "batch", name="y"), spec("FP32", "batch", name="z"))
    )


def example(datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array(["", "é", "a b", "\0", "x" * 300, "z"], dtype=np.object_).reshape(2, 3)
    dtype = np.dtype(_DTYPES[datatype])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, 0, 1, 2, 3], dtype=dtype).reshape(2, 3)
    return np.array([0, 1, 1, 0, 0, 1]).astype(dtype).reshape(2, 3)


@pytest.mark.parametrize("datatype", _DTYPES)
def test_every_type_survives_bytes_and_lists(datatype: str) -> None:
    sent = example(datatype)
    model = signature(spec(datatype, "batch", 3))
    nested: Any = sent.tolist()
    for data in (raw_bytes(sent), memoryview(raw_bytes(sent)), elements(sent), nested):
        (got,) = decode([Tensor("x", datatype, [2, 3], data)], model).values()
        assert got.dtype == sent.dtype
        np.testing.assert_array_equal(got, sent)


def test_an_empty_tensor_is_a_tensor() -> None:
    model = signature(spec("FP32", "batch", 3), spec("BYTES", "batch", name="s"))
    for empty in (b"", []):
        tensors = [Tensor("x", "FP32", [0, 3], empty), Tensor("s", "BYTES", [0], empty)]
        got = decode(tensors, model)
        assert got["x"].shape == (0, 3)
        assert got["s"].shape == (0,)


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (Tensor("y", "FP32", [1, 2], [1, 2]), "no input 'y'; its inputs are 'x'"),
        (Tensor("x", "FP64", [1, 2], [1, 2]), "input 'x' must be FP32, not FP64"),
        (
            Tensor("x", "FP32", [2], [1, 2]),
            r"must have the shape \[batch, 2\], not \[2\]",
        ),
        (
            Tensor("x", "FP32", [1, 3], [1, 2, 3]),
            r"must have the shape \[batch, 2\], not \[1, 3\]",
        ),
        (Tensor("x", "FP32", [-1, 2], [1, 2]), r"shape \[-1, 2\] of input 'x' has a negative size"),
        (Tensor("x", "FP32", [1, 2], [1, 2, 3]), "3 elements but its shape has 2"),
        (Tensor("x", "FP32", [1, 2], []), "0 elements but its shape has 2"),
        (Tensor("x", "FP32", [1, 2], b"1234"), "4 bytes of data, .* need 8"),
        (Tensor("x", "FP32", [2**63, 2], []), "0 elements but its shape has"),
        (Tensor("x", "FP32", [1, 2], [[1], [2]]), r"nested as \[2, 1\], .* \[1, 2\]"),
        (Tensor("x", "FP32", [1, 2], [[1, 2], [3]]), "not a tensor"),
        (Tensor("x", "FP32", [1, 2], ["1", "2"]), "FP32 and has other values"),
        (Tensor("x", "FP32", [1, 2], [None, 2.0]), "FP32 and has other values"),
        (Tensor("x", "FP32", [1, 2], [True, False]), "FP32 and has other values"),
        (Tensor("x", "FP32", [1, 2], [{}, 1]), "FP32 and has other values"),
    ],
)
def test_a_float_that_does_not_fit_is_told_why(tensor: Tensor, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        decode([tensor], signature(spec("FP32", "batch", 2)))


@pytest.mark.parametrize(
    ("datatype", "data", "sentence"),
    [
        ("INT8", [1, 128], "outside of INT8"),
        ("UINT8", [-1, 1], "outside of UINT8"),
        ("INT64", [1.0, 2.5], "INT64 and has other values"),
        ("INT64", [2**70, 1], "outside of INT64"),
        ("UINT64", [2**63, -1], "outside of UINT64"),
        ("INT32", [True, False], "INT32 and has other values"),
        ("BOOL", [0, 1], "BOOL and has other values"),
        ("BOOL", b"\x00\x02", "bytes other than 0 and 1"),
        ("BYTES", [1, 2], "BYTES and has other elements than strings"),
        ("BYTES", ["a"], "1 elements but its shape has 2"),
        ("BYTES", b"\x01\x00\x00\x00a\x05\x00\x00\x00b", "ends within an element"),
        ("BYTES", b"\x01\x00\x00", "ends within an element"),
        ("BYTES", b"\x01\x00\x00\x00\xff\x00\x00\x00\x00", "not UTF-8"),
    ],
)
def test_values_outside_of_a_type_are_told(datatype: str, data: Any, sentence: str) -> None:
    with pytest.raises(RequestError, match=f"'x'.*{sentence}"):
        decode([Tensor("x", datatype, [2], data)], signature(spec(datatype, "n")))


def test_shapes_without_elements_may_be_too_large_all_the_same() -> None:
    model = signature(spec("FP32", "a", "b"))
    with pytest.raises(RequestError, match="input 'x' has dims that are too large"):
        decode([Tensor("x", "FP32", [0, 2**63], [])], model)


def test_lists_may_be_nested_as_deep_as_json_allows() -> None:
    deep: Any = ["a", "b"]
    for _ in range(2000):
        deep = [deep]
    (got,) = decode([Tensor("x", "BYTES", [2], deep)], signature(spec("BYTES", "n"))).values()
    assert got.tolist() == ["a", "b"]
    with pytest.raises(RequestError, match="the data of input 'x' is not a tensor"):
        decode([Tensor("x", "FP32", [2], deep)], signature(spec("FP32", "n")))


def test_missing_and_repeated_inputs_are_named() -> None:
    model = signature(spec("FP32", "n", name="a"), spec("FP32", "n", name="b"))
    one = Tensor("a", "FP32", [1], [1.0])
    with pytest.raises(RequestError, match="'b' is missing; the model's inputs are 'a', 'b'"):
        decode([one], model)
    with pytest.raises(RequestError, match="'a' is there twice"):
        decode([one, one], model)


def test_a_symbol_has_one_size() -> None:
    model = signature(spec("FP32", "n", name="a"), spec("FP32", "n", name="b"))
    tensors = [Tensor("a", "FP32", [1], [1.0]), Tensor("b", "FP32", [2], [1.0, 2.0])]
    with pytest.raises(RequestError, match="'n' is 2 in input 'b' and 1 in 'a'"):
        decode(tensors, model)


def test_outputs_are_all_or_those_asked_for() -> None:
    model = signature()
    assert selected(None, model) == ("y", "z")
    assert selected(["z"], model) == ("z",)
    with pytest.raises(RequestError, match="no output 'x'; its outputs are 'y', 'z'"):
        selected(["x"], model)
    with pytest.raises(RequestError, match="'z' is asked for twice"):
        selected(["z", "z"], model)


def test_json_cannot_say_what_is_not_finite() -> None:
    with pytest.raises(RequestError, match="ask for binary data"):
        elements(np.array([1.0, np.nan]))
