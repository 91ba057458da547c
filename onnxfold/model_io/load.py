"""Read a model of any kind that the interface accepts, with every large weight left in its file."""

import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs here

from onnxfold import model_io
from onnxfold.errors import ModelError, UsageError, first_cause, show
from onnxfold.model_io import wire
from onnxfold.model_io.external import attach, model_folders, remember, resolve
from onnxfold.model_io.requirements import ALWAYS_IMPORTED, check_model
from onnxfold.model_io.tensor_places import tensor_protos

# Key of `ir.Model.meta`: whether the model, as it was read, had external data.
HAS_EXTERNAL_DATA = "onnxfold.has_external_data"

# Embedded weights of at least this size stay in the file; smaller ones are parsed.
_DETACH_BYTES = 65536

_KNOWN_STARTS = (
    (0, b"version https://git-lfs", "it is a Git LFS pointer; run git lfs pull"),
    (4, b"ORTM", "it is in ORT format; give the .onnx file that it was made from"),
    (0, b"\x1f\x8b", "it is compressed with gzip; unpack it first"),
    (0, b"<\n", "it is ONNX as text; parse it with onnx.parser and save it with onnx.save"),
    (0, b"ir_version:", "it is protobuf as text; load it with onnx.load and save it as .onnx"),
    (0, b"<", "it is an HTML or XML page, perhaps of a failed download; fetch the model again"),
    (0, b"{", "it is JSON; give the binary .onnx file"),
    (4, b'\0\0\0\0{"', "it is a safetensors file, which has only weights; export to ONNX first"),
    (1, b"HDF\r\n", "it is an HDF5 file; convert it to ONNX first"),
    (4, b"TFL3", "it is a TensorFlow Lite model; convert it to ONNX first"),
)


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX model; weights, embedded or external, are mapped on use.

    The path may be a symbolic link. Tensors in files are `FileTensor`; they raise ModelError if
    they are read after the file has changed, for example because the model was replaced.

    Raises ModelError if the model does not exist, is damaged or unsupported, or if a reference to
    external data is missing, out of bounds or outside the model's folder.
    """
    path = Path(path)
    label = show(path)
    proto, status = _parse(path, label)
    real = Path(os.path.realpath(path))
    model = _to_ir(proto, model_folders(path), real, label)
    remember(model, real, status)
    return model


def from_proto(proto: onnx.ModelProto, folder: str | os.PathLike[str] | None = None) -> ir.Model:
    """Return the IR of a parsed model; `folder` contains its external data. `proto` is not changed.

    Raises ModelError as `load` does; also for external data when no folder is given.
    """
    folders = () if folder is None else (Path(os.path.realpath(folder)),)
    return _to_ir(proto, folders, None, "model")


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of the model at a path; raises ModelError if it is not readable."""
    path = Path(path)
    proto, _ = _parse(path, show(path))
    return {entry.key: entry.value for entry in proto.metadata_props}


def references(path: str | os.PathLike[str]) -> frozenset[Path]:
    """Return the external data files that the model at a path uses; raises as `data_files`."""
    return frozenset(data_files(path).values())


def data_files(path: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the external data files that the model at a path uses, by the names in its references.

    Raises ModelError if no model is readable there, or if `load` would refuse a file name in it.
    """
    path = Path(path)
    label = show(path)
    proto, _ = _parse(path, label)
    if not proto.HasField("graph"):
        raise ModelError(f"{label}: not an ONNX model")
    links = (t for t in tensor_protos(proto) if t.data_location == onnx.TensorProto.EXTERNAL)
    entries = (entry for link in links for entry in link.external_data)
    # Text that cannot be decoded is returned as bytes.
    names = {os.fsdecode(entry.value) for entry in entries if entry.key == "location"}
    folders = model_folders(path)
    return {name: resolve(name, folders, label) for name in names - {wire.IN_MODEL}}


def _parse(path: Path, label: str) -> tuple[onnx.ModelProto, os.stat_result]:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{label}: it is a directory; name the .onnx file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{label}: it is not a regular file")
        if status.st_size == 0:
            raise ModelError(f"{label}: the file is empty")
        if status.st_size > wire.LIMIT_BYTES:
            raise ModelError(
                f"{label}: it is larger than 2 GiB, the limit of protobuf, so it cannot be a whole "
                "ONNX model; export it with external data"
            )
        with open(path, "rb", buffering=0) as file:
            foreign = _foreign_format(path, file.read(64))
            if foreign is not None:
                raise ModelError(f"{label}: {foreign}")
            data = wire.skeleton(wire.Buffer(file, status.st_size), _DETACH_BYTES)
    except OSError as error:
        raise ModelError(f"{label}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{label}: not an ONNX model, or truncated: {error}") from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{label}: not an ONNX model, or damaged: {first_cause(error)}") from error
    return proto, status


def _foreign_format(path: Path, head: bytes) -> str | None:
    """Identify a file by its first bytes if it is not an ONNX model."""
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    text = head.lstrip()
    for offset, start, sentence in _KNOWN_STARTS:
        if (text if start in (b"<", b"{") else head)[offset:].startswith(start):
            return sentence
    return None


def _archive(path: Path) -> str:
    """Describe the content of a zip archive, as PyTorch writes them."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        names = set()
    if "constants.pkl" in names:
        return "it is a TorchScript model; export it with torch.onnx.export"
    if "data.pkl" in names:
        return "it is a PyTorch checkpoint, which contains only weights; export the model to ONNX"
    return "it is a zip archive; give the .onnx file in it"


def _deserialize(proto: onnx.ModelProto, label: str) -> ir.Model:
    check_model(proto, label)
    try:
        model = ir.serde.deserialize_model(proto)
        for info, value in zip(proto.graph.input, model.graph.inputs, strict=True):
            if value.is_graph_output():  # whose poorer declaration must not hide its own
                ir.serde.deserialize_value_info_proto(info, value)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{label}: {first_cause(error)}") from error
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        if "ai.onnx" in imports:
            # The other name of the default domain; onnx-ir uses the domain "" for its nodes.
            imports[""] = imports.pop("ai.onnx")
    if any(node.domain == ALWAYS_IMPORTED for node in model.graph.all_nodes()):
        model.graph.opset_imports.setdefault(ALWAYS_IMPORTED, 1)
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        _sort(graph, label)
    return model


def _sort(graph: ir.Graph | ir.Function, label: str) -> None:
    """Sort nodes topologically, as ONNX requires and some tools do not."""
    bodies = (body for node in graph.all_nodes() for body in _bodies(node))
    if all(_is_sorted(nodes) for nodes in (graph, *bodies)):
        return
    try:
        graph.sort()
    except ValueError as error:
        raise ModelError(f"{label}: nodes of '{graph.name}' read their own results") from error


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _is_sorted(graph: ir.Graph | ir.Function) -> bool:
    positions = {node: index for index, node in enumerate(graph)}
    for node, index in positions.items():
        inner = (n for body in _bodies(node) for n in body.all_nodes())
        for reader in (node, *inner):
            for value in reader.inputs:
                producer = None if value is None else value.producer()
                if producer is not None and positions.get(producer, -1) >= index:
                    return False
    return True


def _to_ir(
    proto: onnx.ModelProto, folders: Sequence[Path], model_file: Path | None, label: str
) -> ir.Model:
    model = _deserialize(proto, label)
    model.meta[HAS_EXTERNAL_DATA] = attach(model, folders, model_file, label)
    return model


def _as_it_is(model: ir.Model) -> Any:
    return model


@dataclass(frozen=True, slots=True)
class Source:
    """A model as an onnx_ir model, its file if there is one, and the conversion back."""

    model: ir.Model
    path: Path | None = None
    give_back: Callable[[ir.Model], Any] = _as_it_is

    @property
    def label(self) -> str:
        return "the model" if self.path is None else str(self.path)


def open_source(model: Any) -> Source:
    """Open a path, an onnx.ModelProto, an onnx_ir.Model, or a model of torch.onnx or graphsurgeon.

    Raises ModelError if it cannot be read, UsageError for any other type.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return Source(model_io.load(path), path, model_io.materialise)
    if isinstance(model, ir.Model):
        return Source(model)
    if isinstance(model, onnx.ModelProto):
        return Source(model_io.from_proto(model), None, model_io.materialise)
    kind = type(model)
    if kind.__name__ == "ONNXProgram" and kind.__module__.startswith("torch.onnx"):
        program = model.exported_program
        return Source(model.model, None, lambda result: kind(result, program))
    if kind.__module__.startswith("onnx_graphsurgeon"):
        import onnx_graphsurgeon as gs

        proto = gs.export_onnx(model)
        return Source(
            model_io.from_proto(proto),
            None,
            lambda result: gs.import_onnx(model_io.materialise(result)),
        )
    raise UsageError(
        f"an object of type {kind.__name__} is not a model; pass a path, an onnx.ModelProto, "
        "an onnx_ir.Model, a torch.onnx.ONNXProgram or an onnx_graphsurgeon.Graph"
    )
