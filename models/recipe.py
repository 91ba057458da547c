"""What a recipe is: a name, where the architecture comes from, and how to build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnxfold.errors import OnnxfoldError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Attention",
    "Builder",
    "Dtype",
    "DynamicAxes",
    "Example",
    "ExporterName",
    "NormName",
    "Recipe",
    "RequirementError",
    "Settings",
]

ExporterName = Literal["dynamo", "torchscript"]
Attention = Literal["eager", "sdpa"]
Dtype = Literal["fp32", "fp16", "bf16"]
NormName = Literal["layer", "rms", "dyt"]
DynamicAxes = Mapping[int, str]


class RequirementError(OnnxfoldError):
    """A package that the recipes need is not installed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may choose: `small` is two narrow layers instead of the full size."""

    small: bool = False
    attention: Attention = "eager"
    opset: int = 18
    exporter: ExporterName = "dynamo"
    dtype: Dtype = "fp32"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """A module with the inputs that it is traced on.

    `inputs` are passed by position, in order; `dynamic_axes` names, for each input, the axes
    that stay symbolic; `outputs` names the tensors that the module returns. `trained` weights
    are left as they are; others get distinct random norm parameters and biases.
    """

    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    dynamic_axes: Mapping[str, DynamicAxes]
    outputs: tuple[str, ...]
    trained: bool = False


Builder = Callable[[Settings], Example]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One architecture.

    `layer_norms` and `rms_norms` are the norms of the full-size model, counted from the
    architecture's definition and not from an export, so that an export can be checked against
    them. `attentions` are those that the architecture has and the exporters can write.
    """

    name: str
    build: Builder
    source: str
    licence: str
    layers: str
    why: str
    layer_norms: int = 0
    rms_norms: int = 0
    exporters: tuple[ExporterName, ...] = ("dynamo",)
    attentions: tuple[Attention, ...] = ("eager", "sdpa")
