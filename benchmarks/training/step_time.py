"""Times a training step of a linear layer and its norm: LayerNorm, centered weights, RMSNorm.

    python -m benchmarks.training.step_time [--rounds 15] [--device cpu|cuda] [--out ...csv]

Forward and backward of one layer, W: [m, p], and its norm over ``rows`` vectors (batch times
sequence), float32. Section 5.3 of "Enjoy your Layer Normalization ...": centering the weight costs
m * p, the mean of LayerNorm m * rows, so it pays if rows > p. ``ratio``: the time with
LayerNorm over the variant's, the median of rounds in which all three are timed in turns, and its
10th and 90th percentile; above 1 the variant is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.rows import RESULTS, Conditions, conditions, write
from benchmarks.training.figures import draw
from onnxfold.runtime.interleaved_timing import RunCounts, take_turns
from onnxfold.torch import cbwc

WIDTHS = (256, 1024)
ROWS = (64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(Conditions):
    """The ratio of the times of a step with LayerNorm and with a variant."""

    torch: str
    device: str
    threads: int
    variant: str
    width: int
    rows: int
    milliseconds: float
    ratio: float
    ratio_p10: float
    ratio_p90: float


def step(model: nn.Module, x: torch.Tensor) -> None:
    """Run forward and backward; the gradients are set, not added to."""
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()


def variants(width: int) -> dict[str, nn.Module]:
    return {
        "layer_norm": nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)),
        "centred weights": nn.Sequential(cbwc(nn.Linear(width, width)), nn.RMSNorm(width, 1e-5)),
        "rms_norm": nn.Sequential(nn.Linear(width, width), nn.RMSNorm(width, 1e-5)),
    }


def measured(width: int, rows: int, device: str, rounds: int) -> list[StepRow]:
    """Return a row for each variant."""
    models = {name: model.to(device) for name, model in variants(width).items()}
    x = torch.randn(rows, width, device=device, requires_grad=True)
    runs: list[Callable[[], object]] = [partial(step, model, x) for model in models.values()]
    for run in runs:
        run()
    seconds = take_turns(runs, RunCounts(rounds))
    ratios = seconds[0] / seconds
    return [
        StepRow(
            **conditions(),
            torch=torch.__version__,
            device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
            threads=torch.get_num_threads(),
            variant=name,
            width=width,
            rows=rows,
            milliseconds=round(1e3 * float(np.median(seconds[index])), 4),
            ratio=round(float(np.median(ratios[index])), 3),
            ratio_p10=round(float(np.quantile(ratios[index], 0.1)), 3),
            ratio_p90=round(float(np.quantile(ratios[index], 0.9)), 3),
        )
        for index, name in enumerate(models)
    ]


def _draw(rows: list[StepRow], path: Path) -> None:
    panels = []
    for width in dict.fromkeys(row.width for row in rows):
        lines = {}
        for variant in dict.fromkeys(row.variant for row in rows if row.variant != "layer_norm"):
            chosen = [row for row in rows if (row.width, row.variant) == (width, variant)]
            lines[variant] = ([row.rows for row in chosen], [row.ratio for row in chosen])
        panels.append((f"width {width}: time of LayerNorm / time", lines))
    draw(path, "rows (batch times sequence)", panels)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--out", type=Path, default=RESULTS / "training_step_time.csv")
    given = parser.parse_args(words)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: list[StepRow] = []
    for width in given.widths:
        for count in given.rows:
            rows += measured(width, count, given.device, given.rounds)
            for row in rows[-3:]:
                print(f"{width} {count} {row.variant}: {row.milliseconds} ms, {row.ratio}")
    write(given.out, rows)
    _draw(rows, given.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
