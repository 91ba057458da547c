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
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
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
    RMS_WITH_BETA,
    Run,
    experiment,
    folded,
    options,
    train,
    with_betas,
    with_rms,
)
from benchmarks.training.transformer import Shape, Transformer
from onnxfold.torch import AnglesCallback, bake

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
    centred, report = folded(model, example, dropout="recentre")
    kept, _ = folded(model, example, dropout=KEEP)
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
    return made, len(report.folded)


def trained(
    models: dict[str, nn.Module], text: torch.Tensor, steps: int, rate: float, given: Any, seed: int
) -> None:
    runs = {name: Run(model, partial(torch.optim.AdamW, lr=rate)) for name, model in models.items()}
    for _ in train(runs, batches(text, steps), loss, seed, given.device):
        pass


def tuned(
    width: int, seed: int, dropout: float, given: Any, texts: dict[str, list[str]]
) -> list[Row]:
    """Pretrain one model, fine-tune it in all settings, and measure it before and after."""
    torch.manual_seed(seed)
    layers, steps = SHAPES[given.scale][1], STEPS[given.scale]
    model = Transformer(shape(width, layers, dropout))
    rest = data.characters(part for name, part in texts.items() if name != TUNED)
    own = data.characters([texts[TUNED]])
    kept, trained_on = own[: _HELD_OUT * (TOKENS + 1)], own[_HELD_OUT * (TOKENS + 1) :]
    trained({LAYER_NORM: model}, rest, steps, RATE, given, seed)
    models, count = settings(model.cpu(), rest[None, :TOKENS])
    rows = []
    for stage in ("before", "after"):
        if stage == "after":
            steps = TUNING[given.scale]
            trained(models, trained_on, steps, RATE / 10, given, seed)
        for name, each in models.items():
            value = held_out(each.to(given.device), kept, given.device)
            row = Row(
                torch=torch.__version__,
                threads=torch.get_num_threads(),
                setting=f"{name}, {stage} fine-tuning",
                width=width,
                layers=layers,
                dropout=dropout,
                seed=seed,
                steps=steps,
                folded_norms=0 if name in (LAYER_NORM, RMS_NORM, RMS_WITH_BETA) else count,
                loss=round(value, 5),
                perplexity=round(math.exp(value), 4),
            )
            rows.append(row)
    return rows


def angles(seed: int, given: Any, texts: dict[str, list[str]]) -> list[Row]:
    """Train four sizes with both norms, and measure ten times while they train."""
    text, steps = data.characters(texts.values()), ANGLE_STEPS[given.scale]
    rows: list[Row] = []
    for width, layers in SIZES[given.scale]:
        for variant in (LAYER_NORM, RMS_NORM):
            torch.manual_seed(seed)
            model: nn.Module = Transformer(shape(width, layers))
            model = (model if variant == LAYER_NORM else with_rms(model)).to(given.device)
            watch, numbers = AnglesCallback(model, every=max(steps // 10, 1)), count()

            def watched(model: nn.Module, batch: Any, at: Any = numbers, by: Any = watch) -> Any:
                with by.step(next(at)):
                    return loss(model, batch)

            run = {variant: Run(model, partial(torch.optim.AdamW, lr=RATE))}
            for _ in train(run, batches(text, steps + 1), watched, seed, given.device):
                pass
            about = {"width": width, "layers": layers, "variant": variant, "seed": seed}
            rows += [
                _angle(about | {"step": report["step"], "norm": norm["name"]}, norm["before"])
                for report in watch.reports
                for norm in report["norms"]
            ]
    return rows


def _angle(about: dict[str, Any], before: dict[str, Any]) -> Row:
    """What a norm reads at a step: angles in degrees over all vectors of a batch."""
    uniform, a = before["angle_uniform"], before["angle_a"]
    return Row(
        torch=torch.__version__,
        **about,
        angle_uniform=round(uniform["mean"], 3),
        angle_uniform_std=round(uniform["std"], 3),
        angle_a=round(a["mean"], 3),
        angle_a_std=round(a["std"], 3),
        angle_b=round(before["angle_b"]["mean"], 3),
        length=round(before["norm"]["mean"], 4),
        mean=round(before["mean"]["mean"], 5),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Train what the files lack, and draw the angles of the first seed."""
    given = options("language", __doc__, words, parts=PARTS)
    texts, about = data.brown(given.data or data.CACHE), {"dropout": DROPOUT}
    if "tuning" in given.parts:
        about |= {"width": SHAPES[given.scale][0]}
        cases = [{**about, "seed": seed} for seed in range(given.seeds)]
        experiment(given.out, cases, partial(tuned, given=given, texts=texts))
    if "angles" in given.parts:
        out = given.out.with_name(given.out.name.replace("language", "angles"))
        seeds = [{"seed": seed} for seed in range(given.seeds)]
        experiment(out, seeds, partial(angles, given=given, texts=texts))
        last = [r for r in read(out) if r["norm"] == "norm" and r["seed"] == "0"]
        lines = [
            {**row, "variant": f"{row['variant']}, {to}", "angle": row[f"angle_{to}"]}
            for row in last
            for to in ("uniform", "a")
        ]
        title = "{width} wide, {layers} layers: last norm".format_map
        draw(out, lines, title, "step", "angle")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
