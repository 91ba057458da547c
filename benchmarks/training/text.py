"""Text classification and translation with dropout: LayerNorm, centered weights, RMSNorm.

    python -m benchmarks.training.text [--scale small|full] [--seeds 5] [--out ...csv]

Section 5.4 of "Enjoy your Layer Normalization ...", with other data: the 15 categories of the Brown
corpus (a text of 64 words each), and the Debian Reference from English to German. The translator is
a decoder alone, which reads the English paragraph and goes on in German; BLEU is sacrebleu's, of
held-out paragraphs, by greedy decoding. Centered weights come from onnxfold.torch.fold with
dropout="recentre". ``score``: accuracy or BLEU, ``step_ms``: the median of forward and backward.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Conditions, conditions, write
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import Run, options, train, variants
from benchmarks.training.transformer import Shape, Transformer

TOKENS, BATCH, RATE, DROPOUT, PAD = 64, 16, 1e-3, 0.1, 0
STEPS = {"tiny": 2, "small": 400, "full": 5000}
WIDTHS = {"tiny": 16, "small": 48, "full": 512}
LAYERS = {"tiny": 1, "small": 2, "full": 6}
WORDS = {"tiny": 200, "small": 1500, "full": 10000}
HELD_OUT = {"tiny": 4, "small": 60, "full": 400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(Conditions):
    """A trained model and its score."""

    torch: str
    task: str
    variant: str
    seed: int
    steps: int
    folded_norms: int
    loss: float
    held_out_loss: float
    score: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class Task:
    """What a task trains on: tensors of the examples, those held out first."""

    name: str
    words: data.Vocabulary
    tensors: tuple[torch.Tensor, ...]
    shape: Shape
    held_out: int

    def batches(self, steps: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for _ in range(steps):
            chosen = torch.randint(self.held_out, len(self.tensors[0]), (BATCH,))
            yield tuple(tensor[chosen] for tensor in self.tensors)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if self.shape.pooled:
            return functional.cross_entropy(model(batch[0]), batch[1])
        logits = model(batch[0][:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits, batch[1][:, 1:].flatten(), ignore_index=PAD)


def classification(scale: str, cache: Path) -> Task:
    """Return the pieces of the Brown corpus and their categories."""
    texts = data.brown(cache)
    examples = []
    for number, category in enumerate(sorted(texts)):
        for text in texts[category]:
            words = text.lower().split()
            parts = range(0, len(words) - TOKENS + 1, TOKENS)
            examples += [(words[start : start + TOKENS], number) for start in parts]
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    examples = [examples[at] for at in order]
    vocabulary = data.Vocabulary([words for words, _ in examples], WORDS[scale])
    tokens = torch.tensor([vocabulary.encode(words) for words, _ in examples])
    shape = Shape(
        len(vocabulary), len(texts), TOKENS, WIDTHS[scale], LAYERS[scale],
        dropout=DROPOUT, causal=False, pooled=True,
    )  # fmt: skip
    labels = torch.tensor([number for _, number in examples])
    return Task("classification", vocabulary, (tokens, labels), shape, 10 * HELD_OUT[scale])


def translation(scale: str, cache: Path) -> Task:
    """Return English and German as one sequence, and the German part as what is to be learnt."""
    pairs = data.translations(cache)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [pairs[at] for at in order]
    vocabulary = data.Vocabulary([text for pair in pairs for text in pair], 2 * WORDS[scale])
    rows, wanted = [], []
    for english, german in pairs:
        source, target = vocabulary.encode(english), vocabulary.encode(german)
        row = [*source, 2, *target, 3]
        rest = [PAD] * (TOKENS - len(row))
        rows.append(row + rest)
        wanted.append([PAD] * (len(source) + 1) + row[len(source) + 1 :] + rest)
    shape = Shape(
        len(vocabulary), len(vocabulary), TOKENS, WIDTHS[scale], LAYERS[scale], dropout=DROPOUT
    )
    tensors = (torch.tensor(rows), torch.tensor(wanted))
    return Task("translation", vocabulary, tensors, shape, HELD_OUT[scale])


@torch.no_grad()
def scores(task: Task, model: nn.Module, device: str) -> tuple[float, float]:
    """Return the loss and the score on held-out data: accuracy, or BLEU."""
    model.eval()
    held = tuple(tensor[: task.held_out].to(device) for tensor in task.tensors)
    loss = float(task.loss(model, held))
    if task.shape.pooled:
        return loss, float((model(held[0]).argmax(1) == held[1]).float().mean())
    import sacrebleu

    starts = (held[0] == 2).int().argmax(1) + 1
    tokens = held[0] * (torch.arange(TOKENS, device=device) < starts[:, None])
    for at in range(int(starts.min()), TOKENS):
        following = model(tokens).argmax(-1)[:, at - 1]
        tokens[:, at] = torch.where(starts <= at, following, tokens[:, at])
    made = [_sentence(task, row, int(start)) for row, start in zip(tokens, starts, strict=True)]
    truth = [_sentence(task, row, int(start)) for row, start in zip(held[0], starts, strict=True)]
    return loss, float(sacrebleu.corpus_bleu(made, [truth], tokenize="none").score)


def _sentence(task: Task, row: torch.Tensor, start: int) -> str:
    numbers = row[start:].tolist()
    return task.words.decode(numbers[: numbers.index(3)] if 3 in numbers else numbers)


def trained(task: Task, seed: int, given: Any) -> tuple[list[TextRow], dict[str, Run]]:
    """Train the three from one seed."""
    torch.manual_seed(seed)
    models, folded = variants(Transformer(task.shape), (task.tensors[0][:2],))
    steps = STEPS[given.scale]
    runs = train(models, task.batches(steps), task.loss, RATE, given.device)
    rows = []
    for name, model in models.items():
        loss, score = scores(task, model, given.device)
        rows.append(
            TextRow(
                **conditions(),
                torch=torch.__version__,
                task=task.name,
                variant=name,
                seed=seed,
                steps=steps,
                folded_norms=folded,
                loss=round(runs[name].losses[-1], 5),
                held_out_loss=round(loss, 5),
                score=round(score, 4),
                step_ms=round(statistics.median(runs[name].milliseconds), 3),
            )
        )
    return rows, runs


def main(words: list[str] | None = None) -> int:
    given = options("text", __doc__, 5).parse_args(words)
    torch.set_num_threads(1)
    rows: list[TextRow] = []
    panels = []
    cache = given.data or data.CACHE
    for make in (classification, translation):
        task = make(given.scale, cache)
        for seed in range(given.seeds):
            more, runs = trained(task, seed, given)
            rows += more
            for row in more:
                print(
                    f"{row.task} {row.variant} seed {seed}: loss {row.loss}, held out "
                    f"{row.held_out_loss}, score {row.score}, {row.step_ms} ms"
                )
            if not seed:
                lines = {name: (range(len(r.losses)), r.losses) for name, r in runs.items()}
                panels.append((f"{task.name}: loss, seed 0", lines))
    write(given.out, rows)
    draw(given.out.with_suffix(".svg"), "step", panels)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
