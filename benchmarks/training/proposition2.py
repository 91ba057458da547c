"""Trains an MLP with LayerNorm, one with centered weights and RMSNorm, and one with RMSNorm alone.

    python -m benchmarks.training.proposition2 [--epochs 40] [--out benchmarks/results/...csv]

Proposition 2 of "Enjoy your Layer Normalization ..." says that the first two are one training; its
H.4.1 has depth 6, width 256, 40 epochs, learning rate 0.01 and batch 256, and a difference of the
trained weights below 1e-5. The data here are scikit-learn's digits (UCI, public domain: 1,797
images of 8 by 8), the optimizer is SGD; all start from the same weights and see the same batches.
``difference`` is max |W - W'| over all weights and biases, W' of the model with LayerNorm;
``accuracy`` is measured on the 360 held-out images. A fourth, the control, is the model with
LayerNorm again, with every batch in reverse: it differs by the rounding of sums alone. Rows of a
type and seed are kept as they end, and not run again.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import product

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Row, read
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import (
    CENTRED,
    LAYER_NORM,
    RMS_NORM,
    Run,
    experiment,
    options,
    train,
    with_rms,
)
from onnxfold.torch import cbwc

DEPTH, WIDTH, CLASSES, PIXELS = 6, 256, 10, 64
RATE, BATCH, HELD_OUT = 0.01, 256, 360
REVERSED = "layer_norm, batches reversed"


def variants() -> dict[str, nn.Sequential]:
    """Return the four models, from the same weights: linear, norm, ReLU, six times, and a head."""
    layers: list[nn.Module] = []
    for size in (PIXELS, *[WIDTH] * (DEPTH - 1)):
        norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        layers += [nn.Linear(size, WIDTH), norm, nn.ReLU()]
    plain = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    centred, rms = with_rms(plain), with_rms(plain)
    for layer in list(centred)[:-1:3]:
        cbwc(layer)
    return {LAYER_NORM: plain, CENTRED: centred, RMS_NORM: rms, REVERSED: copy.deepcopy(plain)}


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """Return what is trained, in one order for all variants."""
    plain = {
        name.replace("parametrizations.", "").removesuffix(".original"): parameter.detach()
        for name, parameter in model.named_parameters()
    }
    return [plain[name] for name in sorted(plain)]


def trained(dtype: str, seed: int, epochs: int) -> list[Row]:
    """Train the four side by side; return a row for each and each epoch."""
    torch.manual_seed(seed)
    models = {name: model.to(getattr(torch, dtype)) for name, model in variants().items()}
    runs = {name: Run(each, partial(torch.optim.SGD, lr=RATE)) for name, each in models.items()}
    images, labels = data.digits()
    images = images.flatten(1).to(getattr(torch, dtype))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        chosen = batch.flip(0) if model is models[REVERSED] else batch
        return functional.cross_entropy(model(images[chosen]), labels[chosen])

    rows: list[Row] = []
    for epoch in range(1, epochs + 1):
        order = HELD_OUT + torch.randperm(len(images) - HELD_OUT)
        for _ in train(runs, order.split(BATCH), loss, seed * epochs + epoch):
            pass
        for name, model in models.items():
            pairs = zip(parameters(model), parameters(models[LAYER_NORM]), strict=True)
            with torch.no_grad():
                right = model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]
            row = Row(
                torch=torch.__version__,
                variant=name,
                dtype=dtype,
                seed=seed,
                epoch=epoch,
                difference=max(float((a - b).abs().max()) for a, b in pairs),
                loss=round(runs[name].losses[-1], 6),
                accuracy=round(float(right.float().mean()), 4),
            )
            rows.append(row)
    return rows


def main(words: list[str] | None = None) -> int:
    """Train what the file lacks, and draw the differences of the first seed."""
    given = options("proposition2", __doc__, words, epochs=40)
    pairs = product(("float32", "float64"), range(given.seeds))
    cases = [{"dtype": dtype, "seed": seed} for dtype, seed in pairs]
    experiment(given.out, cases, partial(trained, epochs=given.epochs))
    rows = [r for r in read(given.out) if r["seed"] == "0" and r["variant"] != LAYER_NORM]
    title = "max |W - W'|, {}, seed 0".format
    draw(given.out, rows, lambda row: title(row["dtype"]), "epoch", "difference", log=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
