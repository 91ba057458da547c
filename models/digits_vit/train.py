"""Train the tiny ViT on the digits and write the files that are shipped.

Run from the repository root as ``python -m models.digits_vit.train``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

import onnx_ir as ir
import torch
from torch import nn

from models.digits_vit.data import HELDOUT, Digits, save_heldout, split_digits
from models.exporter import trace
from models.plain_transformer import PatchTransformer, Shape
from models.recipe import Example

SHAPE: Final = Shape(width=48, layers=4, heads=4, hidden=144)
SEED: Final = 0
EPOCHS: Final = 80
BATCH: Final = 64
PEAK_RATE: Final = 4e-3
WEIGHT_DECAY: Final = 0.05
LABEL_SMOOTHING: Final = 0.1
SHIFTED_SHARE: Final = 0.5
THREADS: Final = 1


def main() -> int:
    """Train, report the held-out accuracy and write the model and the held-out digits."""
    parser = argparse.ArgumentParser(prog="python -m models.digits_vit.train")
    parser.add_argument("-o", "--output", type=Path, default=HELDOUT.parent, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    training, heldout = split_digits(SEED)
    started = time.perf_counter()
    model = train(training, epochs=options.epochs)
    seconds = time.perf_counter() - started
    correct = count_correct(model, heldout)
    print(f"{correct} of {len(heldout.labels)} held-out digits right after {seconds:.0f} s")
    options.output.mkdir(parents=True, exist_ok=True)
    save_heldout(heldout, options.output / HELDOUT.name)
    write(model, heldout, options.output / "digits_vit.onnx")
    return 0


def train(digits: Digits, *, epochs: int) -> PatchTransformer:
    """Train with AdamW on one rate cycle; half of the images are shifted by up to one pixel."""
    model = PatchTransformer(SHAPE, side=8, patch=2, channels=1, classes=10)
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    steps = len(labels) // BATCH
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=PEAK_RATE, epochs=epochs, steps_per_epoch=steps
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels))[: steps * BATCH].reshape(steps, BATCH):
            loss = loss_of(model(_shifted(images[batch])), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def _shifted(images: torch.Tensor) -> torch.Tensor:
    """Shift about half of `images` [n, 1, 8, 8], each by -1, 0 or 1 pixel on each axis."""
    count = len(images)
    moved = torch.rand(count, 1) < SHIFTED_SHARE
    offsets = 1 + moved * torch.randint(-1, 2, (count, 2))
    rows = offsets[:, 0, None, None] + torch.arange(8)[:, None]
    columns = offsets[:, 1, None, None] + torch.arange(8)
    padded = nn.functional.pad(images, (1, 1, 1, 1))[:, 0]
    return padded[torch.arange(count)[:, None, None], rows, columns].unsqueeze(1)


@torch.no_grad()
def count_correct(model: PatchTransformer, digits: Digits) -> int:
    """Count the digits whose largest logit is that of their label."""
    predicted = model(torch.from_numpy(digits.images)).argmax(dim=1)
    return int((predicted == torch.from_numpy(digits.labels)).sum())


def write(model: PatchTransformer, heldout: Digits, path: Path) -> None:
    """Export `model` at opset 18 with a free batch axis, in one file."""
    example = Example(
        module=model,
        inputs={"images": torch.from_numpy(heldout.images[:2])},
        dynamic_axes={"images": {0: "batch"}},
        outputs=("logits",),
        trained=True,
    )
    exported = trace(example, opset=18)
    exported.graph.name = "digits_vit"
    exported.doc_string = "Pre-LN ViT on the 8x8 digits of scikit-learn; see models/digits_vit"
    ir.save(exported, path)


if __name__ == "__main__":
    sys.exit(main())
