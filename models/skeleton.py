"""Models without their weights, for machines that a large file cannot be brought to.

    python -m models.skeleton strip MODEL.onnx -o SKELETON.onnx
    python -m models.skeleton fill SKELETON.onnx -o MODEL.onnx

``strip`` keeps the graph, integers and small tensors, and of every other weight its shape, type,
mean and standard deviation; ``fill`` draws such weights from normal distributions with a seed.  The
filled model runs at the speed of the first one and computes something else.  Neither needs torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.model_io.tensor_places import slots

__all__ = ["fill", "is_skeleton", "main", "strip"]

_KEY: Final = "skeleton"
_KEPT_BYTES = 1024
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def strip(source: Path, destination: Path) -> None:
    """Write the skeleton of a model, in one file.

    Raises ModelError where it would replace the model.
    """
    if destination.exists() and destination.samefile(source):
        raise ModelError(f"{destination} is the model itself; name another file")
    model = ir.load(source)
    moments = {}
    for slot in list(slots(model)):
        tensor = slot.tensor
        large = tensor.dtype in _FLOATS and tensor.nbytes > _KEPT_BYTES
        if large and isinstance(slot.owner, ir.Value) and slot.owner.graph is model.graph:
            name = str(slot.owner.name)
            array = tensor.numpy().astype(np.float64)
            moments[name] = (float(array.mean()), float(array.std()))
            slot.put(
                ir.ExternalTensor(
                    f"{destination.name}.stripped",
                    0,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=name,
                )
            )
        elif isinstance(tensor, ir.ExternalTensor):  # whose file does not come along
            slot.put(ir.tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name))
    model.metadata_props[_KEY] = json.dumps(moments)
    ir.save(model, destination)


def is_skeleton(path: Path) -> bool:
    """Say whether ``strip`` wrote a file."""
    return _KEY in ir.load(path).metadata_props


def fill(source: Path, destination: Path, seed: int = 0) -> None:
    """Write a model with random weights, in a second file beside it.

    Raises ModelError where ``source`` is not a skeleton.
    """
    model = ir.load(source)
    if _KEY not in model.metadata_props:
        raise ModelError(f"{source} is no skeleton: make one with python -m models.skeleton strip")
    moments = json.loads(model.metadata_props.pop(_KEY))
    for index, (name, (mean, deviation)) in enumerate(moments.items()):
        value = model.graph.initializers[name]
        tensor = value.const_value
        if tensor is None:
            raise ModelError(f"{source}: the weight '{name}' has no type and shape")
        value.const_value = ir.LazyTensor(
            partial(_drawn, tensor, (mean, deviation), (seed, index)),
            dtype=tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
        )
    ir.save(model, destination, external_data=f"{destination.name}.data")


def _drawn(
    like: ir.TensorProtocol, moments: tuple[float, float], seed: tuple[int, int]
) -> ir.TensorProtocol:
    mean, deviation = moments
    array = np.random.default_rng(seed).standard_normal(like.shape.numpy(), np.float32)
    array *= np.float32(deviation)
    array += np.float32(mean)
    return ir.tensor(array.astype(like.dtype.numpy()), dtype=like.dtype, name=like.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Strip or fill and return the exit code."""
    actions: dict[str, Callable[[Path, Path], None]] = {"strip": strip, "fill": fill}
    parser = argparse.ArgumentParser(prog="python -m models.skeleton", description=__doc__)
    parser.add_argument("action", choices=list(actions))
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        actions[options.action](options.source, options.output)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
