from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.model_io import wire
from onnxfold.model_io.tensor_places import slots
from tests.model_io.files import (
    contents,
    lazily,
    linear,
    refer,
    rich_model,
    run,
    save,
    typed_weights,
    value,
    weight,
    written,
)

FORMS: list[tuple[str, ...]] = [(), ("in.data",), ("in.0", "in.1")]


@pytest.mark.parametrize("data", FORMS, ids=["embedded", "external", "shards"])
@pytest.mark.parametrize("external", [None, False, True])
def test_every_tensor_survives_in_every_form(
    tmp_path: Path, data: tuple[str, ...], external: bool | None
) -> None:
    proto = linear(*typed_weights(), weight("large", 200, 200))
    source = save(proto, tmp_path / "in.onnx", *data)
    result = written(model_io.load(source), tmp_path / "out.onnx", external_data=external)
    assert contents(result.model) == contents(source)
    wanted = bool(data) if external is None else external
    assert (result.data is not None) == wanted
    assert len(result.shards) == (max(1, len(data)) if wanted else 0)
    assert result.nbytes == sum(path.stat().st_size for path in (result.model, *result.shards))
    onnx.checker.check_model(result.model)


@pytest.mark.parametrize("data", FORMS, ids=["embedded", "external", "shards"])
@pytest.mark.parametrize("external", [False, True])
def test_the_model_computes_the_same_before_and_after_it_is_published(
    tmp_path: Path, data: tuple[str, ...], external: bool
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", *data)
    expected = run(source)
    with model_io.stage(
        model_io.load(source), tmp_path / "out.onnx", external_data=external
    ) as staged:
        np.testing.assert_array_equal(run(staged.path), expected)
        assert model_io.load(staged.path).graph.name == "main"
        result = staged.commit()
    np.testing.assert_array_equal(run(result.model), expected)


@pytest.mark.parametrize("external", [False, True])
def test_texts_and_structure_are_kept_on_all_levels(tmp_path: Path, external: bool) -> None:
    proto = rich_model()
    source = save(proto, tmp_path / "in.onnx")
    result = written(model_io.load(source), tmp_path / "out.onnx", external_data=external)
    after = onnx.load(result.model)
    # onnx-ir sorts metadata and writes the type of every initializer, and onnx writes where data
    # was; no other difference is allowed.
    for model in (proto, after):
        entries = sorted(model.metadata_props, key=lambda entry: entry.key)
        model.ClearField("metadata_props")
        model.metadata_props.extend(entries)
        for graph in (model.graph, *(b.g for b in model.graph.node[4].attribute)):
            names = {tensor.name for tensor in graph.initializer}
            kept = [info for info in graph.value_info if info.name not in names]
            graph.ClearField("value_info")
            graph.value_info.extend(kept)
            for tensor in graph.initializer:
                tensor.ClearField("data_location")
    assert after == proto


def test_an_external_model_keeps_its_bytes(tmp_path: Path) -> None:
    proto = linear(*(weight(f"w{i}", 50, 7) for i in range(20)))
    source = save(proto, tmp_path / "in.onnx", "in.data")
    result = written(model_io.load(source), tmp_path / "out.onnx", threshold_bytes=0)
    assert result.data is not None
    assert result.data.read_bytes() == (tmp_path / "in.data").read_bytes()


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    for external in (False, True):
        outputs = []
        for name in ("a", "b"):
            (tmp_path / f"{name}{external}").mkdir()
            path = tmp_path / f"{name}{external}" / "out.onnx"
            result = written(model_io.load(source), path, external_data=external)
            files = [result.model, *([result.data] if result.data else [])]
            outputs.append([file.read_bytes() for file in files])
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) == 1 + external


def test_small_initializers_stay_embedded(tmp_path: Path) -> None:
    proto = linear(weight("below", 255), weight("at", 256))
    source = save(proto, tmp_path / "in.onnx", "in.data")
    for threshold, embedded in ((1020, set()), (1024, {"below"}), (1028, {"below", "at"})):
        path = tmp_path / f"{threshold}.onnx"
        result = written(model_io.load(source), path, threshold_bytes=threshold)
        stored = onnx.load(result.model, load_external_data=False).graph.initializer
        assert {t.name for t in stored if t.HasField("raw_data")} == embedded
        assert (result.data is None) == (embedded == {"below", "at"})


def test_tensors_that_share_bytes_share_them_afterwards(tmp_path: Path) -> None:
    proto = linear(weight("A", 300), weight("B", 300))
    source = save(proto, tmp_path / "in.onnx", "in.data", place=lambda *_: ("in.data", 0))
    model = model_io.load(source)
    edited = ir.tensor(np.ones(500, np.float32))
    for name in ("C", "D"):
        model.graph.register_initializer(ir.Value(name=name, const_value=edited))
    result = written(model, tmp_path / "out.onnx")
    assert result.data is not None
    assert result.data.stat().st_size == 1200 + 2000
    read = contents(result.model)
    assert read["A"] == read["B"] == contents(source)["A"]
    assert read["C"] == read["D"] == edited.tobytes()


def test_offsets_are_multiples_of_the_element_size(tmp_path: Path) -> None:
    odd = numpy_helper.from_array(np.ones(1025, np.int8), "odd")
    proto = linear(odd, weight("f", 300), odd, weight("g", 300))
    proto.graph.initializer[2].name = "odd2"
    source = save(proto, tmp_path / "in.onnx")
    result = written(model_io.load(source), tmp_path / "out.onnx", external_data=True)
    stored = onnx.load(result.model, load_external_data=False).graph.initializer
    offsets = [int(e.value) for t in stored for e in t.external_data if e.key == "offset"]
    assert offsets == [0, 1028, 2228, 3256]
    assert contents(result.model) == contents(source)


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    model = model_io.load(source)
    shared = ir.tensor(np.ones(400, np.float32), name="its own name")
    for name in ("S", "T"):
        model.graph.register_initializer(ir.Value(name=name, const_value=shared))
    constant = next(node for node in model.graph if node.op_type == "Constant")
    attributes = dict(constant.attributes)
    before = [(slot.tensor, slot.owner) for slot in slots(model)]
    for external in (False, True):
        written(model, tmp_path / "out.onnx", external_data=external)
        model_io.materialise(model)
        after = [(slot.tensor, slot.owner) for slot in slots(model)]
        assert all(a[0] is b[0] and a[1] is b[1] for a, b in zip(after, before, strict=True))
        assert dict(constant.attributes) == attributes
        assert shared.name == "its own name"
    np.testing.assert_array_equal(shared.numpy(), 1)
    assert before[0][0].tobytes() == weight("W1", 64, 64).raw_data


def test_external_data_in_attributes_and_branches_is_carried_along(tmp_path: Path) -> None:
    proto = rich_model()
    branches = {branch.name: branch.g for branch in proto.graph.node[4].attribute}
    inner = branches["then_branch"].initializer[0]
    constant = proto.functions[0].node[0].attribute[0].t
    raw = inner.raw_data + constant.raw_data
    (tmp_path / "in.data").write_bytes(raw)
    refer(inner, "in.data", 0, len(raw) - 4)
    refer(constant, "in.data", len(raw) - 4, 4)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    expected = run(save(rich_model(), tmp_path / "plain.onnx"))
    for external in (False, True):
        model = model_io.load(tmp_path / "in.onnx")
        result = written(model, tmp_path / f"{external}.onnx", external_data=external)
        np.testing.assert_array_equal(run(result.model), expected)
        materialised = model_io.materialise(model)
        assert materialised.functions[0].node[0].attribute[0].t.raw_data == raw[-4:]


def test_a_list_of_tensors_is_carried_along(tmp_path: Path) -> None:
    proto = linear(weight("W", 4))
    proto.opset_import.add(domain="custom", version=1)
    node = proto.graph.node.add(op_type="Many", domain="custom", output=["out"])
    many = node.attribute.add(name="many", type=onnx.AttributeProto.TENSORS)
    many.tensors.extend([weight("p", 300), weight("q", 300), weight("r", 300)])
    raw = many.tensors[1].raw_data
    (tmp_path / "in.data").write_bytes(raw * 2)
    refer(many.tensors[1], "in.data", 0, 1200)
    refer(many.tensors[2], "in.data", 1200, 1200)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    model = model_io.load(tmp_path / "in.onnx")
    written(model, tmp_path / "out.onnx")
    again = model_io.materialise(model_io.load(tmp_path / "out.onnx"))
    stored = again.graph.node[1].attribute[0].tensors
    assert [t.raw_data for t in stored] == [weight("p", 300).raw_data, raw, raw]


def test_tensors_of_any_origin_are_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((600, 300), dtype=np.float32)
    nibbles = rng.integers(-8, 8, (7, 401)).astype(ml_dtypes.int4)
    model = model_io.load(save(rich_model(), tmp_path / "in.onnx", "in.data"))
    (tmp_path / "raw.bin").write_bytes(b"head" + wide.tobytes())
    arrays = {
        "transposed": ir.tensor(wide.T),
        "half": ir.tensor(wide.astype(ml_dtypes.bfloat16)),
        "int4": ir.tensor(nibbles),
        "packed": ir.PackedTensor(
            np.frombuffer(ir.tensor(nibbles).tobytes(), np.uint8), ir.DataType.INT4, shape=[7, 401]
        ),
        "lazy": lazily(ir.tensor(wide), lambda W: W[::-1]),
        "foreign": ir.ExternalTensor(
            "raw.bin", 4, None, ir.DataType.FLOAT, shape=ir.Shape([600, 300]), name="foreign",
            base_dir=tmp_path,
        ),
        "scalar": ir.tensor(np.float32(2)),
        "empty": ir.tensor(np.empty((0, 3), np.float32)),
    }  # fmt: skip
    for name, tensor in arrays.items():
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    flipped = ir.tensor(nibbles).tobytes()
    expected = {
        "transposed": wide.T.tobytes(),
        "half": wide.astype(ml_dtypes.bfloat16).tobytes(),
        "int4": flipped,
        "packed": flipped,
        "lazy": wide[::-1].tobytes(),
        "foreign": wide.tobytes(),
        "scalar": np.float32(2).tobytes(),
        "empty": b"",
    }
    for external in (False, True):
        result = written(model, tmp_path / "out.onnx", external_data=external, threshold_bytes=0)
        read = contents(result.model)
        assert {name: read[name] for name in expected} == expected
    stored = {t.name: t for t in model_io.materialise(model).graph.initializer}
    assert {name: stored[name].raw_data for name in ("lazy", "foreign", "int4")} == {
        name: expected[name] for name in ("lazy", "foreign", "int4")
    }


def test_the_form_of_the_input_is_remembered_through_edits_and_clones(tmp_path: Path) -> None:
    source = save(linear(weight("W", 400)), tmp_path / "in.onnx", "in.data")
    for clone in (False, True):
        model = model_io.load(source).clone() if clone else model_io.load(source)
        model.graph.initializers["W"].const_value = ir.tensor(np.ones(400, np.float32))
        origin = source if clone else None
        with model_io.stage(model, tmp_path / f"{clone}.onnx", source=origin) as staged:
            assert staged.commit().data is not None
    embedded = save(rich_model(200), tmp_path / "one.onnx")
    assert written(model_io.load(embedded).clone(), tmp_path / "o.onnx").data is None


def test_what_a_protobuf_cannot_hold_becomes_external(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx")
    monkeypatch.setattr(wire, "EMBEDDED_BYTES", 30000)
    assert written(model_io.load(source), tmp_path / "out.onnx").data is not None
    first, second = (model_io.load(source) for _ in range(2))
    monkeypatch.setattr(wire, "LIMIT_BYTES", 30000)
    with pytest.raises(ModelError, match="save it with external data"):
        written(first, tmp_path / "out.onnx", external_data=False)
    with pytest.raises(ModelError, match="more than the 2 GiB of a protobuf: write it to a file"):
        model_io.materialise(second)


@pytest.mark.parametrize("data", FORMS, ids=["embedded", "external", "shards"])
def test_a_materialised_model_needs_no_file(tmp_path: Path, data: tuple[str, ...]) -> None:
    proto = linear(*typed_weights(), weight("large", 200, 200))
    proto.graph.value_info.append(value("large", 200, 200))
    source = save(proto, tmp_path / "in.onnx", *data)
    expected = contents(source)
    model = model_io.materialise(model_io.load(source))
    source.unlink()
    again = save(model, tmp_path / "again.onnx")
    assert contents(again) == expected


def test_what_onnx_cannot_hold_is_refused_in_one_line(tmp_path: Path) -> None:
    model = model_io.load(save(rich_model(), tmp_path / "in.onnx"))
    node = model.graph.node(0)
    node.attributes["s"] = ir.Attr("s", ir.AttributeType.SPARSE_TENSOR, None)
    node.attributes["s"] = ir.Attr("s", ir.AttributeType.SPARSE_TENSOR, object())
    with pytest.raises(ModelError, match="cannot be written as ONNX: Sparse tensors"):
        model_io.materialise(model)


@pytest.mark.slow
def test_a_model_of_more_than_2_gib_is_written(tmp_path: Path) -> None:
    size = 1_100_000_000
    proto = linear(weight("last", 400))
    raw = proto.graph.initializer[0].raw_data
    with open(tmp_path / "in.data", "wb") as file:
        file.truncate(2 * size)
        file.seek(2 * size)
        file.write(raw)
    refer(proto.graph.initializer[0], "in.data", 2 * size, 1600)
    for index in range(2):
        proto.graph.initializer.append(
            onnx.TensorProto(name=f"huge{index}", data_type=onnx.TensorProto.UINT8, dims=[size])
        )
        refer(proto.graph.initializer[-1], "in.data", index * size, size)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    model = model_io.load(tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="more than the 2 GiB"):
        model_io.stage(model, tmp_path / "out.onnx", external_data=False)
    result = written(model, tmp_path / "out.onnx")
    assert result.nbytes > 2 * size
    again = model_io.load(result.model).graph.initializers["last"].const_value
    assert again is not None
    assert again.tobytes() == raw
