"""The 8x8 digits of scikit-learn as model inputs, and the shipped held-out part of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["HELDOUT", "Digits", "load_heldout", "save_heldout", "split_digits"]

HELDOUT: Final = Path(__file__).parent / "heldout.npz"
_HELDOUT_EVERY = 5
_MAXIMUM = 16.0


@dataclass(frozen=True, slots=True)
class Digits:
    """`images`: float32 [n, 1, 8, 8] in 0..1; `labels`: int64 [n]."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def split_digits(seed: int) -> tuple[Digits, Digits]:
    """Split the digits at random into four fifths for training and one fifth held out."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # it has no types

    source = load_digits()
    order = np.random.default_rng(seed).permutation(len(source.target))
    images = (source.images / _MAXIMUM).astype(np.float32)[order, np.newaxis]
    labels = source.target.astype(np.int64)[order]
    held = np.arange(len(labels)) % _HELDOUT_EVERY == 0
    return Digits(images[~held], labels[~held]), Digits(images[held], labels[held])


def save_heldout(digits: Digits, path: Path = HELDOUT) -> None:
    """Write `digits` as compressed arrays ``images`` and ``labels``."""
    np.savez_compressed(path, images=digits.images, labels=digits.labels)


def load_heldout(path: Path = HELDOUT) -> Digits:
    """Read the shipped held-out digits."""
    with np.load(path) as arrays:
        return Digits(arrays["images"], arrays["labels"])
