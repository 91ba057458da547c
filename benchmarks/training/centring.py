"""Train MLPs of depth 6 to 100 with LayerNorm and with RMSNorm, to see the effect of centering.

    python -m benchmarks.training.centring [--scale small|full] [--seeds 2] [--out ...csv]

Section 5.1 and appendix F of "Enjoy your Layer Normalization ...": MLPs of depth 6 to 100, plain,
and of 65 and 100 layers residual too, on scikit-learn's digits, SGD.  ``rms_norm`` has no beta, as
in torch; ``rms_norm with beta`` differs from LayerNorm by the centring alone.  Each epoch has a row
of what the linear layer, the norm and the activation of the last layer read: the mean of the
vectors' lengths, of their means, and of the share of their energy along the uniform vector; the
last epoch has rows of ten layers, evenly spaced.  Rows are kept as each training ends, and what the
file has of linear layers is not run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Conditions, conditions, has, put, read
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import (
    LAYER_NORM,
    RMS_NORM,
    RMS_WITH_BETA,
    options,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CentringRow(Conditions):
    """What a part (``what``: linear, norm, activation) of layer ``at`` reads after an epoch."""

    torch: str
    threads: int
    what: str
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


def rows_of(
    net: tuple[int, bool], variant: str, seed: int, scale: str, device: str
) -> Iterator[CentringRow]:
    """Train one and yield its rows."""
    torch.manual_seed(seed)
    depth, residual = net
    model = MADE[variant](Mlp(depth, WIDTHS[scale], residual=residual)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    images, labels = (part.to(device) for part in data.digits())
    images = images.flatten(1)
    shown = sorted({round(part * (depth - 1) / (SHOWN - 1)) for part in range(SHOWN)})
    for epoch in range(1, EPOCHS[scale] + 1):
        order = HELD_OUT + torch.randperm(len(images) - HELD_OUT)
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        watch = Watch(model)
        with torch.no_grad():
            right = model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]
        watch.end()
        last = epoch == EPOCHS[scale]
        for what, inputs in watch.read.items():
            for at in shown if last else shown[-1:]:
                yield CentringRow(
                    **conditions(),
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
                    loss=round(float(loss.detach()), 5),
                    accuracy=round(float(right.float().mean()), 4),
                )


def _figure(path: Path) -> None:
    rows = [row for row in read(path) if row["what"] == "norm" and row["seed"] == "0"]
    panels = []
    for depth, residual in sorted({(int(row["depth"]), row["residual"]) for row in rows}):
        own = [r for r in rows if (r["depth"], r["residual"]) == (str(depth), residual)]
        end = max(own, key=lambda row: int(row["epoch"]))["epoch"]
        lines = {}
        for variant in MADE:
            chosen = [r for r in own if r["variant"] == variant and r["epoch"] == end]
            lines[variant] = ([int(r["at"]) for r in chosen], [float(r["share"]) for r in chosen])
        kind = ", residual" if residual == "True" else ""
        panels.append((f"{depth} layers{kind}: share of 1", lines))
    draw(path.with_suffix(".svg"), "norm", panels)


def main(words: list[str] | None = None) -> int:
    given = options("centring", __doc__, 2).parse_args(words)
    torch.set_num_threads(1)
    key = ("depth", "residual", "variant", "seed")
    for seed in range(given.seeds):
        for net in NETS:
            for variant in MADE:
                named = dict(zip(key, (*net, variant, seed), strict=True))
                if has(given.out, what="linear", **named):
                    continue
                rows = list(rows_of(net, variant, seed, given.scale, given.device))
                put(given.out, rows, key)
                end = next(row for row in reversed(rows) if row.what == "norm")
                print(
                    f"{net[0]} {'residual' if net[1] else 'plain'} {variant} seed {seed}: accuracy "
                    f"{end.accuracy}, length {end.length}, share of the mean {end.share}",
                    flush=True,
                )
    _figure(given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
