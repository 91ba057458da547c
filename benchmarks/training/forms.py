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

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn

from benchmarks.harness import quantiles
from benchmarks.rows import Row, read
from benchmarks.training.figures import draw
from benchmarks.training.inexact import POINTS, RATE, Task, translation
from benchmarks.training.together import (
    CENTRED,
    LAYER_NORM,
    RMS_WITH_BETA,
    Run,
    experiment,
    folded,
    options,
    train,
    with_betas,
    with_norms,
)
from onnxfold.torch import compress

CRMS, NONE = "crms_norm", "none"
STEPS = {"tiny": 2, "small": 300, "full": 20000}
WIDTHS = {"tiny": (8,), "small": (32, 256), "full": (512,)}


def forms(model: nn.Module, example: torch.Tensor) -> dict[str, nn.Module]:
    """Return a model in its forms; the first three are one function."""
    centred, compressed = (folded(model, example)[0] for _ in range(2))
    compress(compressed, (example,))
    return {
        LAYER_NORM: model,
        CENTRED: centred,
        CRMS: compressed,
        RMS_WITH_BETA: with_betas(model),
        NONE: with_norms(model, lambda _: nn.Identity()),
    }


def trained(width: int, seed: int, plain: Task, scale: str) -> list[Row]:
    """Train all forms from one seed, side by side."""
    torch.manual_seed(seed)
    task = replace(plain, shape=replace(plain.shape, dropout=0.0, width=width))
    models, steps = forms(task.model(), task.inputs[:2]), STEPS[scale]
    optimize = partial(torch.optim.AdamW, lr=RATE)
    runs = {name: Run(model, optimize) for name, model in models.items()}
    rows, every = list[Row](), max(steps // POINTS, 1)
    for step in train(runs, task.batches(steps), task.loss, seed):
        if step % every == 0:
            rows += [_row(task, runs, name, seed, slice(-every, None)) for name in runs]
    return rows


def _row(task: Task, runs: dict[str, Run], name: str, seed: int, last: slice) -> Row:
    """A form after a step: ``loss`` and times of the steps since the last row, and held-out."""
    held_out, score = task.measure(runs[name].model)
    seconds = np.array(runs[name].seconds[last])
    ratios = np.array(runs[LAYER_NORM].seconds[last]) / seconds
    return Row(
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        variant=name,
        width=task.shape.width,
        layers=task.shape.layers,
        seed=seed,
        step=len(runs[name].losses),
        loss=round(float(np.mean(runs[name].losses[last])), 5),
        held_out_loss=round(held_out, 5),
        score=round(score, 5),
        milliseconds=round(1e3 * float(np.median(seconds)), 3),
        **quantiles(ratios, 3, ratio=50, ratio_p10=10, ratio_p90=90),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Train what the file lacks, and draw all of it."""
    given = options("forms", __doc__, words)
    cases = [{"width": w, "seed": s} for s, w in product(range(given.seeds), WIDTHS[given.scale])]
    plain = translation(given.scale)
    experiment(given.out, cases, partial(trained, plain=plain, scale=given.scale))
    title = "translation, {} wide: held-out loss".format
    draw(given.out, read(given.out), lambda row: title(row["width"]), "step", "held_out_loss")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
