"""The models of the matrix: architectures of `models`, small, as torch exports them.

Each has two sets of inputs: as its recipe draws them, and with rows that norms can feel. There a
quarter of an image is 1e3, a quarter ones and a half zeros, and a text begins with two tokens of
whose tables the rows are zeros and equal numbers.

Up to opset 17 torch writes them by TorchScript, above by dynamo; each with symbolic axes, and with
fixed shapes for the runtimes that want these. Exports stay in the cache, since they do not depend
on onnxfold.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from models.recipe import Dtype
from tests.compatibility.environments import CACHE
from tests.compatibility.truth import Array, truth

__all__ = ["ARCHITECTURES", "EVERY_OTHER", "OPSETS", "Architecture", "Export"]

OPSETS: Final = (17, 18, 20, 23)
EVERY_OTHER: Final = (18, 23)
_OF_HALF: Final = (17, 18)  # one of each exporter
_SEED = 0
_SETS = ("inputs.json", "rows.json")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A recipe of `models`, and what the transformers optimizer of ONNX Runtime calls it."""

    recipe: str
    model_type: str | None = None
    heads: int = 4
    width: int = 48
    dtype: Dtype = "fp32"
    opsets: tuple[int, ...] = OPSETS

    @property
    def roundoff(self) -> float:
        """Return the unit roundoff of its weights and activations."""
        return 2.0**-11 if self.dtype == "fp16" else 2.0**-24


ARCHITECTURES: Final = {
    "vit": Architecture("vit-b16", "vit"),
    "bert": Architecture("bert-base", "bert"),
    "gpt2": Architecture("gpt2", "gpt2"),
    "swin": Architecture("swin-t"),
    "llama": Architecture("llama-small"),
    "vit-float16": Architecture("vit-b16", "vit", dtype="fp16", opsets=_OF_HALF),
    "gpt2-float16": Architecture("gpt2", "gpt2", dtype="fp16", opsets=_OF_HALF),
}


@dataclass(frozen=True, slots=True)
class Export:
    """One file that torch wrote, with two sets of inputs and the float64 truth of each."""

    architecture: str
    opset: int
    fixed: bool = False

    @property
    def folder(self) -> Path:
        return CACHE / "exports" / f"{self.architecture}-{self.opset}{'-fixed' * self.fixed}"

    @property
    def path(self) -> Path:
        """Return the file, which is written on first use."""
        path = self.folder / "original.onnx"
        if not (self.folder / _SETS[-1]).exists():
            sys.stderr.write(f"exporting {self.folder.name}\n")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(path)
        return path

    def inputs(self) -> list[list[dict[str, Any]]]:
        """Return both sets of inputs as the workers read them."""
        return [json.loads((self.path.parent / name).read_text()) for name in _SETS]

    def truth(self) -> list[list[Array]]:
        """Return the outputs of each set in float64."""
        model = onnx.load(self.path)
        return [truth(model, _read(described)) for described in self.inputs()]

    def _write(self, path: Path) -> None:
        model, tensors = _traced(self)
        ir.save(model, path)
        for name, arrays in zip(_SETS, (tensors, _with_rows(tensors)), strict=True):
            described = [self._kept(name, *pair) for pair in arrays.items()]
            (self.folder / name).write_text(json.dumps(described))

    def _kept(self, called: str, name: str, array: Array) -> dict[str, Any]:
        file = self.folder / f"{called}-{name}.raw"
        array.tofile(file)
        return {"name": name, "dtype": str(array.dtype), "shape": array.shape, "file": str(file)}


def _read(described: list[dict[str, Any]]) -> dict[str, Array]:
    return {
        each["name"]: np.fromfile(each["file"], each["dtype"]).reshape(each["shape"])
        for each in described
    }


def _with_rows(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return a copy whose last sample has rows of zeros, of equal numbers and of 1e3."""
    changed = {name: array.copy() for name, array in inputs.items()}
    for name, array in changed.items():
        if array.ndim == 4:
            height, width = (size // 2 for size in array.shape[2:])
            array[-1, :, :height] = 0
            array[-1, :, height:, :width] = 1
            array[-1, :, height:, width:] = 1e3
        elif name == "input_ids":
            array[-1, :2] = (0, 1)
    return changed


def _traced(export: Export) -> tuple[ir.Model, dict[str, Array]]:
    import torch

    from models.exporter import in_dtype, trace
    from models.parameters import randomise_constants
    from models.recipe import ExporterName, Settings
    from models.table import find

    exporter: ExporterName = "dynamo" if export.opset > 17 else "torchscript"
    settings = Settings(small=True, opset=export.opset, exporter=exporter, seed=_SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        architecture = ARCHITECTURES[export.architecture]
        example = find(architecture.recipe).build(settings)
        randomise_constants(example.module)
        _set_rows(example.module)
        example = in_dtype(example, architecture.dtype)
        if export.fixed:
            example = replace(example, dynamic_axes={name: {} for name in example.inputs})
        model = trace(example, opset=export.opset, exporter=exporter)
    return model, {name: tensor.numpy() for name, tensor in example.inputs.items()}


def _set_rows(module: Any) -> None:
    """Make the first row of each table zeros and the second equal numbers."""
    import torch

    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.Embedding):
                part.weight[0], part.weight[1:2] = 0.0, 0.5
