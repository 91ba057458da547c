"""Trains where RMSNorm is not the LayerNorm of the model: with dropout, and where no norm folds.

    python -m benchmarks.training.inexact [--scale small|full] [--seeds 5] [--out ...csv]

Sections 5.3, 5.4 and H of "Enjoy your Layer Normalization ...".  Small Transformers that learn, on
digits, categories of the Brown corpus, its characters, and a language that is made up here, with
dropout of 0.1 between the linear layers and the norms.  Post-LN is the same on digits, of which no
norm folds.  From the same weights, on the same batches, with the same dropout masks:

* ``layer_norm``; ``rms_norm`` in its place with gamma and beta, so that centring alone differs;
* ``keep``: centred weights and RMSNorm, where the dropout leaves a mean (fold, dropout="keep");
* ``recentre``: the same, with the mean taken out of the dropout's output;
* ``converted``: LayerNorm for half of the steps, then folded, baked, and trained on as RMSNorm.

Norms that do not fold are forced (inexact=True).  A row is a model at a step; ``score``: accuracy,
share of sentences that are all right, or perplexity.  Rows are added to the file as each seed of a
task ends, and what the file has is not run again: a run that was stopped goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Row, read
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import (
    LAYER_NORM,
    RMS_NORM,
    Run,
    experiment,
    folded,
    options,
    train,
    with_betas,
)
from benchmarks.training.transformer import Shape, Transformer
from onnxfold.torch import bake

KEEP, RECENTRE, CONVERTED = "keep", "recentre", "converted"
VARIANTS = (LAYER_NORM, RMS_NORM, KEEP, RECENTRE, CONVERTED)
WIDTHS, LAYERS = {"tiny": 8, "small": 32, "full": 512}, {"tiny": 1, "small": 2, "full": 6}
STEPS = {
    "digits": {"tiny": 2, "small": 300, "full": 5000},
    "translation": {"tiny": 2, "small": 500, "full": 20000},
    "characters": {"tiny": 2, "small": 3000, "full": 50000},
    "categories": {"tiny": 2, "small": 1200, "full": 20000},
    "digits, post-LN": {"tiny": 2, "small": 300, "full": 5000},
}
RATE, DROPOUT, POINTS, HELD_OUT, TOKENS, IGNORED = 2e-3, 0.1, 10, 360, 64, -100
CATEGORIES = ("government", "learned", "news", "romance")
Batch = tuple[torch.Tensor, torch.Tensor]
_adam = partial(torch.optim.AdamW, lr=RATE)


@dataclass(frozen=True, slots=True)
class Task:
    """A task: how its model is made, its examples with the held-out ones first, its score."""

    name: str
    shape: Shape
    inputs: torch.Tensor
    wanted: torch.Tensor
    batch: int
    score: Callable[[torch.Tensor, torch.Tensor], float]
    rows_of: int = 0  # a row of so many numbers in the place of a token
    steps: int = 0

    def model(self) -> nn.Module:
        made = Transformer(self.shape)
        if self.rows_of:
            setattr(made, "table", nn.Linear(self.rows_of, self.shape.width))  # noqa: B010
        return made

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        logits = model(batch[0])
        return functional.cross_entropy(
            logits.flatten(0, -2), batch[1].flatten(), ignore_index=IGNORED
        )

    def batches(self, steps: int) -> Iterator[Batch]:
        for _ in range(steps):
            chosen = torch.randint(HELD_OUT, len(self.inputs), (self.batch,))
            yield self.inputs[chosen], self.wanted[chosen]

    @torch.no_grad()
    def measure(self, model: nn.Module) -> tuple[float, float]:
        """Return the loss and the score on held-out data."""
        inputs, wanted = self.inputs[:HELD_OUT], self.wanted[:HELD_OUT]
        loss = float(self.loss(model.eval(), (inputs, wanted)))
        score = self.score(model(inputs), wanted)
        model.train()
        return loss, score


def accuracy(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((logits.argmax(-1) == wanted).float().mean())


def sentences(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the share of sentences of which greedy decoding gets every word right."""
    right = (logits.argmax(-1) == wanted) | (wanted == IGNORED)
    return float(right.all(1).float().mean())


def perplexity(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    return math.exp(functional.cross_entropy(logits.flatten(0, -2), wanted.flatten()))


def digits(scale: str, *, post: bool = False) -> Task:
    images, labels = data.digits()
    shape = Shape(
        1, 10, 8, WIDTHS[scale], LAYERS[scale],
        dropout=DROPOUT, causal=False, pooled=True, post=post,
    )  # fmt: skip
    name = "digits, post-LN" if post else "digits"
    return Task(name, shape, images, labels, 96, accuracy, rows_of=8)


def categories(scale: str, cache: Path) -> Task:
    """Return pieces of 64 words and which of four categories they are of."""
    texts = data.brown(cache)
    examples = []
    for number, category in enumerate(c for c in CATEGORIES if c in texts):
        for text in texts[category]:
            words = text.lower().split()
            parts = range(0, len(words) - TOKENS + 1, TOKENS)
            examples += [(words[start : start + TOKENS], number) for start in parts]
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    vocabulary = data.Vocabulary([words for words, _ in examples], 2000)
    tokens = torch.tensor([vocabulary.encode(examples[at][0]) for at in order])
    labels = torch.tensor([examples[at][1] for at in order])
    width, layers = WIDTHS[scale], LAYERS[scale]
    shape = Shape(
        len(vocabulary), len(CATEGORIES), TOKENS, width, layers,
        dropout=DROPOUT, causal=False, pooled=True,
    )  # fmt: skip
    return Task("categories", shape, tokens, labels, 16, accuracy)


def translation(scale: str) -> Task:
    """Return sentences of two languages: adjective noun verb adjective noun, and a tense.

    The other language has nouns before adjectives, which agree with their gender, and the verb at
    the end, by the tense and the gender of its subject.
    """
    generator = torch.Generator().manual_seed(0)
    nouns, verbs, adjectives, count = 24, 12, 12, 20000

    def drawn(most: int) -> torch.Tensor:
        return torch.randint(most, (count,), generator=generator)

    a1, n1, v, a2, n2, tense = map(drawn, (adjectives, nouns, verbs, adjectives, nouns, 2))
    gender = torch.randint(2, (nouns,), generator=generator)
    starts = [0, adjectives, adjectives + nouns, adjectives + nouns + verbs]
    source = [a1, starts[1] + n1, starts[2] + v, a2, starts[1] + n2, starts[3] + tense]
    base = starts[3] + 2
    forms = 2 * adjectives
    target = [
        base + n1,
        base + nouns + 2 * a1 + gender[n1],
        base + n2,
        base + nouns + 2 * a2 + gender[n2],
        base + nouns + forms + 4 * v + 2 * tense + gender[n1],
    ]
    middle, end = base + nouns + forms + 4 * verbs, base + nouns + forms + 4 * verbs + 1
    fill = [torch.full((count,), word) for word in (middle, end)]
    rows = torch.stack([*source, fill[0], *target, fill[1]], 1)
    wanted = rows[:, 1:].clone()
    wanted[:, : len(source)] = IGNORED
    shape = Shape(end + 1, end + 1, rows.shape[1], WIDTHS[scale], LAYERS[scale], dropout=DROPOUT)
    return Task("translation", shape, rows[:, :-1], wanted, 32, sentences)


def characters(scale: str, cache: Path) -> Task:
    rows = data.characters(data.brown(cache).values())
    rows = rows[: len(rows) // (TOKENS + 1) * (TOKENS + 1)]
    rows = rows.reshape(-1, TOKENS + 1)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    shape = Shape(128, 128, TOKENS, WIDTHS[scale], LAYERS[scale], dropout=DROPOUT)
    return Task("characters", shape, rows[:, :-1], rows[:, 1:], 8, perplexity)


class Folds:
    """The folded form of a task's model, worked out once for every seed."""

    def __init__(self, task: Task):
        self._forms: dict[str, nn.Module] = {}
        self.counts: dict[str, tuple[int, int]] = {}
        for dropout in (KEEP, RECENTRE):
            made, report = folded(task.model(), task.inputs[:2], dropout=dropout, inexact=True)
            self._forms[dropout] = made
            self.counts[dropout] = len(report.folded), len(report.inexact)

    def of(self, model: nn.Module, dropout: str) -> nn.Module:
        """Return the folded form with the weights of a model that is not folded."""
        made = copy.deepcopy(self._forms[dropout])
        known = made.state_dict()

        def placed(name: str) -> str:
            module, _, tensor = name.rpartition(".")
            inner = f"{module}.parametrizations.{tensor}.original"
            return name if name in known else inner

        made.load_state_dict({placed(name): value for name, value in model.state_dict().items()})
        return made


def trained(task: str, seed: int, made: Callable[[str], tuple[Task, Folds]]) -> list[Row]:
    """Train all variants from one seed, side by side."""
    own, folds = made(task)
    torch.manual_seed(seed)
    model = own.model()
    models = {
        LAYER_NORM: model,
        RMS_NORM: with_betas(model),
        KEEP: folds.of(model, KEEP),
        RECENTRE: folds.of(model, RECENTRE),
        CONVERTED: copy.deepcopy(model),
    }
    runs, rows = {name: Run(each, _adam) for name, each in models.items()}, list[Row]()
    every = max(own.steps // POINTS, 1)
    for step in train(runs, own.batches(own.steps), own.loss, seed):
        if step == own.steps // 2:
            known = runs[CONVERTED]
            runs[CONVERTED] = Run(bake(folds.of(known.model, KEEP)), _adam)
            runs[CONVERTED].losses += known.losses
        if step % every == 0:
            rows += [_row(own, folds, name, run, seed, every) for name, run in runs.items()]
    return rows


def _row(task: Task, folds: Folds, name: str, run: Run, seed: int, every: int) -> Row:
    """A model at a step: ``loss`` of the steps since the last row, the rest on held-out data."""
    centred, forced = folds.counts[RECENTRE if name == RECENTRE else KEEP]
    exact = name in (LAYER_NORM, RMS_NORM)
    norms = sum(isinstance(module, nn.LayerNorm) for module in task.model().modules())
    held_out, score = task.measure(run.model)
    return Row(
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        task=task.name,
        variant=name,
        seed=seed,
        step=len(run.losses),
        norms=norms,
        folded_norms=0 if exact else centred,
        forced_norms=norms if name == RMS_NORM else 0 if exact else forced,
        loss=round(mean(run.losses[-every:]), 5),
        held_out_loss=round(held_out, 5),
        score=round(score, 5),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Train what the file lacks, and draw all of it."""
    given = options("inexact", __doc__, words, tasks=tuple(STEPS))
    place = given.data or data.CACHE
    makers: dict[str, Callable[[], Task]] = {
        "digits": lambda: digits(given.scale),
        "digits, post-LN": lambda: digits(given.scale, post=True),
        "categories": lambda: categories(given.scale, place),
        "translation": lambda: translation(given.scale),
        "characters": lambda: characters(given.scale, place),
    }

    @cache
    def made(name: str) -> tuple[Task, Folds]:
        task = replace(makers[name](), steps=STEPS[name][given.scale])
        return task, Folds(task)

    cases = [{"task": t, "seed": s} for s, t in product(range(given.seeds), given.tasks)]
    experiment(given.out, cases, partial(trained, made=made))
    title = "{}: held-out loss".format
    draw(given.out, read(given.out), lambda row: title(row["task"]), "step", "held_out_loss")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
