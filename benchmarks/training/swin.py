"""Image classification with a small Swin: LayerNorm, centered weights, RMSNorm.

    python -m benchmarks.training.swin [--scale small|full] [--seeds 5] [--out ...csv]

Section 5.4 of "Enjoy your Layer Normalization ...", with scikit-learn's digits, twice as large, in
the place of its images, and learning rates 1e-2, 3e-3, 1e-3: with the paper's, down to 1e-5, and
its first weights, models this narrow learn nothing in minutes.  Only the norms of the last stage
fold: the merging of patches concatenates along the channels.  ``accuracy``: of the 360 held out;
``step_ms``: the median of a step's processor time (in rows of 2026-11 without the optimizer's).
Rows of a rate and seed are kept as they end, and not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

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
    folded,
    options,
    train,
    with_rms,
)

HELD_OUT, BATCH = 360, 32
RATES = (1e-2, 3e-3, 1e-3)
EPOCHS = {"tiny": 1, "small": 20, "full": 200}
WIDTHS = {"tiny": 8, "small": 32, "full": 96}
DEPTHS = {"tiny": [1, 1], "small": [1, 1], "full": [2, 2]}


def made(scale: str) -> nn.Module:
    """Return an untrained Swin."""
    import transformers

    config = transformers.SwinConfig(
        image_size=16, num_channels=1, patch_size=2, embed_dim=WIDTHS[scale], depths=DEPTHS[scale],
        num_heads=[2, 4], window_size=4, num_labels=10, drop_path_rate=0.0, initializer_range=0.1,
    )  # fmt: skip
    model: nn.Module = transformers.SwinForImageClassification(config)
    return model


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).logits, batch[1])


def trained(rate: float, seed: int, epochs: int, scale: str, device: str) -> list[Row]:
    """Train the three from one seed."""
    torch.manual_seed(seed)
    images, labels = data.digits()
    large = functional.interpolate(images[:, None], scale_factor=2)
    model = made(scale)
    centred, report = folded(model, large[:2], dropout="recentre")
    models = {LAYER_NORM: model, CENTRED: centred, RMS_NORM: with_rms(model)}

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(epochs):
            order = HELD_OUT + torch.randperm(len(large) - HELD_OUT)
            yield from ((large[part], labels[part]) for part in order.split(BATCH))

    runs = {name: Run(each, partial(torch.optim.AdamW, lr=rate)) for name, each in models.items()}
    for _ in train(runs, batches(), loss, seed, device):
        pass
    rows = []
    for name, run in runs.items():
        with torch.no_grad():
            guess = run.model.eval()(large[:HELD_OUT].to(device)).logits.argmax(1).cpu()
        rows.append(
            Row(
                torch=torch.__version__,
                variant=name,
                rate=rate,
                seed=seed,
                epochs=epochs,
                folded_norms=len(report.folded) if name == CENTRED else 0,
                loss=round(run.losses[-1], 5),
                accuracy=round(float((guess == labels[:HELD_OUT]).float().mean()), 4),
                step_ms=round(1e3 * statistics.median(run.seconds), 3),
            )
        )
    return rows


def main(words: list[str] | None = None) -> int:
    """Train what the file lacks, and draw all of it."""
    given = options("swin", __doc__, words)
    epochs = EPOCHS[given.scale]
    seeds = range(given.seeds)
    cases = [{"rate": r, "seed": seed, "epochs": epochs} for seed in seeds for r in RATES]
    experiment(given.out, cases, partial(trained, scale=given.scale, device=given.device))
    rows = read(given.out)
    draw(given.out, rows, lambda row: f"accuracy, rate {row['rate']}", "seed", "accuracy")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
