"""Image classification with a small Swin: LayerNorm, centered weights, RMSNorm.

    python -m benchmarks.training.swin [--scale small|full] [--seeds 5] [--out ...csv]

Section 5.4 of "Enjoy your Layer Normalization ...", with scikit-learn's digits, twice as large, in
the place of its images, and learning rates 1e-2, 3e-3, 1e-3: with the paper's, down to 1e-5, and
its first weights, models this narrow learn nothing in minutes.  Only the norms of the last stage
fold: the merging of patches concatenates along the channels.  ``accuracy``: of the 360 held out.
Rows of a rate and seed are kept as they end, and not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Conditions, conditions, has, put, read
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import CENTRED, options, train, variants

HELD_OUT, BATCH = 360, 32
RATES = (1e-2, 3e-3, 1e-3)
EPOCHS = {"tiny": 1, "small": 20, "full": 200}
WIDTHS = {"tiny": 8, "small": 32, "full": 96}
DEPTHS = {"tiny": [1, 1], "small": [1, 1], "full": [2, 2]}


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinRow(Conditions):
    """A trained Swin."""

    torch: str
    variant: str
    rate: float
    seed: int
    epochs: int
    folded_norms: int
    loss: float
    accuracy: float
    step_ms: float


def made(scale: str) -> nn.Module:
    import transformers

    config = transformers.SwinConfig(
        image_size=16,
        num_channels=1,
        patch_size=2,
        embed_dim=WIDTHS[scale],
        depths=DEPTHS[scale],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
        drop_path_rate=0.0,
        initializer_range=0.1,
    )
    model: nn.Module = transformers.SwinForImageClassification(config)
    return model


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).logits, batch[1])


def trained(rate: float, seed: int, given: Any) -> list[SwinRow]:
    """Train the three from one seed."""
    torch.manual_seed(seed)
    images, labels = data.digits()
    large = functional.interpolate(images[:, None], scale_factor=2)
    models, folded = variants(made(given.scale), (large[:2],))

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(EPOCHS[given.scale]):
            order = HELD_OUT + torch.randperm(len(large) - HELD_OUT)
            yield from ((large[part], labels[part]) for part in order.split(BATCH))

    runs = train(models, batches(), loss, rate, given.device)
    rows = []
    for name, model in models.items():
        with torch.no_grad():
            guess = model.eval()(large[:HELD_OUT].to(given.device)).logits.argmax(1).cpu()
        rows.append(
            SwinRow(
                **conditions(),
                torch=torch.__version__,
                variant=name,
                rate=rate,
                seed=seed,
                epochs=EPOCHS[given.scale],
                folded_norms=folded if name == CENTRED else 0,
                loss=round(runs[name].losses[-1], 5),
                accuracy=round(float((guess == labels[:HELD_OUT]).float().mean()), 4),
                step_ms=round(statistics.median(runs[name].milliseconds), 3),
            )
        )
    return rows


def main(words: list[str] | None = None) -> int:
    given = options("swin", __doc__, 5).parse_args(words)
    torch.set_num_threads(1)
    for seed, rate in product(range(given.seeds), RATES):
        if has(given.out, rate=rate, seed=seed, epochs=EPOCHS[given.scale]):
            continue
        rows = trained(rate, seed, given)
        put(given.out, rows, ("rate", "seed"))
        for row in rows:
            print(
                f"{rate:g} {row.variant} seed {seed}: loss {row.loss}, {row.accuracy}", flush=True
            )
    _figure(given.out)
    return 0


def _figure(path: Path) -> None:
    rows, panels = read(path), []
    for rate in map(str, RATES):
        lines = {}
        for name in dict.fromkeys(row["variant"] for row in rows):
            chosen = [row for row in rows if (row["variant"], row["rate"]) == (name, rate)]
            seeds = [int(row["seed"]) for row in chosen]
            lines[name] = (seeds, [float(row["accuracy"]) for row in chosen])
        panels.append((f"accuracy, learning rate {rate}", lines))
    draw(path.with_suffix(".svg"), "seed", panels)


if __name__ == "__main__":
    raise SystemExit(main())
