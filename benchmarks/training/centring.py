"""Train MLPs of depth 6 to 100 with LayerNorm and with RMSNorm, to see the effect of centering.

    python -m benchmarks.training.centring [--scale small|full] [--seeds 2] [--out ...csv]

Section 5.1 and appendix F of "Enjoy your Layer Normalization ...": plain MLPs of depth 6, 15 and
35, residual ones of 65 and 100 layers, on scikit-learn's digits, SGD.  Each epoch has a row of what
the norm of the last layer reads: the mean of its vectors' lengths, of their means, and of the share
of their energy along the uniform vector; the last epoch has a row of every norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Conditions, conditions, write
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import LAYER_NORM, RMS_NORM, options, with_rms
from onnxfold.torch import StreamStatistics

HELD_OUT, RATE, BATCH = 360, 0.01, 128
NETS = ((6, False), (15, False), (35, False), (65, True), (100, True))
EPOCHS = {"tiny": 1, "small": 30, "full": 60}
WIDTHS = {"tiny": 16, "small": 48, "full": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class CentringRow(Conditions):
    """What a norm reads after an epoch; ``at`` is the number of the norm."""

    torch: str
    depth: int
    residual: bool
    variant: str
    seed: int
    epoch: int
    at: int
    length: float
    mean: float
    share: float
    loss: float
    accuracy: float


class Mlp(nn.Module):
    """Linear, norm, ReLU, so many times, with x added to each but the first where residual."""

    def __init__(self, depth: int, width: int, *, residual: bool):
        super().__init__()
        self.residual = residual
        self.layers = nn.ModuleList(nn.Linear(width if n else 64, width) for n in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            y = functional.relu(norm(layer(x)))
            x = x + y if self.residual and number else y
        logits: torch.Tensor = self.head(x)
        return logits


def rows_of(
    net: tuple[int, bool], variant: str, seed: int, scale: str, device: str
) -> Iterator[CentringRow]:
    """Train one and yield its rows."""
    torch.manual_seed(seed)
    model: nn.Module = Mlp(net[0], WIDTHS[scale], residual=net[1])
    model = (model if variant == LAYER_NORM else with_rms(model)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    images, labels = (part.to(device) for part in data.digits())
    images = images.flatten(1)
    for epoch in range(1, EPOCHS[scale] + 1):
        order = HELD_OUT + torch.randperm(len(images) - HELD_OUT)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        with torch.no_grad(), StreamStatistics(model) as statistics:
            right = model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]
        norms = list(enumerate(statistics.report()["norms"]))
        last = epoch == EPOCHS[scale]
        for at, norm in norms if last else norms[-1:]:
            yield CentringRow(
                **conditions(),
                torch=torch.__version__,
                depth=net[0],
                residual=net[1],
                variant=variant,
                seed=seed,
                epoch=epoch,
                at=at,
                **_read(norm),
                loss=round(float(loss.detach()), 5),
                accuracy=round(float(right.float().mean()), 4),
            )


def _read(norm: dict[str, Any]) -> dict[str, float]:
    before = norm["before"]
    return {
        "length": round(before["norm"]["mean"], 5),
        "mean": round(before["mean"]["mean"], 6),
        "share": round(before["uniform_share"]["mean"], 6),
    }


def main(words: list[str] | None = None) -> int:
    given = options("centring", __doc__, 2).parse_args(words)
    torch.set_num_threads(1)
    rows: list[CentringRow] = []
    for net in NETS:
        for variant in (LAYER_NORM, RMS_NORM):
            for seed in range(given.seeds):
                rows += rows_of(net, variant, seed, given.scale, given.device)
                end = rows[-1]
                print(
                    f"{net[0]} {'residual' if net[1] else 'plain'} {variant} seed {seed}: accuracy "
                    f"{end.accuracy}, length {end.length}, share of the mean {end.share}"
                )
    write(given.out, rows)
    panels = []
    for depth, residual in NETS:
        ends = [
            r for r in rows if r.depth == depth and r.epoch == EPOCHS[given.scale] and not r.seed
        ]
        lines = {
            v: ([r.at for r in ends if r.variant == v], [r.share for r in ends if r.variant == v])
            for v in (LAYER_NORM, RMS_NORM)
        }
        panels.append((f"{depth} layers{', residual' if residual else ''}: share of 1", lines))
    draw(given.out.with_suffix(".svg"), "norm", panels)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
