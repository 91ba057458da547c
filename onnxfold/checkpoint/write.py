"""Writing a checkpoint: shard by shard, tensor by tensor, into a folder renamed at the end."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from onnxfold.checkpoint.files import INDEX, Checkpoint, StoredTensor
from onnxfold.errors import InvariantError, ModelError, UsageError
from onnxfold.model_io import show
from onnxfold.model_io.staging import StagingFolder, sync
from onnxfold.weights.edited import EditedTensor

_BATCH_BYTES = 16 << 20
# Weights in other formats, which would be the original model's.
_OTHER_WEIGHTS = frozenset(
    ".bin .ckpt .gguf .h5 .msgpack .onnx .onnx_data .ot .pt .pth .safetensors .tflite".split()
)


def check_output(folder: Path, output: Path) -> None:
    """Fail before the work if a checkpoint could not be written.

    Raises UsageError if ``output`` exists, ModelError if its parent is not writable.
    """
    if os.path.lexists(output):
        raise UsageError(f"{show(output)}: it exists; name a new folder, or remove it")
    parent = output.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ModelError(f"{show(output)}: {show(parent)} is not a writable folder")
    if parent.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{show(output)}: it lies within the checkpoint; name a folder elsewhere")


def other_files(checkpoint: Checkpoint) -> tuple[list[Path], list[str]]:
    """Return the files to copy, and the names of the others: other weights, folders.

    Raises ModelError if the folder cannot be read.
    """
    kept, left = [], []
    for path in sorted(checkpoint.folder.iterdir()):
        if path.name in checkpoint.shards:
            continue
        index = path.name.endswith(".index.json") and path.name != INDEX
        if not path.is_file() or index or path.suffix in _OTHER_WEIGHTS:
            left.append(path.name)
        else:
            kept.append(path)
    return kept, left


def write_checkpoint(
    checkpoint: Checkpoint,
    tensors: Mapping[str, ir.TensorProtocol],
    output: Path,
    progress: Callable[[int, int], None],
) -> int:
    """Write a checkpoint with new numbers for some tensors; return its bytes.

    Names, types, shapes, the order of bytes and the metadata of a shard stay, because its header is
    copied. The folder gets its name when everything is on disk.

    Raises ModelError if it cannot be written, WeightOverflowError if a type cannot represent a
    tensor's new numbers; nothing remains then.
    """
    total = sum(stored.nbytes for stored in checkpoint.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    with _published(output) as folder:
        for path in other_files(checkpoint)[0]:
            shutil.copyfile(path, folder / path.name)
            sync(folder / path.name)
        for shard in checkpoint.shards:
            _write_shard(checkpoint, shard, tensors, folder / shard, advance)
        return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def _published(output: Path) -> Iterator[Path]:
    """Yield a folder to fill, which gets its name at the end."""
    try:
        staging = StagingFolder(output.absolute().parent)
        try:
            folder = staging.path / output.name
            folder.mkdir()
            yield folder
            sync(folder)
            if os.path.lexists(output):
                raise ModelError(f"{show(output)}: another process has written it meanwhile")
            os.rename(folder, output)
            sync(output.absolute().parent)
        finally:
            staging.close()
    except OSError as error:
        raise ModelError(f"{show(output)}: cannot be written: {error.strerror}") from error


def _write_shard(
    checkpoint: Checkpoint,
    shard: str,
    tensors: Mapping[str, ir.TensorProtocol],
    path: Path,
    advance: Callable[[int], None],
) -> None:
    stored = checkpoint.of_shard(shard)
    with open(checkpoint.folder / shard, "rb") as source, open(path, "xb") as target:
        _copy(source, target, 0, stored[0].offset if stored else os.fstat(source.fileno()).st_size)
        for each in stored:
            new = tensors.get(each.name)
            if new is None:
                _copy(source, target, each.offset, each.nbytes)
            else:
                _write(new, each, target)
            advance(each.nbytes)
        target.flush()
        os.fsync(target.fileno())


def _copy(source: BinaryIO, target: BinaryIO, offset: int, nbytes: int) -> None:
    source.seek(offset)
    while nbytes:
        part = source.read(min(nbytes, _BATCH_BYTES))
        if not part:
            raise ModelError(f"{show(source.name)}: it became shorter while it was read")
        target.write(part)
        nbytes -= len(part)


def _write(new: ir.TensorProtocol, stored: StoredTensor, target: BinaryIO) -> None:
    """Write the rows of a tensor as they are computed."""
    start = target.tell()
    parts = new.parts() if isinstance(new, EditedTensor) else (new.numpy(),)
    for part in parts:
        target.write(part.tobytes())
    if target.tell() - start != stored.nbytes:
        raise InvariantError(f"'{stored.name}' has another size than it had")
