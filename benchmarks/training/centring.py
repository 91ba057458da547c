"""Train MLPs of depth 6 to 100 with LayerNorm and with RMSNorm, to see the effect of centering.

    python -m benchmarks.training.centring [--scale small|full] [--seeds 2] [--out ...csv]

Section 5.1 and appendix F of "Enjoy your Layer Normalization ...": MLPs of depth 6 to 100, plain,
and of 65 and 100 layers residual too, on scikit-learn's digits, SGD.  ``rms_norm`` has no beta, as
in torch; ``rms_norm with beta`` differs from LayerNorm by the centring alone.  Each epoch has a row
of what the linear layer, the norm and the activation of the last layer read: the mean of the
vectors' lengths, of their means, and of the share of their energy along the uniform vector; the
last epoch has rows of ten layers, evenly spaced.  Rows are kept as each training ends, and not run
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Row, read
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import (
    LAYER_NORM,
    RMS_NORM,
    RMS_WITH_BETA,
    Run,
    experiment,
    options,
    train,
    with_betas,
    with_rms,
)

HELD_OUT, RATE, BATCH, SHOWN = 360, 0.01, 128, 10
NETS = ((65, True), (65, False), (100, True), (100, False), (6, False), (15, False), (35, False))
MADE: dict[str, Callable[[nn.Module], nn.Module]] = {
    LAYER_NORM: lambda model: model,
    RMS_NORM: with_rms,
    RMS_WITH_BETA: with_betas,
}
EPOCHS = {"tiny": 1, "small": 30, "full": 60}
WIDTHS = {"tiny": 16, "small": 48, "full": 256}


class Mlp(nn.Module):
    """Linear, norm, ReLU, so many times, with x added to each but the first where residual."""

    def __init__(self, depth: int, width: int, *, residual: bool):
        super().__init__()
        self.residual = residual
        self.linear = nn.ModuleList(nn.Linear(width if n else 64, width) for n in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.activation = nn.ModuleList(nn.ReLU() for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = zip(self.linear, self.norm, self.activation, strict=True)
        for number, (linear, norm, activation) in enumerate(layers):
            y = activation(norm(linear(x)))
            x = x + y if self.residual and number else y
        logits: torch.Tensor = self.head(x)
        return logits


class Watch:
    """What the parts of an MLP read in one run: for each kind, the inputs from the first layer."""

    def __init__(self, model: nn.Module):
        self.read: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._handles = [
            module.register_forward_pre_hook(
                lambda _, args, what=what: self.read[what].append(args[0])
            )
            for what in ("linear", "norm", "activation")
            for module in getattr(model, what)
        ]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()


def read_by(x: torch.Tensor) -> dict[str, float]:
    """Return the means over vectors of length, mean, and share of the energy along (1, .., 1)."""
    energy, mean = x.square().sum(1), x.mean(1)
    share = x.shape[1] * mean.square() / energy
    return {
        "length": round(float(energy.sqrt().mean()), 5),
        "mean": round(float(mean.mean()), 6),
        "share": round(float(share[energy > 0].mean()), 6) if bool((energy > 0).any()) else 0.0,
    }


def trained(
    depth: int, residual: bool, variant: str, seed: int, scale: str, device: str
) -> list[Row]:
    """Train one and return its rows: what a part of layer ``at`` reads after an epoch."""
    torch.manual_seed(seed)
    model = MADE[variant](Mlp(depth, WIDTHS[scale], residual=residual)).to(device)
    run = Run(model, partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    images, labels = (part.to(device) for part in data.digits())
    images = images.flatten(1)
    shown = sorted({round(part * (depth - 1) / (SHOWN - 1)) for part in range(SHOWN)})

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images[batch]), labels[batch])

    rows = []
    for epoch in range(1, EPOCHS[scale] + 1):
        order = HELD_OUT + torch.randperm(len(images) - HELD_OUT)
        for _ in train({variant: run}, order.split(BATCH), loss, seed * EPOCHS[scale] + epoch):
            pass
        watch = Watch(model)
        with torch.no_grad():
            right = model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]
        watch.end()
        last = epoch == EPOCHS[scale]
        for what, inputs in watch.read.items():
            for at in shown if last else shown[-1:]:
                row = Row(
                    torch=torch.__version__,
                    threads=torch.get_num_threads(),
                    what=what,
                    depth=depth,
                    residual=residual,
                    variant=variant,
                    seed=seed,
                    epoch=epoch,
                    at=at,
                    **read_by(inputs[at]),
                    loss=round(run.losses[-1], 5),
                    accuracy=round(float(right.float().mean()), 4),
                )
                rows.append(row)
    return rows


def main(words: list[str] | None = None) -> int:
    """Train what the file lacks, and draw the share of the mean that the norms read."""
    given = options("centring", __doc__, words, seeds=2)
    keys = ("seed", "depth", "residual", "variant")
    every = product(range(given.seeds), NETS, MADE)
    cases = [dict(zip(keys, (seed, *net, name), strict=True)) for seed, net, name in every]
    experiment(given.out, cases, partial(trained, scale=given.scale, device=given.device))
    rows = [row for row in read(given.out) if row["what"] == "norm" and row["seed"] == "0"]
    last = max((row["epoch"] for row in rows), key=int)
    draw(
        given.out,
        [row for row in rows if row["epoch"] == last],
        lambda row: f"{row['depth']} layers{', residual' * (row['residual'] == 'True')}: share",
        "at",
        "share",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
