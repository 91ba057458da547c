"""The models of the matrix: architectures of `models`, small, as torch exports them.

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
    """One file that torch wrote, with inputs and the float64 truth."""

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
        if not path.exists():
            sys.stderr.write(f"exporting {self.folder.name}\n")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(path)
        return path

    def inputs(self) -> list[dict[str, Any]]:
        """Return the inputs as the workers read them."""
        found: list[dict[str, Any]] = json.loads((self.path.parent / "inputs.json").read_text())
        return found

    def truth(self) -> list[Array]:
        """Return the outputs in float64."""
        arrays = {
            each["name"]: np.fromfile(each["file"], each["dtype"]).reshape(each["shape"])
            for each in self.inputs()
        }
        return truth(onnx.load(self.path), arrays)

    def _write(self, path: Path) -> None:
        model, tensors = _traced(self)
        described = []
        for name, array in tensors.items():
            file = self.folder / f"{name}.raw"
            array.tofile(file)
            described.append(
                {"name": name, "dtype": str(array.dtype), "shape": array.shape, "file": str(file)}
            )
        (self.folder / "inputs.json").write_text(json.dumps(described))
        ir.save(model, path)


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
        example = in_dtype(example, architecture.dtype)
        if export.fixed:
            example = replace(example, dynamic_axes={name: {} for name in example.inputs})
        model = trace(example, opset=export.opset, exporter=exporter)
    return model, {name: tensor.numpy() for name, tensor in example.inputs.items()}
