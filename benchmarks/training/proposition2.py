"""Trains an MLP with LayerNorm, one with centered weights and RMSNorm, and one with RMSNorm alone.

    python -m benchmarks.training.proposition2 [--epochs 40] [--out benchmarks/results/...csv]

Proposition 2 of "Enjoy your Layer Normalization ..." says that the first two are one training; its
H.4.1 has depth 6, width 256, 40 epochs, learning rate 0.01 and batch 256, and a difference of the
trained weights below 1e-5. The data here are scikit-learn's digits (UCI, public domain: 1,797
images of 8 by 8), the optimizer is SGD; all start from the same weights and see the same batches.
``difference`` is max |W - W'| over all weights and biases, W' of the model with LayerNorm;
``accuracy`` is measured on the 360 held-out images. A fourth, the control, is the model with
LayerNorm again, with every batch in reverse: it differs by the rounding of sums alone.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import RESULTS, Conditions, conditions, write
from benchmarks.training.figures import draw
from onnxfold.torch import cbwc

DEPTH, WIDTH, CLASSES, PIXELS = 6, 256, 10, 64
RATE, BATCH, HELD_OUT = 0.01, 256, 360
SEEDS = 2
REVERSED = "layer_norm, batches reversed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRow(Conditions):
    """The distance between a variant's weights and the model's with LayerNorm."""

    torch: str
    variant: str
    dtype: str
    seed: int
    epoch: int
    difference: float
    loss: float
    accuracy: float


class Mlp(nn.Module):
    """Linear, norm, ReLU, so many times, and a head; the norm lacks an affine part."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [PIXELS, *[WIDTH] * DEPTH]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.norm = functional.layer_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = functional.relu(self.norm(layer(x), (WIDTH,), eps=1e-5))
        logits: torch.Tensor = self.head(x)
        return logits


def variants(dtype: torch.dtype) -> dict[str, Mlp]:
    """Return the three models, from the same weights."""
    plain = Mlp().to(dtype)
    centred, rms = copy.deepcopy(plain), copy.deepcopy(plain)
    for layer in centred.layers:
        cbwc(layer)
    centred.norm = rms.norm = functional.rms_norm
    again = copy.deepcopy(plain)
    return {"layer_norm": plain, "centred weights": centred, "rms_norm": rms, REVERSED: again}


def parameters(model: Mlp) -> list[torch.Tensor]:
    """Return what is trained, in one order for all variants."""
    named = dict(model.named_parameters())
    plain = {
        name.replace("parametrizations.", "").removesuffix(".original"): name for name in named
    }
    return [named[plain[name]].detach() for name in sorted(plain)]


def data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits, in an order that is always the same."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data / 16, dtype=dtype)[order]
    return images, torch.tensor(digits.target)[order]


def train(dtype: torch.dtype, seed: int, epochs: int) -> list[ProxyRow]:
    """Train the four side by side; return a row for each and each epoch."""
    torch.manual_seed(seed)
    models = variants(dtype)
    optimizers = {n: torch.optim.SGD(m.parameters(), lr=RATE) for n, m in models.items()}
    images, labels = data(dtype)
    rows: list[ProxyRow] = []
    for epoch in range(1, epochs + 1):
        order = HELD_OUT + torch.randperm(len(images) - HELD_OUT)
        losses = dict.fromkeys(models, 0.0)
        for batch in order.split(BATCH):
            for name, model in models.items():
                optimizers[name].zero_grad()
                chosen = batch.flip(0) if name == REVERSED else batch
                loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
                loss.backward()
                optimizers[name].step()
                losses[name] = float(loss.detach())
        rows += [
            _row(name, model, models["layer_norm"], losses[name], (dtype, seed, epoch))
            for name, model in models.items()
        ]
    return rows


def _row(
    name: str, model: Mlp, plain: Mlp, loss: float, point: tuple[torch.dtype, int, int]
) -> ProxyRow:
    dtype, seed, epoch = point
    images, labels = data(dtype)
    pairs = zip(parameters(model), parameters(plain), strict=True)
    with torch.no_grad():
        right = model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]
    return ProxyRow(
        **conditions(),
        torch=torch.__version__,
        variant=name,
        dtype=str(dtype).removeprefix("torch."),
        seed=seed,
        epoch=epoch,
        difference=max(float((a - b).abs().max()) for a, b in pairs),
        loss=round(loss, 6),
        accuracy=round(float(right.float().mean()), 4),
    )


def _draw(rows: list[ProxyRow], path: Path) -> None:
    panels = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        lines = {}
        for variant in dict.fromkeys(row.variant for row in rows if row.variant != "layer_norm"):
            key = (dtype, variant, 0)
            chosen = [row for row in rows if (row.dtype, row.variant, row.seed) == key]
            lines[variant] = ([row.epoch for row in chosen], [row.difference for row in chosen])
        panels.append((f"max |W - W'|, {dtype}, seed 0", lines))
    draw(path, "epoch", panels, log=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS / "training_proposition2.csv")
    given = parser.parse_args(words)
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    rows: list[ProxyRow] = []
    for dtype in (torch.float32, torch.float64):
        for seed in range(given.seeds):
            rows += train(dtype, seed, given.epochs)
            for row in rows[-4:]:
                print(f"{row.dtype} seed {seed} {row.variant}: {row.difference:.1e} {row.accuracy}")
    write(given.out, rows)
    _draw(rows, given.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
