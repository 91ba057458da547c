"""Writing a model: completely under temporary names beside its destination, then published.

Publishing is single renames within one file system: the data under a name that nothing has, then
the model. A kill between any two steps leaves the input and the previous output whole, and at
worst a hidden folder or a data file that nothing uses.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx
import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError
from onnxfold.model_io import wire
from onnxfold.model_io.copying import OutputFile, WrittenBytes
from onnxfold.model_io.data_files import (
    check_sharing,
    is_outside,
    link_shared,
    shard_numbers,
    shared,
)
from onnxfold.model_io.destination import check_destination, data_names, orphans, resolved
from onnxfold.model_io.load import HAS_EXTERNAL_DATA, references
from onnxfold.model_io.messages import show
from onnxfold.model_io.staging import StagingFolder, place, sync
from onnxfold.model_io.tensor_places import Slot, detach, payload, slots, take_number, tensor_protos


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """What was published, and the size of it all.

    shards: its data files; shared: those of the source that it refers to as well.
    """

    model: Path
    shards: tuple[Path, ...]
    nbytes: int
    shared: tuple[Path, ...] = ()

    @property
    def data(self) -> Path | None:
        """The data file, the first of several, None where there is none."""
        return self.shards[0] if self.shards else None


@dataclass(frozen=True, slots=True)
class _Data:
    """Names of the data files of a staged model, and locations in files of its source."""

    written: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


class StagedModel:
    """A model written completely, in a hidden folder beside its destination.

    `path` can be loaded as it is: the external data lies beside it under its final name. Leaving
    the context, or `close`, deletes what was not committed.
    """

    def __init__(
        self, folder: StagingFolder, final: Path, data: _Data, source: Path | None
    ) -> None:
        self.path = folder.path / final.name
        self._folder = folder
        self._final = final
        self._data = data
        self._source = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete what is still under temporary names."""
        self._folder.close()

    def commit(self) -> OutputFiles:
        """Publish the data, then the model; then delete data that only the old model used.

        Tensors of the old model that were not read yet raise ModelError from then on.

        Raises ModelError where the files cannot be put in place; what was there before is
        untouched.
        """
        if self._folder.closed:
            raise InvariantError("a staged model is committed twice, or after it was closed")
        final = self._final
        shards = tuple(final.parent / name for name in self._data.written)
        kept = tuple(final.parent / location for location in self._data.shared)
        staged = [self.path, *(self.path.with_name(shard.name) for shard in shards)]
        nbytes = 0
        try:
            nbytes = sum(path.stat().st_size for path in staged)
            replaces = final.exists()
            left = [path for path in orphans(final, self._source) if path not in kept]
            if replaces:
                # What is there may be the only copy: have the new one on the disk first.
                for path in staged:
                    sync(path)
            self._publish(final, shards)
        except OSError as error:
            raise ModelError(_reason(error, final, nbytes)) from error
        # The new model stands; an old file that cannot be deleted harms nobody.
        with contextlib.suppress(OSError):
            if left:
                sync(final.parent)
            for path in left:
                path.unlink()
        self.close()
        return OutputFiles(final, shards, nbytes, kept)

    def _publish(self, final: Path, shards: tuple[Path, ...]) -> None:
        published: list[Path] = []
        try:
            for shard in shards:
                place(self.path.with_name(shard.name), shard)
                published.append(shard)
            os.replace(self.path, final)
        except BaseException:
            for shard in published:
                shard.unlink()
            raise


def stage(
    model: ir.Model,
    destination: str | os.PathLike[str],
    *,
    source: Path | None = None,
    force: bool = False,
    external_data: bool | None = None,
    threshold_bytes: int = 1024,
    share: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> StagedModel:
    """Write a model beside its destination, one tensor in memory at a time.

    Tensors in files are copied from file to file. `external_data` None keeps what the model had,
    but makes data external that a protobuf cannot hold; initializers of less than
    `threshold_bytes` stay embedded. Several data files stay several (see `layout`). With `share`
    the model refers to the data files of its source for every tensor that is still in them. The
    same model gives the same bytes, apart from names of data files where they were taken.
    `progress` is called with bytes written and bytes in all, from the thread that writes. The
    model itself is left as it was.

    Raises UsageError where the destination is the input (`source`) without `force`, or the model
    cannot share weights from there; ModelError where it cannot be written: nothing is left then.
    """
    check_destination(destination, source=source, force=force)
    if share:
        check_sharing(model, source, destination)
    final = resolved(destination)
    home = final.parent if share else None
    written = (slot.tensor for slot in slots(model))
    total = sum(t.nbytes for t in written if home is None or shared(t, home) is None)
    external = _is_external(model, total, source) if external_data is None else external_data

    def write(path: Path) -> _Data:
        counter = WrittenBytes(total, progress)
        if external or share:
            return _write_external(model, path, final, threshold_bytes, home, counter)
        _write_embedded(model, path, threshold_bytes, counter)
        return _Data()

    return _staged(write, final, source, total)


def stage_copy(
    source: Path, destination: str | os.PathLike[str], *, force: bool = False
) -> StagedModel:
    """Copy a model with all weights in it, byte for byte, to beside its destination.

    Raises as `stage`.
    """
    check_destination(destination, source=source, force=force)

    def write(path: Path) -> _Data:
        shutil.copyfile(source, path)
        return _Data()

    return _staged(write, resolved(destination), source, source.stat().st_size)


def _staged(
    write: Callable[[Path], _Data], final: Path, source: Path | None, needed_bytes: int
) -> StagedModel:
    """Have a model written under its name in a staging folder, which goes where that fails."""
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
        raise ModelError(_reason(error, final, needed_bytes)) from error


def materialise(model: ir.Model) -> onnx.ModelProto:
    """The whole model as one protobuf in memory, without references to files.

    Raises ModelError where it is larger than 2 GiB, which protobuf cannot hold, or a file is gone.
    """
    total = sum(slot.tensor.nbytes for slot in slots(model))
    _check_limit(total, "write it to a file instead")
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
    # A clone of a loaded model has lost the note, and may have lost every reference to edits.
    if any(is_outside(slot.tensor) for slot in slots(model)):
        return True
    return source is not None and bool(references(source))


def _leaves_protobuf(threshold_bytes: int) -> Callable[[Slot], bool]:
    """Whether a tensor is written by us: from a file, computed, or a large initializer."""

    def wanted(slot: Slot) -> bool:
        tensor = slot.tensor
        if tensor.dtype is ir.DataType.STRING:
            return False
        if isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)):
            return True
        return slot.is_initializer and tensor.nbytes >= threshold_bytes

    return wanted


def _write_external(
    model: ir.Model,
    path: Path,
    final: Path,
    threshold_bytes: int,
    home: Path | None,
    progress: WrittenBytes,
) -> _Data:
    """Write the model and its data; `home`: the folder whose data files it shares."""
    proto, taken = detach(model, _leaves_protobuf(threshold_bytes))
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
    names = _write_data({n: (holders[n], taken[n]) for n in sorted(holders)}, path, final, progress)
    _check_limit(proto.ByteSize(), "it is too large even without its weights")
    with OutputFile(path, progress) as file:
        file.write(proto.SerializeToString())
    return _Data(tuple(names), tuple(linked))


def _write_data(
    held: dict[int, tuple[onnx.TensorProto, ir.TensorProtocol]],
    path: Path,
    final: Path,
    progress: WrittenBytes,
) -> list[str]:
    """Write tensors into data files, one after the other, and refer to them; gives the names."""
    numbers = shard_numbers([tensor for _, tensor in held.values()])
    used = sorted(set(numbers))
    names = data_names(final, len(used)) if used else []
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


def _write_embedded(
    model: ir.Model, path: Path, threshold_bytes: int, progress: WrittenBytes
) -> None:
    """Write the model as one protobuf whose large weights never are in memory together."""
    proto, taken = detach(model, _leaves_protobuf(threshold_bytes))
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
    """Equal for tensors that share their bytes, so that a tied weight is written once."""
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.path, tensor.offset or 0, tensor.nbytes
    return id(tensor)


def _check_limit(nbytes: int, remedy: str) -> None:
    if nbytes > wire.LIMIT_BYTES:
        raise ModelError(
            f"the model has {nbytes / 2**30:.2f} GiB, more than the 2 GiB of a protobuf: {remedy}"
        )


def _reason(error: OSError, final: Path, needed_bytes: int) -> str:
    label = show(final)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(final.parent).free
        return (
            f"{label}: the disk is full: {needed_bytes / 1e6:.1f} MB are needed and "
            f"{free / 1e6:.1f} MB are free; free some space or choose another folder"
        )
    what = error.strerror or str(error)
    about = f" ({show(error.filename)})" if isinstance(error.filename, str) else ""
    return f"{label}: it cannot be written: {what}{about}"
