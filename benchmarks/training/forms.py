"""Trains one Transformer in four forms of its norms, and times their steps in turns.

    python -m benchmarks.training.forms [--scale small|full] [--seeds 5] [--out ...csv]

Sections 3.4.2 and 4.1 of "Pre-RMSNorm and Pre-CRMSNorm Transformers ...".  Of two widths,
from the same weights, on the same sentences of the language of benchmarks.training.inexact,
without dropout:

* ``layer_norm``; ``centred weights``: folded, with RMSNorm; ``crms_norm``: folded and compressed,
  with a stream of d - 1 channels; these three are one function, so their curves must be one;
* ``rms_norm with beta``: RMSNorm in the place, another function;
* ``none``: no norms at all, which bounds what any form of them can save.

A time is processor time, forward, backward and AdamW, which other work on the machine does not
lengthen as it does the time on the clock; every step runs all forms in turns.  ``ratio`` is the
median over the steps since the last row of LayerNorm's time to the form's, with the 10th and 90th
percentile.  Rows of a seed are kept as it ends, and not run again.
"""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.rows import Conditions, conditions, has, put, read
from benchmarks.training.figures import draw
from benchmarks.training.inexact import RATE, Task, translation
from benchmarks.training.together import (
    CENTRED,
    LAYER_NORM,
    RMS_WITH_BETA,
    options,
    with_betas,
    with_norms,
)
from onnxfold.torch import compress, fold

CRMS, NONE = "crms_norm", "none"
STEPS, POINTS = {"tiny": 2, "small": 300, "full": 20000}, 10
WIDTHS = {"tiny": (8,), "small": (32, 256), "full": (512,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRow(Conditions):
    """A form after a step: ``loss`` and times of the steps since the last row, and held-out."""

    torch: str
    threads: int
    variant: str
    width: int
    layers: int
    seed: int
    step: int
    loss: float
    held_out_loss: float
    score: float
    milliseconds: float
    ratio: float
    ratio_p10: float
    ratio_p90: float


def forms(model: nn.Module, example: torch.Tensor) -> dict[str, nn.Module]:
    """Return a model in its forms; the first three are one function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, on its own code
        folded = copy.deepcopy(model)
        fold(folded, (example,))
        compressed = copy.deepcopy(folded)
        compress(compressed, (example,))
    return {
        LAYER_NORM: model,
        CENTRED: folded,
        CRMS: compressed,
        RMS_WITH_BETA: with_betas(model),
        NONE: with_norms(model, lambda _: nn.Identity()),
    }


def trained(task: Task, seed: int, scale: str) -> list[FormRow]:
    """Train all forms from one seed, side by side."""
    torch.manual_seed(seed)
    models, steps = forms(task.model(), task.inputs[:2]), STEPS[scale]
    optimizers = {n: torch.optim.AdamW(m.parameters(), lr=RATE) for n, m in models.items()}
    losses: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    rows = []
    for step, batch in enumerate(task.batches(steps), 1):
        for name, model in models.items():
            start = time.process_time()
            optimizers[name].zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizers[name].step()
            seconds[name].append(time.process_time() - start)
            losses[name].append(float(loss.detach()))
        if step % max(steps // POINTS, 1) == 0:
            for name, model in models.items():
                ratios = np.divide(seconds[LAYER_NORM], seconds[name])
                held_out, score = task.measure(model)
                rows.append(
                    FormRow(
                        **conditions(),
                        torch=torch.__version__,
                        threads=torch.get_num_threads(),
                        variant=name,
                        width=task.shape.width,
                        layers=task.shape.layers,
                        seed=seed,
                        step=step,
                        loss=round(float(np.mean(losses[name])), 5),
                        held_out_loss=round(held_out, 5),
                        score=round(score, 5),
                        milliseconds=round(1e3 * float(np.median(seconds[name])), 3),
                        ratio=round(float(np.median(ratios)), 3),
                        ratio_p10=round(float(np.quantile(ratios, 0.1)), 3),
                        ratio_p90=round(float(np.quantile(ratios, 0.9)), 3),
                    )
                )
            for name in models:
                losses[name].clear()
                seconds[name].clear()
    return rows


def _figure(path: Path) -> None:
    rows, panels = read(path), []
    for width in dict.fromkeys(row["width"] for row in rows):
        lines = {}
        for variant in dict.fromkeys(row["variant"] for row in rows):
            chosen = [row for row in rows if (row["width"], row["variant"]) == (width, variant)]
            steps = sorted({int(row["step"]) for row in chosen})
            means = [
                np.mean([float(r["held_out_loss"]) for r in chosen if r["step"] == str(step)])
                for step in steps
            ]
            lines[variant] = (steps, [float(middle) for middle in means])
        panels.append((f"translation, {width} wide: held-out loss", lines))
    draw(path.with_suffix(".svg"), "step", panels)


def main(words: list[str] | None = None) -> int:
    given = options("forms", __doc__, 5).parse_args(words)
    torch.set_num_threads(1)
    plain = translation(given.scale)
    for seed, width in product(range(given.seeds), WIDTHS[given.scale]):
        if has(given.out, width=width, seed=seed):
            continue
        task = replace(plain, shape=replace(plain.shape, dropout=0.0, width=width))
        rows = trained(task, seed, given.scale)
        put(given.out, rows, ("width", "seed"))
        for row in rows[-5:]:
            print(
                f"{width} wide, seed {seed} {row.variant}: loss {row.held_out_loss}, score "
                f"{row.score}, {row.milliseconds} ms, {row.ratio} "
                f"({row.ratio_p10} to {row.ratio_p90})",
                flush=True,
            )
    _figure(given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
