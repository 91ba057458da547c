"""Models that differ in their norms alone, trained side by side on the same batches."""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, has, put, tell
from onnxfold.torch import RMSNorm, fold

__all__ = [
    "CENTRED",
    "LAYER_NORM",
    "RMS_NORM",
    "RMS_WITH_BETA",
    "Run",
    "experiment",
    "folded",
    "options",
    "train",
    "with_betas",
    "with_norms",
    "with_rms",
]

LAYER_NORM, CENTRED, RMS_NORM = "layer_norm", "centred weights", "rms_norm"
RMS_WITH_BETA = "rms_norm with beta"
Loss = Callable[[nn.Module, Any], torch.Tensor]
Optimize = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def options(
    name: str, document: str | None, words: Sequence[str] | None, *, seeds: int = 5, **more: Any
) -> argparse.Namespace:
    """Read the options of an experiment, on one thread: sums in one order, whatever the machine."""
    torch.set_num_threads(1)
    given = {
        "--scale": {"choices": ["tiny", "small", "full"], "default": "small"},
        "--seeds": seeds,
        "--device": "cuda" if torch.cuda.is_available() else "cpu",
        "--data": {"type": Path, "help": "folder of downloads (build/training_data)"},
        "--out": RESULTS / f"training_{name}.csv",
    }
    return arguments(document, {**given, **{f"--{key}": one for key, one in more.items()}}, words)


def experiment(
    out: Path, cases: Iterable[Mapping[str, Any]], measured: Callable[..., list[Row]]
) -> None:
    """Measure each case that the file lacks, and keep and print its rows as it ends."""
    for case in cases:
        if not has(out, **case):
            rows = measured(**case)
            put(out, rows, list(case))
            tell(rows)


def with_rms(model: nn.Module) -> nn.Module:
    """Return a copy with RMSNorm, without beta, in the place of every LayerNorm."""
    return with_norms(model, lambda n: nn.RMSNorm(n.normalized_shape, n.eps, n.elementwise_affine))


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


def folded(model: nn.Module, example: torch.Tensor, **how: Any) -> tuple[nn.Module, Any]:
    """Return a folded copy of a model, and the report."""
    made = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, and that it is inexact
        return made, fold(made, (example,), **how)


class Run:
    """A model in training: its losses and its processor's seconds, step by step."""

    def __init__(self, model: nn.Module, optimize: Optimize) -> None:
        self.model, self.optimizer = model, optimize(model.parameters())
        self.losses, self.seconds = list[float](), list[float]()

    def step(self, loss: Loss, batch: Any) -> None:
        """Forward, backward, and a step of the optimizer."""
        start = time.process_time()
        self.optimizer.zero_grad()
        value = loss(self.model, batch)
        value.backward()
        self.optimizer.step()
        self.losses.append(float(value.detach()))  # waits for the device
        self.seconds.append(time.process_time() - start)


def train(
    runs: Mapping[str, Run], batches: Iterable[Any], loss: Loss, seed: int, device: str = "cpu"
) -> Iterator[int]:
    """Train all on every batch in turn, with the same dropout masks; yield the number of steps."""
    for run in runs.values():
        run.model.to(device).train()
    for step, batch in enumerate(batches, 1):
        moved = pytree.tree_map(lambda part: part.to(device), batch)
        for run in runs.values():
            torch.manual_seed((seed << 32) + 2 * step)
            run.step(loss, moved)
        torch.manual_seed((seed << 32) + 2 * step + 1)  # of the next batch, whatever was drawn
        yield step
