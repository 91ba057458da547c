"""Build a recipe and write it as ONNX, through either of torch's two exporters."""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx
import onnx_ir as ir

from models.metadata import clean
from models.parameters import randomise_constants
from models.recipe import (
    Attention,
    Dtype,
    Example,
    ExporterName,
    Recipe,
    RequirementError,
    Settings,
)
from models.table import find
from onnxfold.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "EXPORTERS", "OPSETS", "export", "in_dtype", "trace"]

DTYPES: Final[Mapping[Dtype, str]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

# What torch 2.13 writes without a failed conversion afterwards.
OPSETS: Final[Mapping[ExporterName, range]] = {
    "dynamo": range(18, 26),
    "torchscript": range(9, 21),
}

# A model beyond this size is written with its weights in a second file, unless told otherwise.
_SINGLE_FILE_BYTES = 100 * 1024**2
# protobuf cannot hold more than 2 GiB; the graph beside the weights is small.
_PROTOBUF_BYTES = 2**31 - 2**24


def export(  # noqa: PLR0913  one keyword for each option of the command line
    name: str,
    destination: str | os.PathLike[str],
    *,
    opset: int = 18,
    exporter: ExporterName = "dynamo",
    dtype: Dtype = "fp32",
    small: bool = False,
    attention: Attention = "eager",
    seed: int = 0,
    external_data: bool | None = None,
) -> Path:
    """Export the recipe `name` and return the path of the ``.onnx`` file.

    `destination` is a file that ends in ``.onnx``, or a directory that receives ``<name>.onnx``;
    it is created. External data lies beside the model as ``<file>.data``; the default is to use
    it above 100 MiB. The same arguments give the same bytes.

    Raises:
        UsageError: no such recipe, or it does not go with the options.
        RequirementError: torch or another package of the extra ``models`` is missing.
    """
    recipe = find(name)
    if exporter not in recipe.exporters:
        raise UsageError(
            f"{name}: exports with {', '.join(recipe.exporters)} only, not with {exporter}"
        )
    if attention not in recipe.attentions:
        raise UsageError(f"{name}: has {', '.join(recipe.attentions)} attention only")
    path = _file_path(destination, name)
    model = _build(recipe, Settings(small, attention, opset, exporter, dtype, seed))
    weight_bytes = _weight_bytes(model)
    if external_data is None:
        external_data = weight_bytes > _SINGLE_FILE_BYTES
    elif not external_data and weight_bytes > _PROTOBUF_BYTES:
        raise UsageError(f"{name}: {weight_bytes / 1e9:.1f} GB of weights need external data")
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=f"{path.name}.data" if external_data else None)
    return path


def _build(recipe: Recipe, settings: Settings) -> ir.Model:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            example = recipe.build(settings)
            if not example.trained:
                randomise_constants(example.module)
            example = in_dtype(example, settings.dtype)
            model = trace(example, opset=settings.opset, exporter=settings.exporter)
    except ModuleNotFoundError as missing:
        raise RequirementError(
            f"{recipe.name}: the package {missing.name} is not installed; "
            "install the extra with: pip install 'onnxfold[models]'"
        ) from missing
    weights = "trained weights" if example.trained else f"untrained weights, seed {settings.seed}"
    model.graph.name = recipe.name
    model.doc_string = f"{recipe.name}{', small' * settings.small}: {recipe.source}; {weights}"
    return model


def in_dtype(example: Example, dtype: Dtype) -> Example:
    """Return `example` with weights and inputs of floating-point numbers in this type."""
    import torch

    to: torch.dtype = getattr(torch, DTYPES[dtype])
    inputs = {
        name: tensor.to(to) if tensor.is_floating_point() else tensor
        for name, tensor in example.inputs.items()
    }
    return replace(example, module=example.module.to(to), inputs=inputs)


def trace(example: Example, *, opset: int, exporter: ExporterName = "dynamo") -> ir.Model:
    """Export `example` in evaluation mode, without what names the machine it was traced on.

    Raises:
        UsageError: the exporter does not write that opset.
    """
    supported = OPSETS[exporter]
    if opset not in supported:
        raise UsageError(f"{exporter} writes opsets {supported[0]} to {supported[-1]}, not {opset}")
    example.module.eval()
    with warnings.catch_warnings():
        # torch warns of its own deprecations and of every shape test it traces through.
        warnings.simplefilter("ignore")
        model = EXPORTERS[exporter](example, opset)
    clean(model)
    return model


def _with_dynamo(example: Example, opset: int) -> ir.Model:
    import torch

    # Without torchvision the exporter logs one warning for each operator it cannot register.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    axes = [dict(example.dynamic_axes[name]) for name in example.inputs]
    program = torch.onnx.export(
        example.module,
        tuple(example.inputs.values()),
        input_names=list(example.inputs),
        output_names=list(example.outputs),
        # Bound like the inputs, so that a variadic forward gets its axes as one tuple.
        dynamic_shapes=dict(inspect.signature(example.module.forward).bind(*axes).arguments),
        opset_version=opset,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise AssertionError("torch.onnx.export(dynamo=True) returned no program")
    return program.model


def _with_torchscript(example: Example, opset: int) -> ir.Model:
    import torch

    axes = {name: dict(axes) for name, axes in example.dynamic_axes.items()}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        torch.onnx.export(
            example.module,
            tuple(example.inputs.values()),
            path,
            input_names=list(example.inputs),
            output_names=list(example.outputs),
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
        return ir.from_proto(onnx.load(path))


EXPORTERS: Final[Mapping[ExporterName, Callable[[Example, int], ir.Model]]] = {
    "dynamo": _with_dynamo,
    "torchscript": _with_torchscript,
}


def _file_path(destination: str | os.PathLike[str], name: str) -> Path:
    path = Path(destination)
    return path if path.suffix == ".onnx" else path / f"{name}.onnx"


def _weight_bytes(model: ir.Model) -> int:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
