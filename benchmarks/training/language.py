"""GPT pretraining and fine-tuning in six settings, and angles while GPTs of four sizes train.

    python -m benchmarks.training.language [--scale small|full] [--seeds 3] [--out ...csv]

The first is the shape of Table 2 of "Enjoy your Layer Normalization ...", with dropout as there: a
model with LayerNorm is pretrained, then fine-tuned, from the same weights with the same masks,

* ``layer_norm``: as it is; ``centred weights``: folded, and the mean taken out of each dropout;
* ``keep``: folded, with the mean that the dropout leaves in training (fold, dropout="keep");
* ``baked``: the same, baked: the weights start centred, and train as those of RMSNorm;
* ``rms_norm with beta``: RMSNorm in the place with gamma and beta; ``rms_norm`` drops the beta.

From scratch, GPTs of characters train in benchmarks.training.inexact.  The second is section 3.3 of
"Geometric interpretation of layer normalization ...": four sizes with LayerNorm and with RMSNorm,
and at some steps the angle of what every norm reads to the uniform vector and to two random ones
(``training_angles.csv``).  The data are the characters of the Brown corpus; fine-tuning is on its
science fiction, a held-out category.  Rows of a seed are kept as it ends, and not run again.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Conditions, conditions, has, put
from benchmarks.training import data
from benchmarks.training.figures import draw
from benchmarks.training.together import (
    CENTRED,
    LAYER_NORM,
    RMS_NORM,
    RMS_WITH_BETA,
    options,
    train,
    with_betas,
    with_rms,
)
from benchmarks.training.transformer import Shape, Transformer
from onnxfold.torch import AnglesCallback, bake, fold

TOKENS, BATCH, RATE, WORDS = 64, 16, 1e-3, 128
TUNED = "science_fiction"
KEEP, BAKED, DROPOUT = "keep", "baked", 0.1
STEPS = {"tiny": 2, "small": 3000, "full": 20000}
TUNING = {"tiny": 2, "small": 400, "full": 2000}
ANGLE_STEPS = {"tiny": 2, "small": 400, "full": 20000}
SHAPES = {"tiny": (16, 1), "small": (48, 2), "full": (768, 12)}
# Width and layers of the four sizes.
SIZES = {
    "tiny": ((8, 1),),
    "small": ((16, 1), (24, 2), (32, 3), (48, 4)),
    "full": ((256, 4), (512, 8), (768, 12), (1024, 24)),
}
PARTS = ("tuning", "angles")
_HELD_OUT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRow(Conditions):
    """A model before or after fine-tuning, on held-out text of the category."""

    torch: str
    threads: int
    setting: str
    width: int
    layers: int
    dropout: float
    seed: int
    steps: int
    folded_norms: int
    loss: float
    perplexity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AngleRow(Conditions):
    """What a norm of a model reads at a step: angles in degrees over all vectors of a batch."""

    torch: str
    width: int
    layers: int
    variant: str
    seed: int
    step: int
    norm: str
    angle_uniform: float
    angle_uniform_std: float
    angle_a: float
    angle_a_std: float
    angle_b: float
    length: float
    mean: float


def characters(texts: list[str]) -> torch.Tensor:
    joined = "\n".join(texts).encode("ascii", "replace")
    return torch.tensor(list(joined), dtype=torch.long)


def batches(text: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    for _ in range(steps):
        starts = torch.randint(0, len(text) - TOKENS - 1, (BATCH,))
        yield torch.stack([text[at : at + TOKENS + 1] for at in starts.tolist()])


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def shape(width: int, layers: int, dropout: float = 0.0) -> Shape:
    return Shape(WORDS, WORDS, TOKENS, width, layers, dropout=dropout)


@torch.no_grad()
def held_out(model: nn.Module, text: torch.Tensor, device: str) -> float:
    rows = text[: _HELD_OUT * (TOKENS + 1)].reshape(_HELD_OUT, TOKENS + 1)
    return float(loss(model.eval(), rows.to(device)))


def settings(model: nn.Module, example: torch.Tensor) -> tuple[dict[str, nn.Module], int]:
    """Return what a pretrained model is fine-tuned as, and how many norms the fold found."""

    def folded(dropout: str) -> tuple[nn.Module, int]:
        made = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, and that it is inexact
            return made, len(fold(made, (example,), dropout=dropout).folded)

    centred, count = folded("recentre")
    kept, _ = folded("keep")
    plain = with_rms(model)
    own = model.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    made = {
        LAYER_NORM: model,
        CENTRED: centred,
        KEEP: kept,
        BAKED: bake(copy.deepcopy(kept)),
        RMS_WITH_BETA: with_betas(model),
        RMS_NORM: plain,
    }
    return made, count


def tuned(texts: dict[str, list[str]], seed: int, given: Any) -> list[LanguageRow]:
    """Pretrain one model, fine-tune it in all settings, and measure it before and after."""
    torch.manual_seed(seed)
    width, layers = SHAPES[given.scale]
    model = Transformer(shape(width, layers, DROPOUT))
    rest = characters([text for name, part in texts.items() if name != TUNED for text in part])
    own = characters(texts[TUNED])
    kept, trained_on = own[: _HELD_OUT * (TOKENS + 1)], own[_HELD_OUT * (TOKENS + 1) :]
    steps = STEPS[given.scale]
    train({LAYER_NORM: model}, batches(rest, steps), loss, RATE, given.device)
    models, folded = settings(model.cpu(), rest[None, :TOKENS])
    rows = []
    for stage in ("before", "after"):
        if stage == "after":
            steps = TUNING[given.scale]
            train(models, batches(trained_on, steps), loss, RATE / 10, given.device)
        for name, each in models.items():
            value = held_out(each.to(given.device), kept, given.device)
            rows.append(
                LanguageRow(
                    **conditions(),
                    torch=torch.__version__,
                    threads=torch.get_num_threads(),
                    setting=f"{name}, {stage} fine-tuning",
                    width=width,
                    layers=layers,
                    dropout=DROPOUT,
                    seed=seed,
                    steps=steps,
                    folded_norms=0 if name in (LAYER_NORM, RMS_NORM, RMS_WITH_BETA) else folded,
                    loss=round(value, 5),
                    perplexity=round(math.exp(value), 4),
                )
            )
    return rows


def angles(texts: dict[str, list[str]], seed: int, given: Any) -> list[AngleRow]:
    """Train four sizes with both norms, and measure ten times while they train."""
    text = characters([text for part in texts.values() for text in part])
    rows: list[AngleRow] = []
    steps = ANGLE_STEPS[given.scale]
    for width, layers in SIZES[given.scale]:
        for variant in (LAYER_NORM, RMS_NORM):
            torch.manual_seed(seed)
            model: nn.Module = Transformer(shape(width, layers))
            model = (model if variant == LAYER_NORM else with_rms(model)).to(given.device)
            watch = AnglesCallback(model, every=max(steps // 10, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
            for step, batch in enumerate(batches(text, steps + 1)):
                optimizer.zero_grad()
                with watch.step(step):
                    value = loss(model, batch.to(given.device))
                value.backward()
                optimizer.step()
            rows += _angle_rows(watch, (width, layers), variant, seed)
            end = rows[-1]
            print(f"seed {seed} {width} x {layers} {variant}: last norm at {end.angle_uniform}")
    return rows


def _angle_rows(
    watch: AnglesCallback, size: tuple[int, int], variant: str, seed: int
) -> Iterator[AngleRow]:
    for report in watch.reports:
        for norm in report["norms"]:
            before = norm["before"]
            uniform, a = before["angle_uniform"], before["angle_a"]
            yield AngleRow(
                **conditions(),
                torch=torch.__version__,
                width=size[0],
                layers=size[1],
                variant=variant,
                seed=seed,
                step=report["step"],
                norm=norm["name"],
                angle_uniform=round(uniform["mean"], 3),
                angle_uniform_std=round(uniform["std"], 3),
                angle_a=round(a["mean"], 3),
                angle_a_std=round(a["std"], 3),
                angle_b=round(before["angle_b"]["mean"], 3),
                length=round(before["norm"]["mean"], 4),
                mean=round(before["mean"]["mean"], 5),
            )


def _draw(rows: list[AngleRow], path: Path) -> None:
    panels = []
    for width, layers in dict.fromkeys((row.width, row.layers) for row in rows):
        lines = {}
        for variant in (LAYER_NORM, RMS_NORM):
            chosen = [
                row
                for row in rows
                if (row.width, row.layers, row.variant, row.norm)
                == (width, layers, variant, "norm")
            ]
            steps = [row.step for row in chosen]
            lines[f"{variant}, 1"] = (steps, [row.angle_uniform for row in chosen])
            lines[f"{variant}, a"] = (steps, [row.angle_a for row in chosen])
        panels.append((f"{width} wide, {layers} layers: last norm", lines))
    draw(path, "step", panels)


def main(words: list[str] | None = None) -> int:
    parser = options("language", __doc__, 5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    texts = data.brown(given.data or data.CACHE)
    for seed in range(given.seeds if "tuning" in given.parts else 0):
        width, _ = SHAPES[given.scale]
        if has(given.out, width=width, seed=seed, dropout=DROPOUT):
            continue
        rows = tuned(texts, seed, given)
        put(given.out, rows, ("width", "seed", "dropout"))
        for row in rows:
            print(f"seed {seed} {row.setting}: loss {row.loss}, perplexity {row.perplexity}")
    out = given.out.with_name(given.out.name.replace("language", "angles"))
    for seed in range(given.seeds if "angles" in given.parts else 0):
        if has(out, seed=seed):
            continue
        found = angles(texts, seed, given)
        put(out, found, ("seed",))
        if seed == 0:
            _draw(found, out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
