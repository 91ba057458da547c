"""Times a training step of a linear layer and its norm: LayerNorm, centered weights, RMSNorm.

    python -m benchmarks.training.step_time [--rounds 15] [--device cpu|cuda] [--out ...csv]

Forward and backward of one layer, W: [m, p], and its norm over ``rows`` vectors (batch times
sequence), float32. Section 5.3 of "Enjoy your Layer Normalization ...": centering the weight costs
m * p, the mean of LayerNorm m * rows, so it pays if rows > p. ``ratio``: the time with
LayerNorm over the variant's, the median of rounds in which all three are timed in turns, and its
10th and 90th percentile; above 1 the variant is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn

from benchmarks.harness import quantiles
from benchmarks.rows import Row, read, tell, write
from benchmarks.training.figures import draw
from benchmarks.training.together import CENTRED, LAYER_NORM, RMS_NORM, options
from onnxfold.runtime.interleaved_timing import RunCounts, take_turns
from onnxfold.torch import cbwc


def step(model: nn.Module, x: torch.Tensor) -> None:
    """Run forward and backward; the gradients are set, not added to."""
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()


def measured(width: int, rows: int, device: str, rounds: int) -> list[Row]:
    """Return a row for each variant."""
    models = {
        LAYER_NORM: nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)),
        CENTRED: nn.Sequential(cbwc(nn.Linear(width, width)), nn.RMSNorm(width, 1e-5)),
        RMS_NORM: nn.Sequential(nn.Linear(width, width), nn.RMSNorm(width, 1e-5)),
    }
    x = torch.randn(rows, width, device=device, requires_grad=True)
    runs: list[Callable[[], object]] = [partial(step, m.to(device), x) for m in models.values()]
    for run in runs:
        run()
    seconds = take_turns(runs, RunCounts(rounds))
    return [
        Row(
            torch=torch.__version__,
            device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
            threads=torch.get_num_threads(),
            variant=name,
            width=width,
            rows=rows,
            milliseconds=round(1e3 * float(np.median(own)), 4),
            **quantiles(seconds[0] / own, 3, ratio=50, ratio_p10=10, ratio_p90=90),
        )
        for name, own in zip(models, seconds, strict=True)
    ]


def main(words: list[str] | None = None) -> int:
    """Measure all widths and numbers of rows, and draw the ratios."""
    sizes = {"widths": [256, 1024], "rows": [64, 256, 1024, 4096]}
    given = options("step_time", __doc__, words, rounds=15, **sizes)
    torch.manual_seed(0)
    found: list[Row] = []
    for width, rows in product(given.widths, given.rows):
        found += measured(width, rows, given.device, given.rounds)
        tell(found[-3:])
    write(given.out, found)
    others = [row for row in read(given.out) if row["variant"] != LAYER_NORM]
    draw(given.out, others, lambda row: f"width {row['width']}: LayerNorm / it", "rows", "ratio")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
