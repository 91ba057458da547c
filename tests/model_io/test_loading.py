from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.model_io import FileTensor
from onnxfold.model_io.load import references
from onnxfold.model_io.requirements import check_model
from tests.model_io.files import (
    OPSETS,
    canonical,
    linear,
    refer,
    rich_model,
    save,
    typed_weights,
    value,
    weight,
)


def weights_of(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    found = model.graph.initializers.items()
    return {name: v.const_value for name, v in found if v.const_value is not None}


def as_bytes(tensor: ir.TensorProtocol) -> bytes:
    if isinstance(tensor, ir.StringTensor):
        return b"\0".join(tensor.string_data())
    return tensor.tobytes()


@pytest.mark.parametrize("data", [(), ("w.data",), ("w.0", "w.1")], ids=["one", "data", "shards"])
def test_every_weight_of_every_type_is_read_as_it_was_written(
    tmp_path: Path, data: tuple[str, ...]
) -> None:
    proto = linear(*typed_weights(), weight("large", 200, 200))
    model = model_io.load(save(proto, tmp_path / "m.onnx", *data))
    tensors = weights_of(model)
    assert len(tensors) == len(proto.graph.initializer)
    for expected in proto.graph.initializer:
        tensor = tensors[expected.name]
        assert as_bytes(tensor) == canonical(expected)
        if expected.data_type != TensorProto.STRING:
            reference = ir.serde.deserialize_tensor(expected).numpy()
            array = tensor.numpy()
            assert array.dtype == reference.dtype
            assert array.shape == reference.shape
            assert array.tobytes() == reference.tobytes()


def test_large_embedded_weights_stay_in_the_model_file(tmp_path: Path) -> None:
    proto = rich_model(width=200)
    tensors = weights_of(model_io.load(save(proto, tmp_path / "m.onnx")))
    assert isinstance(tensors["W1"], FileTensor)
    assert tensors["W1"].in_model
    assert tensors["W1"].name == "W1"
    assert tensors["W1"].doc_string == "a weight"
    assert tensors["W1"].metadata_props == {"origin": "training"}
    assert not isinstance(tensors["b"], FileTensor)
    assert tensors["W1"].tobytes() == canonical(proto.graph.initializer[0])


def test_arrays_of_file_tensors_cannot_be_written(tmp_path: Path) -> None:
    proto = linear(weight("small", 8), weight("large", 200, 200))
    model = model_io.load(save(proto, tmp_path / "m.onnx", "m.data"))
    for tensor in weights_of(model).values():
        assert isinstance(tensor, FileTensor)
        assert not tensor.numpy().flags.writeable
        np.testing.assert_array_equal(np.asarray(tensor), tensor.numpy())
        assert np.array(tensor, dtype=np.float64, copy=True).flags.writeable


@pytest.mark.parametrize("data", [(), ("w.data",)], ids=["one", "data"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_rows_are_those_of_the_array(tmp_path: Path, data: tuple[str, ...], kind: int) -> None:
    shape = (300, 7, 40)
    array = np.random.default_rng(0).standard_normal(shape)
    tensor = helper.make_tensor("W", kind, shape, array.ravel())
    raw = numpy_helper.from_array(numpy_helper.to_array(tensor), "W")
    loaded = weights_of(model_io.load(save(linear(raw), tmp_path / "m.onnx", *data)))["W"]
    assert isinstance(loaded, FileTensor)
    rows = loaded.read_rows((0, 7, 299))
    assert rows.dtype == loaded.numpy().dtype
    assert np.array_equal(rows, loaded.numpy()[[0, 7, 299]])
    os.utime(loaded.path, ns=(1, 1))
    with pytest.raises(ModelError, match="has changed since it was loaded"):
        loaded.read_rows((0,))


def test_weights_are_not_read_after_their_file_has_changed(tmp_path: Path) -> None:
    proto = linear(weight("W", 200, 200))
    for name, data in (("a.onnx", ()), ("b.onnx", ("b.data",))):
        path = save(proto, tmp_path / name, *data)
        tensor = weights_of(model_io.load(path))["W"]
        target = tmp_path / data[0] if data else path
        copy = tmp_path / "copy"
        copy.write_bytes(target.read_bytes())
        copy.replace(target)
        with pytest.raises(ModelError, match="has changed since it was loaded"):
            tensor.numpy()
        target.unlink()
        with pytest.raises(ModelError, match="No such file"):
            tensor.tobytes()


def test_a_weight_mapped_before_its_file_is_replaced_keeps_its_values(tmp_path: Path) -> None:
    proto = linear(weight("W", 200, 200))
    path = save(proto, tmp_path / "m.onnx", "m.data")
    array = weights_of(model_io.load(path))["W"].numpy()
    (tmp_path / "new").write_bytes(bytes(160000))
    (tmp_path / "new").replace(tmp_path / "m.data")
    assert array.tobytes() == canonical(proto.graph.initializer[0])


def test_two_tensors_may_share_their_bytes_or_lie_in_each_other(tmp_path: Path) -> None:
    proto = linear(weight("whole", 100), weight("tied", 100), weight("part", 10))
    (tmp_path / "m.data").write_bytes(proto.graph.initializer[0].raw_data)
    for tensor, place in zip(proto.graph.initializer, ((0, 400), (0, 400), (80, 40)), strict=True):
        refer(tensor, "m.data", *place)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    tensors = weights_of(model_io.load(tmp_path / "m.onnx"))
    assert tensors["tied"].tobytes() == tensors["whole"].tobytes()
    assert tensors["part"].tobytes() == tensors["whole"].tobytes()[80:120]


def test_an_offset_and_a_length_may_be_missing(tmp_path: Path) -> None:
    proto = linear(weight("W", 100))
    raw = proto.graph.initializer[0].raw_data
    (tmp_path / "m.data").write_bytes(raw + b"more")
    refer(proto.graph.initializer[0], "m.data", None, None)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert weights_of(model_io.load(tmp_path / "m.onnx"))["W"].tobytes() == raw


def test_data_of_more_than_2_gib_is_mapped(tmp_path: Path) -> None:
    size = 3 * 2**30
    proto = linear(weight("last", 4))
    proto.graph.initializer.append(TensorProto(name="huge", data_type=1, dims=[size // 4]))
    with open(tmp_path / "m.data", "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(proto.graph.initializer[0].raw_data)
    expected = proto.graph.initializer[0].raw_data
    refer(proto.graph.initializer[0], "m.data", size, 16)
    refer(proto.graph.initializer[1], "m.data", 0, size)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    tensors = weights_of(model_io.load(tmp_path / "m.onnx"))
    assert tensors["last"].tobytes() == expected
    assert tensors["huge"].nbytes == size
    assert not tensors["huge"].numpy()[:: 2**26].any()


def test_a_model_is_found_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = save(rich_model(), tmp_path / "real" / "m.onnx", "m.data")
    (tmp_path / "link.onnx").symlink_to(path)
    assert len(weights_of(model_io.load(tmp_path / "link.onnx"))) == 3


def test_a_cache_of_blobs_is_read_through_its_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save(rich_model(), blobs / "hash1", "m.data")
    (blobs / "m.data").rename(blobs / "hash2")
    (snapshot / "model.onnx").symlink_to("../../../blobs/hash1")
    (snapshot / "m.data").symlink_to("../../../blobs/hash2")
    tensors = weights_of(model_io.load(snapshot / "model.onnx"))
    assert tensors["W1"].tobytes() == weight("W1", 64, 64).raw_data


def test_files_with_several_hard_links_are_read(tmp_path: Path) -> None:
    path = save(rich_model(200), tmp_path / "m.onnx", "m.data")
    single = save(rich_model(200), tmp_path / "single.onnx")
    for file in (path, single, tmp_path / "m.data"):
        os.link(file, tmp_path / f"{file.name}.other")
    for model in (path, single):
        assert weights_of(model_io.load(model))["W1"].numpy().shape == (200, 200)


def test_references_name_the_data_files_of_a_model(tmp_path: Path) -> None:
    path = save(rich_model(), tmp_path / "m.onnx", "w.0", "w.1")
    assert references(path) == {tmp_path / "w.0", tmp_path / "w.1"}
    assert references(save(rich_model(200), tmp_path / "one.onnx")) == frozenset()


def test_the_other_name_of_the_default_domain_is_normalised(tmp_path: Path) -> None:
    proto = linear(weight("W", 4))
    proto.opset_import[0].domain = "ai.onnx"
    proto.graph.node[0].domain = "ai.onnx"
    model = model_io.load(save(proto, tmp_path / "m.onnx"))
    assert dict(model.opset_imports) == {"": 17}
    assert model.graph.node(0).domain == ""


def test_a_protobuf_is_taken_without_being_changed(tmp_path: Path) -> None:
    proto = rich_model()
    before = proto.SerializeToString()
    assert weights_of(model_io.from_proto(proto))["W1"].tobytes() == weight("W1", 64, 64).raw_data
    path = save(proto, tmp_path / "m.onnx", "m.data")
    external = onnx.load(path, load_external_data=False)
    tensors = weights_of(model_io.from_proto(external, tmp_path))
    assert tensors["W1"].tobytes() == weight("W1", 64, 64).raw_data
    with pytest.raises(ModelError, match=r"tensor 'W1' has its data in 'm.data', and it was not l"):
        model_io.from_proto(external)
    assert proto.SerializeToString() == before


def sparse(proto: onnx.ModelProto) -> None:
    entry = proto.graph.sparse_initializer.add()
    entry.values.CopyFrom(weight("S", 1))


def sparse_attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.add(name="s", type=AttributeProto.SPARSE_TENSOR)


def outer_output(proto: onnx.ModelProto) -> None:
    branch = helper.make_graph([], "branch", [], [value("x", "n")])
    node = helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch)
    proto.graph.node.append(node)


def external_text(tensor: onnx.TensorProto) -> None:
    refer(tensor, "d", 0, 4)
    tensor.data_type = TensorProto.STRING


def first_weight(change: Callable[[onnx.TensorProto], None]) -> Callable[[onnx.ModelProto], None]:
    return lambda proto: change(proto.graph.initializer[0])


UNSUPPORTED: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "no graph": (lambda m: m.ClearField("graph"), "not an ONNX model"),
    "no opset": (lambda m: m.ClearField("opset_import"), "imports no operator set"),
    "new opset": (lambda m: setattr(m.opset_import[0], "version", 999), "operator set 999"),
    "old opset": (lambda m: setattr(m.opset_import[0], "version", 6), "operator set 6 is not"),
    "new IR": (lambda m: setattr(m, "ir_version", 999), "IR version 999"),
    "old IR": (lambda m: setattr(m, "ir_version", 2), "IR version 2 is not supported"),
    "training": (lambda m: m.training_info.add(), "training graphs"),
    "sparse initializer": (sparse, "initializer 'S' is sparse"),
    "sparse attribute": (sparse_attribute, "attribute 's' of node 0 is a sparse tensor"),
    "untyped attribute": (lambda m: m.graph.node[0].attribute.add(name="a"), "'a' .* has no type"),
    "no operator": (lambda m: m.graph.node[0].ClearField("op_type"), "node 0 has no operator"),
    "domain": (lambda m: setattr(m.graph.node[0], "domain", "x.y"), "'x.y', which is not imported"),
    "unknown input": (lambda m: m.graph.node[0].input.append("u"), "reads 'u', which nothing"),
    "unknown output": (lambda m: m.graph.output.append(value("u")), "output 'u' of graph 'linear'"),
    "output of an outer graph": (outer_output, "output 'x' of graph 'branch'"),
    "defined twice": (lambda m: m.graph.initializer.append(weight("W", 2)), "'W' is defined twice"),
    "produced twice": (lambda m: m.graph.node.append(m.graph.node[0]), "redeclared"),
    "no name": (first_weight(lambda t: t.ClearField("name")), "an initializer has no name"),
    "no type": (first_weight(lambda t: setattr(t, "data_type", 0)), "'W' has no type"),
    "unknown type": (first_weight(lambda t: setattr(t, "data_type", 77)), "the unknown type 77"),
    "negative": (first_weight(lambda t: t.dims.insert(0, -1)), "negative shape"),
    "too many bytes": (first_weight(lambda t: t.dims.__setitem__(0, 3)), "needs 12 bytes and has"),
    "huge": (first_weight(lambda t: t.dims.__setitem__(0, 2**40)), "bytes and has 16"),
    "impossible": (first_weight(lambda t: t.dims.extend([2**31] * 3)), "impossible shape"),
    "many dimensions": (first_weight(lambda t: t.dims.extend([1] * 70)), "impossible shape"),
    "no data": (first_weight(lambda t: t.ClearField("raw_data")), "needs 4 values and has 0"),
    "raw text": (first_weight(lambda t: setattr(t, "data_type", 8)), "stores strings as raw data"),
    "external text": (first_weight(external_text), "cannot be external"),
    "segments": (first_weight(lambda t: t.segment.SetInParent()), "stored in segments"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_model_is_refused_with_its_fault(tmp_path: Path, name: str) -> None:
    change, message = UNSUPPORTED[name]
    proto = linear(weight("W", 4))
    model_io.load(save(proto, tmp_path / "good.onnx"))
    change(proto)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=message) as caught:
        model_io.load(tmp_path / "m.onnx")
    assert str(caught.value).startswith(f"{tmp_path}/m.onnx: ")
    assert "\n" not in str(caught.value)


def test_the_oldest_operator_set_is_taken(tmp_path: Path) -> None:
    proto = linear(weight("W", 4))
    proto.opset_import[0].version = 7
    assert model_io.load(save(proto, tmp_path / "m.onnx")).opset_imports[""] == 7


@pytest.mark.parametrize("levels", [25, 26])
def test_bodies_lie_in_each_other_up_to_a_depth(levels: int) -> None:
    proto = linear(weight("W", 4))
    graph = proto.graph
    for level in range(levels):
        node = graph.node.add(op_type="If", input=["W"], output=[f"r{level}"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.name = f"level {level}"
    if levels == 25:
        check_model(proto, "m")
    else:
        with pytest.raises(ModelError, match="graph 'level 25' lies in more than 25 others"):
            check_model(proto, "m")


def test_nodes_that_stand_before_what_they_read_are_sorted(tmp_path: Path) -> None:
    proto = linear(weight("W", 4))
    proto.graph.node.insert(0, onnx.helper.make_node("Clip", ["later", "", "W"], ["clipped"]))
    proto.graph.node.append(onnx.helper.make_node("Neg", ["W"], ["later"]))
    model = model_io.load(save(proto, tmp_path / "m.onnx"))
    order = [node.op_type for node in model.graph]
    assert order.index("Neg") < order.index("Clip")


def test_a_fault_is_found_inside_attributes_and_functions(tmp_path: Path) -> None:
    proto = rich_model()
    proto.functions[0].node[0].attribute[0].t.dims.append(5)
    with pytest.raises(ModelError, match="attribute 'value' of node 0 of shape"):
        model_io.load(save(proto, tmp_path / "m.onnx"))
    proto = rich_model()
    branches = {branch.name: branch.g for branch in proto.graph.node[4].attribute}
    branches["then_branch"].initializer[0].dims.append(5)
    with pytest.raises(ModelError, match="initializer 'c' of shape"):
        model_io.load(save(proto, tmp_path / "m.onnx"))


@pytest.mark.parametrize("within", ["", "sequence_type", "optional_type"])
def test_a_value_of_a_map_type_is_refused_with_the_remedy(tmp_path: Path, within: str) -> None:
    """As classifiers of scikit-learn end in, exported with ZipMap."""
    proto = linear(numpy_helper.from_array(np.zeros(1, np.float32), "W"))
    kind = proto.graph.output[0].type
    held = getattr(kind, within).elem_type if within else kind
    held.map_type.key_type = TensorProto.STRING
    proto.opset_import.extend(OPSETS[1:])
    with pytest.raises(ModelError, match=r"value '\w+' is a map, .*zipmap"):
        model_io.load(save(proto, tmp_path / "m.onnx"))


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
def test_the_system_is_asked_for_every_file_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, int] = {}

    def note(descriptor: int, start: int, length: int, advice: int) -> None:
        assert (start, advice) == (0, os.POSIX_FADV_WILLNEED)
        asked[os.readlink(f"/proc/self/fd/{descriptor}")] = length

    proto = linear(weight("first", 200, 200), weight("second", 200, 200))
    model = model_io.load(save(proto, tmp_path / "m.onnx", "w.0", "w.1"))
    (tmp_path / "w.1").unlink()  # told where it is read, not here
    monkeypatch.setattr(os, "posix_fadvise", note)
    model_io.read_ahead(model)
    assert asked.keys() == {str(tmp_path / "m.onnx"), str(tmp_path / "w.0")}
    assert all(length > 0 for length in asked.values())


def test_an_input_that_is_an_output_too_keeps_its_own_type_and_shape(tmp_path: Path) -> None:
    proto = linear(weight("W", 2, 2))
    proto.graph.output.add(name=proto.graph.input[0].name)
    model = model_io.load(save(proto, tmp_path / "m.onnx"))
    assert ir.to_proto(model).graph.input[0] == proto.graph.input[0]
