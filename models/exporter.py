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
from typing import TYPE_CHECKING, Final, Literal

import onnx
import onnx_ir as ir

from models.metadata import clean
from models.parameters import randomise_constants
from models.recipe import Attention, Example, ExporterName, Recipe, RequirementError, Settings
from models.table import find
from onnxfold.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "EXPORTERS", "Dtype", "export"]

Dtype = Literal["fp32", "fp16", "bf16"]
DTYPES: Final[Mapping[Dtype, str]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

# A model beyond this size is written with its weights in a second file, unless told otherwise.
_SINGLE_FILE_LIMIT_BYTES = 100 * 1024**2


def export(
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
        UsageError: no such recipe, or the recipe does not support the exporter.
        RequirementError: torch or another package of the extra ``models`` is missing.
    """
    recipe = find(name)
    if exporter not in recipe.exporters:
        raise UsageError(
            f"{name}: exports with {', '.join(recipe.exporters)} only, not with {exporter}"
        )
    path = _file_path(destination, name)
    model = _trace(recipe, Settings(small, attention), opset, exporter, dtype, seed)
    model.graph.name = name
    if external_data is None:
        external_data = _weight_bytes(model) > _SINGLE_FILE_LIMIT_BYTES
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=f"{path.name}.data" if external_data else None)
    return path


def _trace(
    recipe: Recipe, settings: Settings, opset: int, exporter: ExporterName, dtype: Dtype, seed: int
) -> ir.Model:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch

        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # torch warns of its own deprecations and of every shape test it traces through.
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            example = recipe.build(settings)
            if not example.trained:
                randomise_constants(example.module)
            model = EXPORTERS[exporter](_cast(example, getattr(torch, DTYPES[dtype])), opset)
    except ModuleNotFoundError as missing:
        raise RequirementError(
            f"{recipe.name}: the package {missing.name} is not installed; "
            "install the extra with: pip install 'onnxfold[models]'"
        ) from missing
    clean(model)
    weights = "trained weights" if example.trained else f"untrained weights, seed {seed}"
    model.doc_string = f"{recipe.name}{', small' * settings.small}: {recipe.source}; {weights}"
    return model


def _cast(example: Example, dtype: torch.dtype) -> Example:
    inputs = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in example.inputs.items()
    }
    return replace(example, module=example.module.eval().to(dtype), inputs=inputs)


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
