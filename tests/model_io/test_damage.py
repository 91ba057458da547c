"""Damaged, hostile and mistaken input: one sentence in a ModelError, never another exception."""

from __future__ import annotations

import io
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.model_io import FileTensor
from onnxfold.model_io.tensor_places import slots
from tests.builders import chain_model
from tests.model_io.files import linear, refer, rich_model, save, typed_weights, weight


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        model_io.load(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    return message


def external(folder: Path, location: str, offset: object = 0, length: object = 400) -> Path:
    """A model with one weight of 400 bytes at some place."""
    proto = linear(weight("W", 100))
    refer(proto.graph.initializer[0], location, offset, length)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.onnx") == f"{tmp_path}/no.onnx: No such file or directory"
    (tmp_path / "dangling.onnx").symlink_to("nothing")
    assert "No such file" in refused(tmp_path / "dangling.onnx")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "it is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refused(tmp_path / "pipe.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    assert "symbolic links" in refused(tmp_path / "loop.onnx")


def _archive(name: str) -> bytes:
    """Return a zip archive with one file, as PyTorch writes them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x18\x00\x00\x00ORTM" + bytes(90), "it is in ORT format"),
        (b"PK\x03\x04" + bytes(90), "zip archive"),
        (_archive("model/constants.pkl"), "TorchScript model; export it with torch.onnx.export"),
        (_archive("model/data.pkl"), "PyTorch checkpoint"),
        (_archive("readme.txt"), "give the .onnx file in it"),
        (b"<!DOCTYPE html>\n<html>", "it is an HTML or XML page"),
        (b"\n <html>", "it is an HTML or XML page"),
        (onnx.printer.to_text(chain_model()).encode(), "it is ONNX as text"),
        (str(chain_model()).encode(), "it is protobuf as text"),
        (b'{"ir_version": 8}', "it is JSON"),
        (b"\x1f\x8b\x08" + bytes(90), "compressed with gzip"),
        ((2).to_bytes(8, "little") + b'{"w":1}', "it is a safetensors file"),
        (b"hello", "not an ONNX model"),
        (bytes(100), "no"),
        (b"\x08\x07", "no graph"),
        (b"\xff" * 100, "not an ONNX model"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not an ONNX model, or truncated"),
    ],
    ids=[
        "empty",
        "lfs",
        "ort",
        "zip",
        "torchscript",
        "checkpoint",
        "archive",
        "html",
        "page",
        "onnxtxt",
        "textproto",
        "json",
        "gzip",
        "safetensors",
        "text",
        "zeros",
        "no graph",
        "ones",
        "long field",
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert message in refused(tmp_path / "m.onnx")


def test_a_file_beyond_the_limit_of_protobuf_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(2**31)
    assert "larger than 2 GiB" in refused(tmp_path / "m.onnx")


def test_an_unreadable_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(linear(weight("W", 4)), tmp_path / "m.onnx")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, whom no mode of a file stops.
    monkeypatch.setattr("builtins.open", denied)
    message = refused(path)
    monkeypatch.undo()
    assert message == f"{path}: Permission denied"


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/etc/hostname", "names the absolute path"),
        ("C:\\weights.bin", "names the absolute path"),
        ("../m.data", "climbs out of the model's folder"),
        ("sub/../../m.data", "climbs out of the model's folder"),
        ("sub\\..\\..\\m.data", "climbs out of the model's folder"),
        ("link.data", "a symbolic link that leads out"),
        ("linked/m.data", "a symbolic link that leads out"),
        ("loop", "oo many"),
        ("dangling", "a link to '{folder}/gone.data', which is missing"),
        ("gone.data", "'gone.data', which is missing"),
        ("sub", "which is not a regular file"),
        ("pipe", "which is not a regular file"),
        ("", "names no external data file"),
        ("nul\0", "names no external data file"),
        ("x" * 5000, "which is missing"),
        ("two\nlines", "which is missing"),
    ],
)
def test_a_reference_out_of_the_folder_or_to_nothing_is_refused(
    tmp_path: Path, location: str, message: str
) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "m.data").write_bytes(bytes(400))
    (folder / "link.data").symlink_to("../m.data")
    (folder / "linked").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("gone.data")
    os.mkfifo(folder / "pipe")
    text = refused(external(folder, location))
    assert message.format(folder=folder) in text
    assert "tensor 'W'" in text


def test_links_and_folders_inside_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.data").write_bytes(bytes(400))
    (tmp_path / "link.data").symlink_to("sub/m.data")
    for location in ("sub/m.data", "link.data", "./sub/m.data"):
        model = model_io.load(external(tmp_path, location))
        (slot,) = slots(model)
        assert isinstance(slot.tensor, FileTensor)
        assert slot.tensor.path == str(tmp_path / "sub" / "m.data")


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [
        (1, 400, "bytes 1 to 401 of 'm.data', which has 400: it is truncated"),
        (400, None, "which has 400"),
        (2**62, 400, "which has 400"),
        (0, 399, "needs 400 bytes of 'm.data' and has 399"),
        (0, 2**62, "needs 400 bytes"),
        (-1, 400, "has the external data offset '-1'"),
        (0, -400, "has the external data length '-400'"),
        ("0x10", 400, "has the external data offset '0x10'"),
        ("\u0663", 400, "which has 400"),
    ],
)
def test_a_range_that_the_data_does_not_have_is_refused(
    tmp_path: Path, offset: object, length: object, message: str
) -> None:
    (tmp_path / "m.data").write_bytes(bytes(400))
    model_io.load(external(tmp_path, "m.data"))
    assert message in refused(external(tmp_path, "m.data", offset, length))


def test_ranges_that_partly_overlap_are_refused(tmp_path: Path) -> None:
    proto = linear(weight("A", 100), weight("B", 100), weight("C", 100))
    (tmp_path / "m.data").write_bytes(bytes(1200))
    for tensor, offset in zip(proto.graph.initializer, (800, 0, 396), strict=True):
        refer(tensor, "m.data", offset, 400)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert "tensor 'C' overlaps tensor 'B' in 'm.data'" in refused(tmp_path / "m.onnx")


def test_a_pointer_in_place_of_the_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.data").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "run git lfs pull" in refused(external(tmp_path, "m.data"))


def test_a_name_cannot_break_the_line(tmp_path: Path) -> None:
    proto = linear(weight("two\nlines\x1b[31m" + "x" * 5000, 4))
    proto.graph.initializer[0].dims[0] = 5
    assert "two\\nlines\\x1b" in refused(save(proto, tmp_path / "m.onnx"))
    folder = tmp_path / "a\nb"
    folder.mkdir()
    assert "a\\nb/no.onnx: No such file" in refused(folder / "no.onnx")


def test_a_text_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Python reads it as bytes, which no file can be written with."""
    proto = linear(weight("weight", 4))
    proto.graph.value_info.append(helper.make_tensor_value_info("h", 1, ["batch"]))
    proto.functions.append(
        helper.make_function("f", "F", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], [])
    )
    graph, function = proto.graph, proto.functions[0]
    tensor = graph.initializer[0]
    for part in (proto, graph, graph.node[0], tensor, graph.value_info[0], function):
        part.doc_string = "doc"
        part.metadata_props.add(key="key", value="value")
    places = list(_texts(proto))
    assert len(places) > 30
    for put in places:
        before = put("MARKER")
        raw = proto.SerializeToString()
        put(before)
        (tmp_path / "m.onnx").write_bytes(raw.replace(b"MARKER", b"MARK\xffR"))
        assert "in it is not UTF-8 text" in refused(tmp_path / "m.onnx")


def _texts(part: Any) -> Iterator[Callable[[str], str]]:
    """Yield, for every text in a message, what puts another there and returns the old one."""

    def one(name: str, text: str) -> str:
        old: str = getattr(part, name)
        setattr(part, name, text)
        return old

    def several(name: str, index: int, text: str) -> str:
        old: str = getattr(part, name)[index]
        getattr(part, name)[index] = text
        return old

    for field, content in part.ListFields():
        if isinstance(content, str):
            yield partial(one, field.name)
        elif field.type == field.TYPE_STRING:
            yield from (partial(several, field.name, index) for index in range(len(content)))
        elif field.type == field.TYPE_MESSAGE:
            for inner in [content] if hasattr(content, "ListFields") else content:
                yield from _texts(inner)


def rewrite(path: Path, data: bytes) -> None:
    # ext4 flushes a file that is truncated and written again, which takes most of the time here.
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def samples() -> dict[str, onnx.ModelProto]:
    return {"rich": rich_model(8), "typed": linear(*typed_weights()), "large": rich_model(160)}


def boundaries(model: onnx.ModelProto) -> set[int]:
    """Lengths at which a prefix ends with a field after which all that is needed is there."""
    whole, ends = onnx.ModelProto(), set()
    for field in ("ir_version", "producer_name", "producer_version", "domain"):
        setattr(whole, field, getattr(model, field))
    whole.model_version, whole.doc_string = model.model_version, model.doc_string
    whole.graph.CopyFrom(model.graph)
    whole.opset_import.extend(model.opset_import)
    ends.add(whole.ByteSize())
    for entry in model.metadata_props:
        whole.metadata_props.append(entry)
        ends.add(whole.ByteSize())
    return ends


@pytest.mark.parametrize(
    ("domain", "attribute", "given", "ok"),
    [
        ("", "axis", 2**31 - 1, True),
        ("", "axis", 2**31, False),
        ("", "axis", -(2**31) - 1, False),
        ("com.microsoft", "num_heads", 2**40, False),
        ("", "kernel_shape", [1, 2**32], False),
        # As exporters write "to the end".
        ("", "ends", [2**63 - 1], True),
        ("", "end", 2**63 - 1, True),
        ("", "value_int", 2**40, True),
        ("elsewhere", "key", 2**40, True),
    ],
)
def test_an_integer_that_runtimes_keep_in_32_bits_fits_there(
    tmp_path: Path, domain: str, attribute: str, given: int | list[int], ok: bool
) -> None:
    model = linear()
    model.graph.node[0].domain = domain
    model.graph.node[0].name = "n"
    model.graph.node[0].attribute.append(onnx.helper.make_attribute(attribute, given))
    if domain:
        model.opset_import.add(domain=domain, version=1)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    if ok:
        model_io.load(path)
    else:
        assert f"attribute '{attribute}' of node 'n' (Identity) is " in refused(path)


@pytest.mark.parametrize("name", samples())
def test_a_truncated_model_is_refused_wherever_it_is_cut(tmp_path: Path, name: str) -> None:
    model = samples()[name]
    raw = model.SerializeToString()
    rng = np.random.default_rng(list(name.encode()))
    path = tmp_path / "m.onnx"
    cuts = {*range(0, min(len(raw), 600)), *range(max(0, len(raw) - 900), len(raw))}
    cuts |= set(rng.integers(len(raw), size=100).tolist())
    harmless = boundaries(model)
    for cut in sorted(cuts - harmless):
        rewrite(path, raw[:cut])
        refused(path)
    for cut in sorted(harmless):
        # What is lost here is text or functions, and nothing in the rest tells.
        rewrite(path, raw[:cut])
        model_io.load(path)


@pytest.mark.parametrize("data", [(), ("w.0", "w.1")], ids=["embedded", "shards"])
def test_mutated_bytes_are_refused_or_read(tmp_path: Path, data: tuple[str, ...]) -> None:
    rng = np.random.default_rng(2024)
    path = tmp_path / "m.onnx"
    outcomes = Counter[str]()
    for model in samples().values():
        raw = save(model, path, *data).read_bytes()
        for _ in range(200):
            rewrite(path, mutant(raw, rng))
            outcome, message = outcome_of(path)
            assert message.isprintable()
            outcomes[outcome] += 1
    assert min(outcomes["refused"], outcomes["written"]) > 50


def outcome_of(path: Path) -> tuple[str, str]:
    """A mutant that loads must also be readable, and writable or refused."""
    try:
        model = model_io.load(path)
    except ModelError as error:
        return "refused", str(error)
    for slot in slots(model):
        if slot.tensor.dtype is not ir.DataType.STRING:
            slot.tensor.numpy()
    try:
        model_io.materialise(model)
    except ModelError as error:
        return "not written", str(error)
    return "written", ""


def mutant(raw: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 6))):
        # Half of the changes hit the first bytes, which hold the structure of a large model.
        at = int(rng.integers(len(changed) if rng.random() < 0.5 else min(len(changed), 700)))
        kind, size = rng.integers(4), int(rng.integers(1, 5))
        if kind == 0:
            changed[at] = rng.integers(256)
        elif kind == 1:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del changed[at : at + size]
        else:
            changed[at:at] = rng.bytes(size)
    return bytes(changed)
