"""Time of models whose folds and Attention of the transformers optimizer exclude one another.

    python -m benchmarks.attention_orders [--models siglip whisper] [--budget SECONDS]

Vision and speech encoders of transformers with eager attention (TorchScript, opset 17, random
weights, the sizes of SigLIP-B/16 and of Whisper tiny with fewer layers) go through onnxfold and
ONNX Runtime's transformers optimizer in both orders. Sessions without a library take turns, one
thread; the time is the thread's, which other work on the machine hardly affects. All are opened
several times, because the memory location of a session changes its time by some percent. A ratio is
the median over the rounds of the export's time to the order's, so that more than 1 is faster. Rows
go to benchmarks/results/attention_orders.csv.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx

import onnxfold
from benchmarks.harness import arguments, quantiles, timed
from benchmarks.rows import RESULTS, Row, tell, write
from onnxfold.runtime.interleaved_timing import RunCounts, Variant
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.steps import STEPS, Context

ORDERS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("onnx",),
    ("ort",),
    ("optimizer",),
    ("onnx", "optimizer"),
    ("optimizer", "onnx"),
    ("optimizer", "ort"),
)
_OPSET, _ROUNDS, _LEAST, _SESSIONS = 17, 101, 5, 6


class Subject(NamedTuple):
    """A module with an input of one shape, and its settings for the optimizer."""

    build: Callable[[], Any]
    shape: tuple[int, ...]
    facts: ModelFacts


def _siglip() -> Any:
    import transformers

    config = transformers.SiglipVisionConfig(
        num_hidden_layers=4, vision_use_head=False, attn_implementation="eager"
    )
    return transformers.SiglipVisionModel(config)


def _whisper() -> Any:
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=2, encoder_attention_heads=6, encoder_ffn_dim=1536,
        attn_implementation="eager",
    )  # fmt: skip
    return WhisperEncoder(config)


SUBJECTS: Final[Mapping[str, Subject]] = {
    "siglip": Subject(_siglip, (1, 3, 224, 224), ModelFacts("clip", 12, 768)),
    "whisper": Subject(_whisper, (1, 80, 3000), ModelFacts("bart", 6, 384)),
}


def exported(subject: Subject, path: Path) -> Any:
    """Write the export of a model whose weights are random, biases and betas too."""
    import torch

    torch.manual_seed(0)
    module = subject.build().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    example = torch.randn(*subject.shape)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x).last_hidden_state

    torch.onnx.export(
        Plain(), (example,), path, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "batch"}}, opset_version=_OPSET, dynamo=False,
    )  # fmt: skip
    return example.numpy()


def ordered(subject: Subject, source: Path, steps: Sequence[str], path: Path) -> int:
    """Apply the steps to the export in turn; return how many norms fold."""
    model, folds = onnx.load(source), 0
    for step in steps:
        if step == "optimizer":
            onnx.save(model, path)
            STEPS["optimizer"].apply(path, path, Context(subject.facts))
            model = onnx.load(path)
        else:
            result = onnxfold.optimize(model, target=step, check=None)
            model, folds = result.model, len(result.plan.folds)
    onnx.save(model, path)
    return folds


def measured(name: str, budget_s: float) -> list[Row]:
    """Time every order of one model in turns."""
    subject = SUBJECTS[name]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "export.onnx")
        feeds = {"x": exported(subject, source)}
        paths = [Path(folder, f"{number}.onnx") for number in range(len(ORDERS))]
        folds = [
            ordered(subject, source, steps, path) for steps, path in zip(ORDERS, paths, strict=True)
        ]
        kinds = [Counter(node.op_type for node in onnx.load(path).graph.node) for path in paths]
        turns = RunCounts(_ROUNDS, _LEAST, budget_s / _SESSIONS, clock=time.thread_time)
        variants = [Variant(path) for path in paths]
        seconds = np.concatenate([timed(variants, feeds, turns) for _ in range(_SESSIONS)], axis=1)
    # One order on one model; ``attention`` counts the optimizer's nodes in the final file.
    return [
        Row(
            onnxruntime=version("onnxruntime"),
            sessions=_SESSIONS,
            model=name,
            order=", ".join(steps) or "export",
            folds=folds[number],
            attention=kinds[number]["Attention"],
            rounds=seconds.shape[1],
            milliseconds=round(1e3 * float(np.median(seconds[number])), 3),
            **quantiles(seconds[0] / seconds[number], 3, ratio=50, ratio_25=25, ratio_75=75),
        )
        for number, steps in enumerate(ORDERS)
    ]


def main() -> None:
    """Write the rows of every model."""
    out = RESULTS / "attention_orders.csv"
    given = {"--models": tuple(SUBJECTS), "--budget": 120.0, "--out": out}
    options = arguments(__doc__, given)
    rows = [row for name in options.models for row in measured(name, options.budget)]
    write(options.out, rows)
    tell(rows)


if __name__ == "__main__":
    main()
