"""Write a model completely under temporary names in its folder, to be published later."""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.model_io import wire
from onnxfold.model_io.copying import OutputFile, WrittenBytes
from onnxfold.model_io.data_homes import (
    check_destination,
    check_sharing,
    data_names,
    is_outside,
    link_shared,
    resolved,
    shard_numbers,
    shared,
)
from onnxfold.model_io.load import HAS_EXTERNAL_DATA, references
from onnxfold.model_io.report_files import check_replaceable, mark_copy
from onnxfold.model_io.staging import DataFiles, StagedModel, StagingFolder, why_not_written
from onnxfold.model_io.tensor_places import Slot, detach, payload, slots, take_number, tensor_protos
from onnxfold.options import METADATA_KEY

_TakenOut: TypeAlias = tuple[onnx.ModelProto, list[ir.TensorProtocol]]


def stage(  # noqa: PLR0913  # each is a choice of the caller
    model: ir.Model,
    destination: str | os.PathLike[str],
    *,
    source: Path | None = None,
    force: bool = False,
    external_data: bool | None = None,
    threshold_bytes: int = 1024,
    share: bool = False,
    note: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> StagedModel:
    """Write a model into the folder of its destination, one tensor in memory at a time.

    Tensors in files are copied from file to file. `external_data` None keeps the model's choice,
    but makes data external that a protobuf cannot contain; initializers smaller than
    `threshold_bytes` stay embedded. Several data files stay several (see `layout`). With `share`
    the model refers to the data files of its source for every tensor that is still in them. The
    same model yields the same bytes. `note` becomes the metadata entry of this program unless the
    model already has one. `progress` is called with the bytes written and the total, from the
    thread that writes. The model itself is not changed.

    Raises UsageError if the destination is the input (`source`), or a copy of it that this program
    did not write, without `force`, or the model cannot share weights from there, and ModelError if
    it cannot be written; no files remain then.
    """
    check_destination(destination, source=source, force=force)
    if source is not None:  # a copy of it is replaceable only by another copy
        check_replaceable(destination, source=None, force=force)
    if share:
        check_sharing(model, source, destination)
    final = resolved(destination)
    home = final.parent if share else None
    written = (slot.tensor for slot in slots(model))
    total = sum(t.nbytes for t in written if home is None or shared(t, home) is None)
    external = _is_external(model, total, source) if external_data is None else external_data

    def write(path: Path) -> DataFiles:
        counter = WrittenBytes(total, progress)
        taken_out = detach(model, _leaves_protobuf(threshold_bytes))
        if note is not None and METADATA_KEY not in model.metadata_props:
            taken_out[0].metadata_props.add(key=METADATA_KEY, value=note)
        if external or share:
            return _write_external(taken_out, path, final, threshold_bytes, home, counter)
        _write_embedded(taken_out, path, counter)
        return DataFiles()

    return _staged(write, final, source, total)


def stage_copy(
    source: Path, destination: str | os.PathLike[str], *, force: bool = False
) -> StagedModel:
    """Copy a model with embedded weights, byte for byte, into the folder of its destination.

    Raises as `stage`.
    """
    check_destination(destination, source=source, force=force)

    def write(path: Path) -> DataFiles:
        shutil.copyfile(source, path)
        mark_copy(path)
        return DataFiles()

    return _staged(write, resolved(destination), source, source.stat().st_size)


def _staged(
    write: Callable[[Path], DataFiles], final: Path, source: Path | None, needed_bytes: int
) -> StagedModel:
    """Write a model under its name in a staging folder, which is removed on failure."""
    try:
        with contextlib.ExitStack() as undo:
            folder = StagingFolder(final.parent)
            undo.callback(folder.close)
            path = folder.path / final.name
            data = write(path)
            if final.is_file():
                shutil.copymode(final, path)
            staged = StagedModel(folder, final, data, source)
            undo.pop_all()
            return staged
    except OSError as error:
        raise ModelError(why_not_written(error, final, needed_bytes)) from error


def check_embeddable(model: ir.Model) -> None:
    """Raise ModelError if a model exceeds the 2 GiB of one protobuf."""
    total = sum(slot.tensor.nbytes for slot in slots(model))
    _check_limit(total, "write it to a file instead")


def materialise(model: ir.Model) -> onnx.ModelProto:
    """Return the whole model as one protobuf in memory, without references to files.

    Raises ModelError if it exceeds 2 GiB, the limit of protobuf, or a file is gone.
    """
    check_embeddable(model)
    proto, taken = detach(model, _leaves_protobuf(wire.LIMIT_BYTES + 1))
    for tensor in tensor_protos(proto):
        _embed(tensor, take_number(tensor), taken)
    return proto


def _is_external(model: ir.Model, total_bytes: int, source: Path | None) -> bool:
    if total_bytes > wire.EMBEDDED_BYTES:
        return True
    known = model.meta.get(HAS_EXTERNAL_DATA)
    if known is not None:
        return bool(known)
    # A clone of a loaded model loses the note, and may lose all references to edits.
    if any(is_outside(slot.tensor) for slot in slots(model)):
        return True
    return source is not None and bool(references(source))


def _leaves_protobuf(threshold_bytes: int) -> Callable[[Slot], bool]:
    """Whether a tensor is written here: it is in a file, computed, or a large initializer."""

    def wanted(slot: Slot) -> bool:
        tensor = slot.tensor
        if tensor.dtype is ir.DataType.STRING:
            return False
        if isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)):
            return True
        return slot.is_initializer and tensor.nbytes >= threshold_bytes

    return wanted


def _write_external(
    taken_out: _TakenOut,
    path: Path,
    final: Path,
    threshold_bytes: int,
    home: Path | None,
    progress: WrittenBytes,
) -> DataFiles:
    """Write the model and its data; `home`: the folder whose data files it shares."""
    proto, taken = taken_out
    holders: dict[int, onnx.TensorProto] = {}
    linked: dict[str, ir.TensorProtocol] = {}
    for holder in tensor_protos(proto):
        number = take_number(holder)
        location = None if number is None or home is None else shared(taken[number], home)
        if number is not None and location is not None:
            linked[location] = taken[number]
            offset = getattr(taken[number], "offset", None) or 0
            holder.MergeFrom(wire.reference(location, offset, taken[number].nbytes))
        elif number is not None and taken[number].nbytes >= threshold_bytes:
            holders[number] = holder
        else:
            _embed(holder, number, taken)
    link_shared(linked, final.parent, path.parent)
    held = {number: (holders[number], taken[number]) for number in sorted(holders)}
    names = _write_data(held, path, final, linked, progress)
    _check_limit(proto.ByteSize(), "it is too large even without its weights")
    with OutputFile(path, progress) as file:
        file.write(proto.SerializeToString())
    return DataFiles(tuple(names), tuple(linked))


def _write_data(
    held: dict[int, tuple[onnx.TensorProto, ir.TensorProtocol]],
    path: Path,
    final: Path,
    shared: Collection[str],
    progress: WrittenBytes,
) -> list[str]:
    """Write tensors into data files in order, and refer to them; return the file names."""
    numbers = shard_numbers([tensor for _, tensor in held.values()])
    used = sorted(set(numbers))
    names = data_names(final, len(used), shared) if used else []
    for name, shard in zip(names, used, strict=True):
        offsets: dict[object, int] = {}
        with OutputFile(path.with_name(name), progress) as data:
            for (holder, tensor), number in zip(held.values(), numbers, strict=True):
                if number != shard:
                    continue
                key = _identity(tensor)
                if key not in offsets:
                    data.align(max(1, tensor.dtype.bitwidth // 8))
                    offsets[key] = data.position
                    data.write_tensor(tensor)
                holder.MergeFrom(wire.reference(name, offsets[key], tensor.nbytes))
    return names


def _write_embedded(taken_out: _TakenOut, path: Path, progress: WrittenBytes) -> None:
    """Write the model as one protobuf without ever having all its large weights in memory."""
    proto, taken = taken_out
    parts: list[tuple[bytes, ir.TensorProtocol | None]] = []
    for holder in proto.graph.initializer:
        number = take_number(holder)
        tensor = None if number is None else taken[number]
        parts.append((wire.initializer(holder, None if tensor is None else tensor.nbytes), tensor))
    del proto.graph.initializer[:]
    for holder in tensor_protos(proto):
        _embed(holder, take_number(holder), taken)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    shell = proto.SerializeToString()
    length = len(graph) + sum(len(head) + (t.nbytes if t else 0) for head, t in parts)
    _check_limit(len(shell) + length, "save it with external data")
    with OutputFile(path, progress) as file:
        file.write(shell + wire.graph_header(length) + graph)
        for head, tensor in parts:
            file.write(head)
            if tensor is not None:
                file.write_tensor(tensor)


def _embed(holder: onnx.TensorProto, number: int | None, taken: list[ir.TensorProtocol]) -> None:
    if number is not None:
        holder.raw_data = bytes(payload(taken[number]))


def _identity(tensor: ir.TensorProtocol) -> object:
    """Return a key that is equal for tensors that share bytes, so a tied weight is written once."""
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.path, tensor.offset or 0, tensor.nbytes
    return id(tensor)


def _check_limit(nbytes: int, remedy: str) -> None:
    if nbytes > wire.LIMIT_BYTES:
        raise ModelError(
            f"the model has {nbytes / 2**30:.2f} GiB, more than the 2 GiB of a protobuf: {remedy}"
        )
