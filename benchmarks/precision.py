"""What scaled and rotated streams are worth in float16, int8 and int4.

    python -m benchmarks.precision [--seeds 4] [--out benchmarks/results/precision.csv]

The digits ViT with its held-out images, its twins with outliers (``models.outlier_twins``), it
with a stream 2^16 times as large, and untrained recipes with theirs in principal axes, on drawn
inputs.  Of rotations the best of some seeds on a part of the inputs, and its error on the others;
errors are root mean squares relative to the float64 outputs of the model, in percent.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import onnxfold
from benchmarks.harness import CPU, arguments
from benchmarks.rows import RESULTS, Row, write
from models.outlier_twins import gamma_twin, pca_twin
from onnxfold.check.reference import Precision, run
from onnxfold.errors import OnnxfoldError
from onnxfold.graph.edit import Editor
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.apply_scale import apply
from onnxfold.passes.basis.plan import ScaledStream, ScalePlan
from onnxfold.passes.basis.scale_streams import decide
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.runtime.interleaved_timing import Variant
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.rotation_search import WORTH
from onnxfold.tuning.steps import STEPS, Context

ROOT = Path(__file__).resolve().parents[1]
QUANTISERS = ("int8", "int8-channel", "int4-blocks32")
CHOOSING, LARGER = 32, 16
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, inputs to choose a seed by and to measure on, and labels where there are some."""

    name: str
    model: onnx.ModelProto
    choosing: Sequence[Mapping[str, Array]]
    feeds: Sequence[Mapping[str, Array]]
    labels: Array | None = None


def subjects() -> Iterator[Subject]:
    """Yield the models."""
    loaded = np.load(ROOT / "models/digits_vit/heldout.npz")
    images, labels = loaded["images"].astype(np.float32), loaded["labels"]
    model = onnx.load(ROOT / "models/digits_vit/digits_vit.onnx")
    first, rest = ([{"images": part}] for part in (images[:CHOOSING], images[CHOOSING:]))
    for name, made in (
        ("digits ViT", model),
        ("digits ViT, principal axes", pca_twin(model, first)),
        ("digits ViT, large gammas", gamma_twin(model)),
        ("digits ViT, stream x 2^16", larger(model, LARGER)),
    ):
        yield Subject(name, made, first, rest, labels[CHOOSING:])
    for recipe in ("gpt2", "llama-small", "vit-b16"):
        export = onnx.load(ROOT / f"tests/recipes/{recipe}.onnx")
        drawn = make_inputs(ir.from_proto(export), InputSpec(), count=8, seed=1)
        for name, made in (
            (recipe, export),
            (f"{recipe}, principal axes", pca_twin(export, drawn)),
        ):
            yield Subject(f"{name} (untrained)", made, drawn[:4], drawn[4:])


def larger(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Return the model with its streams times 2^bits, which changes no output."""
    info = prepare(ir.from_proto(model)).info
    plan = decide(info, Settings(scale_streams=1))
    edit = Editor(info)
    apply(edit, ScalePlan(tuple(_grown(stream, bits) for stream in plan.streams)), Settings())
    return ir.to_proto(edit.model)


def _grown(stream: ScaledStream, bits: int) -> ScaledStream:
    epsilons = (
        replace(each, number=each.number * 2.0 ** (2 * bits + 2)) for each in stream.epsilons
    )
    return replace(stream, exponent=-bits, epsilons=tuple(epsilons))


def truths(subject: Subject, feeds: Sequence[Mapping[str, Array]]) -> list[Array]:
    """Return the first output in float64 for each feed."""
    model = ir.from_proto(subject.model)
    return [next(iter(run(model, feed, precision=Precision.FLOAT64).values())) for feed in feeds]


def outputs(
    model: onnx.ModelProto, precision: str, feeds: Sequence[Mapping[str, Array]], folder: Path
) -> list[Array]:
    """Return the first output of the model in a precision for each feed."""
    source, made = folder / "float.onnx", folder / "reduced.onnx"
    onnx.save(model, source)
    STEPS[precision].apply(source, made, Context(ModelFacts("bert")))
    session = Variant(made).session(1, [CPU])
    names = [value.name for value in session.get_inputs()]
    return [session.run(None, {name: feed[name] for name in names})[0] for feed in feeds]


def error(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the relative error in percent."""
    off = sum(
        float(np.square(a - b.astype(np.float64)).sum())
        for a, b in zip(expected, found, strict=True)
    )
    size = sum(float(np.square(a).sum()) for a in expected)
    return 100 * float(np.sqrt(off / size)) if np.isfinite(off) else float("inf")


def accuracy(subject: Subject, found: Sequence[Array]) -> int | None:
    """Return how many are right; None without labels."""
    if subject.labels is None:
        return None
    chosen = np.concatenate([np.nan_to_num(each).argmax(-1).reshape(-1) for each in found])
    return int((chosen == subject.labels).sum())


def rotated(subject: Subject, precision: str, seeds: int, folder: Path) -> onnx.ModelProto | None:
    """Return the rotation that errs least on the inputs to choose by, the model among them."""
    candidates = [subject.model]
    for seed in range(seeds):
        with contextlib.suppress(OnnxfoldError):
            options = {"rotate": "hadamard", "rotation_seed": seed, "allow_split": 1 << 30}
            candidates.append(onnxfold.optimize(subject.model, check=0, **options).model)
    expected = truths(subject, subject.choosing)
    errors = [error(expected, outputs(m, precision, subject.choosing, folder)) for m in candidates]
    worth = min(errors) <= WORTH * errors[0]
    return None if len(candidates) == 1 else candidates[int(np.argmin(errors)) * worth]


def split(subject: Subject) -> onnx.ModelProto:
    """Return the model with gammas split by the inputs to choose by."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "choosing.npz")
        np.savez(data, **subject.choosing[0])
        made = onnxfold.optimize(
            subject.model, split_gamma="auto", norm_form="layer", data=data, check=0
        )
    model: onnx.ModelProto = made.model
    return model


def rows_of(subject: Subject, seeds: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of a model."""
    expected = truths(subject, subject.feeds)

    def row(basis: str, precision: str, model: onnx.ModelProto) -> Row:
        found = outputs(model, precision, subject.feeds, folder)
        # One model in one precision; ``error`` in percent, inf where an output is not finite.
        # ``basis``: of the stream, as it is, rotated, scaled, or with gammas split; ``accuracy``:
        # right ones of ``samples``.
        return Row(
            onnxruntime=version("onnxruntime"),
            subject=subject.name,
            basis=basis,
            precision=precision,
            error=round(error(expected, found), 4),
            accuracy=accuracy(subject, found),
            samples=sum(len(each) for each in expected),
        )

    yield row("as it is", "fp16", subject.model)
    scaled = onnxfold.optimize(subject.model, scale_streams="auto", check=0)
    if any(stream["exponent"] for stream in scaled.report["scaled_streams"]["streams"]):
        yield row("scaled", "fp16", scaled.model)
        return
    for precision in QUANTISERS:
        yield row("as it is", precision, subject.model)
        turned = rotated(subject, precision, seeds, folder)
        if turned is not None:
            yield row("rotated", precision, turned)
        if precision.startswith("int8"):
            yield row("split", precision, split(subject))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the rows and return the exit code."""
    chosen = arguments(__doc__, {"--seeds": 4, "--out": RESULTS / "precision.csv"}, words)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)  # of quantizers
    made: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for subject in subjects():
            for row in rows_of(subject, chosen.seeds, Path(folder)):
                print(row.subject, row.basis, row.precision, row.error, row.accuracy, flush=True)
                made.append(row)
            write(chosen.out, made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
