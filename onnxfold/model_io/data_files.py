"""Assignment of tensors to data files: the input's sharding, and which tensors stay in its files.

A model with weights in several data files is written with as many: a changed tensor is written to
the file of the tensor that it is computed from, a new one to the file of the preceding tensor. One
file per tensor (as PyTorch's old exporter writes) is not sharding, and one file is written.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.destination import resolved
from onnxfold.model_io.file_tensor import FileTensor
from onnxfold.model_io.messages import show
from onnxfold.model_io.tensor_places import slots


def is_outside(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is in a data file, not in memory and not in the file of its model."""
    if isinstance(tensor, FileTensor):
        return not tensor.in_model
    return isinstance(tensor, ir.ExternalTensor)


def shard_numbers(tensors: Sequence[ir.TensorProtocol]) -> list[int]:
    """Return the number of the data file of each tensor, counted from 0."""
    homes = [_home(tensor) for tensor in tensors]
    order = {home: number for number, home in enumerate(dict.fromkeys(h for h in homes if h))}
    if len(order) == sum(home is not None for home in homes):
        return [0] * len(tensors)
    numbers, last = [], 0
    for home in homes:
        last = last if home is None else order[home]
        numbers.append(last)
    return numbers


def _home(tensor: ir.TensorProtocol) -> str | None:
    """Return the data file of a tensor, or of the one that it is computed from."""
    base: ir.TensorProtocol | None = tensor
    while base is not None and not isinstance(base, ir.ExternalTensor):
        base = getattr(base, "base", None)
    return os.fspath(base.path) if base is not None and is_outside(base) else None


def check_sharing(
    model: ir.Model, source: Path | None, destination: str | os.PathLike[str]
) -> None:
    """Refuse to write a model that shares the data files of its source if it cannot.

    Raises UsageError if the model does not come from a file, keeps all weights in itself, or its
    data is not in the folder of the destination.
    """
    label = show(Path(destination))
    if source is None:
        raise UsageError(f"{label}: only a model that is read from a file can share its weights")
    homes = (_home(slot.tensor) for slot in slots(model))
    files = {home for home in homes if home is not None}
    if not files:
        raise UsageError(
            f"{label}: {show(source)} has no data files, so there are no weights to share"
        )
    folder = resolved(destination).parent
    for file in sorted(files):
        if not Path(file).is_relative_to(folder):
            raise UsageError(
                f"{label}: it can share weights only from the folder of the input's data, "
                f"{show(Path(file).parent)}; write it there, or without --share-weights"
            )


def shared(tensor: ir.TensorProtocol, folder: Path) -> str | None:
    """Return the location by which a model in a folder can refer to a tensor in place, or None.

    A name that is not valid text, as a reference must be, gives None too.
    """
    if not isinstance(tensor, FileTensor) or tensor.in_model:
        return None
    path = Path(tensor.path)
    if not path.is_relative_to(folder) or not os.fspath(path).isprintable():
        return None
    return path.relative_to(folder).as_posix()


def link_shared(tensors: Mapping[str, ir.TensorProtocol], folder: Path, staging: Path) -> None:
    """Give shared data files a second name in a staging folder, so that its model can be loaded.

    `tensors`: one tensor for each location.

    Raises ModelError if the file system does not support hard links, or a file has changed since it
    was loaded.
    """
    for location, tensor in tensors.items():
        place = staging / location
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / location, place)
        except OSError as error:
            raise ModelError(
                f"{show(folder / location)}: it cannot be linked, which sharing weights needs "
                f"({error.strerror}); write the model without --share-weights"
            ) from error
        if isinstance(tensor, FileTensor):
            with open(place, "rb") as file:
                tensor.check_unchanged(file.fileno())
