from __future__ import annotations

import io

import onnx
import pytest

from onnxfold.model_io import wire
from tests.model_io.files import linear, rich_model, typed_weights, weight


def skeleton(raw: bytes, threshold_bytes: int) -> onnx.ModelProto:
    buffer = wire.Buffer(io.BytesIO(raw), len(raw))  # type: ignore[arg-type]  # not raw, but alike
    model = onnx.ModelProto()
    model.ParseFromString(wire.skeleton(buffer, threshold_bytes))
    return model


def restored(model: onnx.ModelProto, raw: bytes) -> tuple[onnx.ModelProto, int]:
    """Put the bytes back that the references name; also how many references there were."""
    count = 0
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            places = {entry.key: entry.value for entry in tensor.external_data}
            assert places["location"] == wire.IN_MODEL
            start = int(places["offset"])
            tensor.raw_data = raw[start : start + int(places["length"])]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            count += 1
    return model, count


@pytest.mark.parametrize(("threshold", "references"), [(1, 14), (1000, 12), (10**6, 0)])
def test_references_name_exactly_the_bytes_taken_out(threshold: int, references: int) -> None:
    model = linear(*typed_weights(), weight("last", 100))
    raw = model.SerializeToString()
    assert restored(skeleton(raw, threshold), raw) == (model, references)


def test_all_but_the_weights_of_the_main_graph_is_kept() -> None:
    model = rich_model()
    raw = model.SerializeToString()
    assert restored(skeleton(raw, 1), raw) == (model, 3)


def test_a_location_written_as_embedded_is_replaced() -> None:
    model = linear(weight("W", 100))
    model.graph.initializer[0].data_location = onnx.TensorProto.DEFAULT
    raw = model.SerializeToString()
    assert restored(skeleton(raw, 100), raw)[1] == 1


def test_external_and_repeated_data_are_left_to_the_parser() -> None:
    external = linear(weight("W", 100))
    external.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    entries = linear(weight("W", 100))
    entries.graph.initializer[0].external_data.add(key="location", value="w.data")
    for model in (external, entries):
        raw = model.SerializeToString()
        assert skeleton(raw, 100) == model
    # Two raw_data fields in one tensor: protobuf takes the last.
    twice = weight("W", 100).SerializeToString()
    twice += onnx.TensorProto(raw_data=bytes(400)).SerializeToString()
    header = bytes([0x2A, len(twice) & 0x7F | 0x80, len(twice) >> 7])
    graph = onnx.GraphProto(name="g").SerializeToString() + header + twice
    raw = wire.graph_header(len(graph)) + graph
    assert skeleton(raw, 100).graph.initializer[0].raw_data == bytes(400)


def test_a_graph_in_two_parts_is_read_as_protobuf_merges_it() -> None:
    parts = [linear(weight(name, 100)).graph.SerializeToString() for name in "AB"]
    raw = b"".join(wire.graph_header(len(part)) + part for part in parts)
    model, references = restored(skeleton(raw, 100), raw)
    assert model == onnx.ModelProto.FromString(raw)
    assert references == 2


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 16383, 16384, 2**21])
def test_a_model_written_in_pieces_is_the_model(nbytes: int) -> None:
    head = onnx.TensorProto(name="W", data_type=onnx.TensorProto.UINT8, dims=[nbytes])
    data = bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)
    small = weight("small", 3)
    body = wire.initializer(head, nbytes) + data + wire.initializer(small, None)
    model = onnx.ModelProto.FromString(wire.graph_header(len(body)) + body)
    head.raw_data = data
    assert list(model.graph.initializer) == [head, small]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x3a", "cut off"),
        (b"\x3a\x05\x2a\x09", "3 bytes too late"),
        (b"\x3a\x02\x2a\x09", "9 bytes too late"),
        (b"\x0b", "no protobuf field at byte 0"),
        (b"\x09\x00", "7 bytes too late"),
        (b"\x08" + b"\xff" * 10, "too long"),
    ],
)
def test_a_malformed_field_is_refused_with_its_place(raw: bytes, message: str) -> None:
    with pytest.raises(wire.MalformedError, match=message):
        skeleton(raw, 1)


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    raw = rich_model().SerializeToString()
    buffer = wire.Buffer(io.BytesIO(raw[:5000]), len(raw))  # type: ignore[arg-type]  # as above
    with pytest.raises(wire.MalformedError, match="became shorter"):
        wire.skeleton(buffer, 1)
