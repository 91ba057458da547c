"""Models that differ in their norms alone, trained side by side on the same batches."""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.rows import RESULTS
from onnxfold.torch import RMSNorm, fold

__all__ = [
    "CENTRED",
    "LAYER_NORM",
    "RMS_NORM",
    "RMS_WITH_BETA",
    "Run",
    "options",
    "train",
    "variants",
    "with_betas",
    "with_norms",
    "with_rms",
]

LAYER_NORM, CENTRED, RMS_NORM = "layer_norm", "centred weights", "rms_norm"
RMS_WITH_BETA = "rms_norm with beta"
Loss = Callable[[nn.Module, Any], torch.Tensor]


def options(name: str, description: str | None, seeds: int) -> argparse.ArgumentParser:
    """Return the options that every experiment has."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--scale", choices=["tiny", "small", "full"], default="small")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder of downloads (build/training_data)")
    parser.add_argument("--out", type=Path, default=RESULTS / f"training_{name}.csv")
    return parser


def with_rms(model: nn.Module) -> nn.Module:
    """Return a copy with RMSNorm, without beta, in the place of every LayerNorm."""
    return with_norms(model, lambda norm: nn.RMSNorm(norm.normalized_shape, norm.eps))


def with_betas(model: nn.Module) -> nn.Module:
    """Return a copy with RMSNorm of the same gamma and beta in the place of every LayerNorm."""
    return with_norms(model, RMSNorm.of)


def with_norms(model: nn.Module, norm: Callable[[nn.LayerNorm], nn.Module]) -> nn.Module:
    """Return a copy with something else in the place of every LayerNorm."""
    made = copy.deepcopy(model)
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, norm(child))
    return made


def variants(model: nn.Module, example: tuple[Any, ...]) -> tuple[dict[str, nn.Module], int]:
    """Return the three models from the same weights, and how many norms the folded one has."""
    folded = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, on its own code
        report = fold(folded, example, dropout="recentre")
    made = {LAYER_NORM: model, CENTRED: folded, RMS_NORM: with_rms(model)}
    return made, len(report.folded)


@dataclass(slots=True)
class Run:
    """The losses of a model's steps, and the milliseconds of each, forward and backward."""

    losses: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def train(
    models: dict[str, nn.Module], batches: Iterable[Any], loss: Loss, rate: float, device: str
) -> dict[str, Run]:
    """Train all on every batch in turn with AdamW, with the same dropout masks."""
    runs = {name: Run() for name in models}
    optimizers = {}
    for name, model in models.items():
        model.to(device).train()
        optimizers[name] = torch.optim.AdamW(model.parameters(), lr=rate)
    for step, batch in enumerate(batches):
        moved = pytree.tree_map(lambda part: part.to(device), batch)
        for name, model in models.items():
            torch.manual_seed(step)
            optimizers[name].zero_grad()
            start = time.perf_counter()
            value = loss(model, moved)
            value.backward()
            runs[name].losses.append(float(value.detach()))  # waits for the device
            runs[name].milliseconds.append(1e3 * (time.perf_counter() - start))
            optimizers[name].step()
    return runs
