"""What scaled and rotated streams are worth in float16, int8 and int4.

    python -m benchmarks.precision [--seeds 4] [--exports exports] [--only digits recipes ..]

Models and inputs are those of ``benchmarks.precision_subjects``.  Of rotations the best of some
seeds on a part of the inputs, and its error on the others; errors are root mean squares relative to
the float64 outputs of the model, in percent.  Families that are not asked for keep their rows.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import onnxfold
from benchmarks.harness import CPU, arguments
from benchmarks.precision_subjects import (
    SPLIT,
    TURNED,
    Array,
    Feeds,
    Subject,
    digits,
    large_streams,
    planted,
    recipe,
    trained,
    twins,
)
from benchmarks.rows import RESULTS, Row, merge
from models.outlier_twins import gamma_twin
from onnxfold.check.reference import Precision, run
from onnxfold.errors import OnnxfoldError
from onnxfold.runtime.interleaved_timing import Variant
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.rotation_search import WORTH
from onnxfold.tuning.steps import STEPS, Context

QUANTISERS = ("int8", "int8-channel", "int8-static", "int4-blocks32")
SPLIT_FOR = ("int8", "int8-channel", "int8-static")
FAMILIES = ("digits", "recipes", "gammas", "streams", "trained")


def truths(subject: Subject, feeds: Feeds) -> list[Array]:
    """Return the first output in float64 for each feed."""
    model = ir.from_proto(subject.model)
    return [next(iter(run(model, feed, precision=Precision.FLOAT64).values())) for feed in feeds]


@dataclass
class Bench:
    """What a subject gives in float64, and its errors in other precisions."""

    subject: Subject
    family: str
    folder: Path
    seeds: int

    @cached_property
    def expected(self) -> list[Array]:
        """The outputs in float64."""
        return truths(self.subject, self.subject.feeds)

    @property
    def labels(self) -> Array | Sequence[str] | None:
        """What is right: given, or what float64 chooses; None where classes have no meaning."""
        return classes(self.expected) if self.subject.chooses else self.subject.right

    @cached_property
    def outliers(self) -> float:
        """The largest channel that a linear layer reads, by the median one."""
        return largest_channel(self.subject)

    def outputs(
        self, model: onnx.ModelProto, precision: str, feeds: Feeds, exclude: Sequence[str] = ()
    ) -> list[Array]:
        """Return the first output of the model in a precision for each feed."""
        source, made = self.folder / "float.onnx", self.folder / "reduced.onnx"
        onnx.save(model, source)
        calibration = tuple(self.subject.choosing)
        context = Context(ModelFacts("bert"), exclude=tuple(exclude), feeds=calibration)
        STEPS[precision].apply(source, made, context)
        session = Variant(made).session(1, [CPU])
        names = [value.name for value in session.get_inputs()]
        return [session.run(None, {name: feed[name] for name in names})[0] for feed in feeds]

    def errors(
        self, models: Sequence[onnx.ModelProto], precision: str, expected: list[Array], feeds: Feeds
    ) -> list[float]:
        """Return the relative error in percent of each model."""
        return [error(expected, self.outputs(model, precision, feeds)) for model in models]

    def row(
        self,
        basis: str,
        precision: str,
        model: onnx.ModelProto,
        spread: Sequence[float] = (),
        exclude: Sequence[str] = (),
    ) -> Row:
        """Return the row of one model in one precision.

        ``error`` in percent, inf where an output is not finite. ``basis`` of the stream: as it is,
        rotated, scaled, with gammas split, or with those layers in float32 that read a gamma which
        is split, the least that any split reaches; ``least`` and ``most``: the errors of all seeds
        of a rotation; ``outliers``: the largest channel that a linear layer reads, by the median
        one; ``right`` of ``samples``.
        """
        found = self.outputs(model, precision, self.subject.feeds, exclude)
        known = self.labels
        return Row(
            onnxruntime=version("onnxruntime"),
            family=self.family,
            subject=self.subject.name,
            basis=basis,
            precision=precision,
            error=_rounded(error(self.expected, found)),
            least=_rounded(min(spread)) if spread else "",
            most=_rounded(max(spread)) if spread else "",
            outliers=round(self.outliers, 1),
            right="" if known is None else right(known, self.subject.characters, found),
            samples=len(known) if known is not None else sum(len(each) for each in self.expected),
        )

    def rotations(self) -> list[onnx.ModelProto]:
        """Return the model rotated by each seed; none where that is refused."""
        made = []
        for seed in range(self.seeds):
            with contextlib.suppress(OnnxfoldError):
                options = {"rotate": "hadamard", "rotation_seed": seed, "allow_split": 1 << 30}
                options |= {"norm_form": self.subject.form}
                made.append(onnxfold.optimize(self.subject.model, check=0, **options).model)
        return made

    def split(self) -> tuple[onnx.ModelProto, list[str]]:
        """Return the model with gammas split by the inputs to choose by, and who reads them."""
        layer = any(node.op_type == "LayerNormalization" for node in self.subject.model.graph.node)
        form = "layer" if layer else self.subject.form
        with tempfile.TemporaryDirectory() as folder:
            for number, feed in enumerate(self.subject.choosing):
                np.savez(Path(folder, f"{number}.npz"), **feed)
            made = onnxfold.optimize(
                self.subject.model, split_gamma="auto", norm_form=form, data=folder, check=0
            )
        weights = {
            name for norm in made.report["split_gammas"]["norms"] for name in norm["weights"]
        }
        readers = [n.name for n in self.subject.model.graph.node if weights & {*n.input}]
        return made.model, readers

    def rows(self, *, rotated: bool = True) -> Iterator[Row]:
        """Yield the rows of a subject in int8 and int4."""
        model, (split, readers) = self.subject.model, self.split()
        turned = self.rotations() if rotated else []
        chosen_by = truths(self.subject, self.subject.choosing) if turned else []
        for precision in QUANTISERS:
            if not rotated and precision not in SPLIT_FOR:
                continue
            yield self.row("as it is", precision, model)
            if turned:
                every = (model, *turned)
                errors = self.errors(every, precision, chosen_by, self.subject.choosing)
                best = int(np.argmin(errors)) if min(errors) <= WORTH * errors[0] else 0
                spread = self.errors(turned, precision, self.expected, self.subject.feeds)
                yield self.row("rotated", precision, every[best], spread)
            if precision in SPLIT_FOR:
                yield self.row("split", precision, split)
            if not rotated and readers and precision in SPLIT_FOR:
                yield self.row("readers in float", precision, model, exclude=readers)

    def scaled_rows(self) -> Iterator[Row]:
        """Yield the rows of a subject in float16."""
        yield self.row("as it is", "fp16", self.subject.model)
        scaled = onnxfold.optimize(self.subject.model, scale_streams="auto", check=0)
        if any(stream["exponent"] for stream in scaled.report["scaled_streams"]["streams"]):
            yield self.row("scaled", "fp16", scaled.model)


def _rounded(number: float) -> float:
    return round(number, 4)


def error(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the relative error in percent."""
    off = sum(
        float(np.square(a - b.astype(np.float64)).sum())
        for a, b in zip(expected, found, strict=True)
    )
    size = sum(float(np.square(a).sum()) for a in expected)
    return 100 * float(np.sqrt(off / size)) if np.isfinite(off) else float("inf")


def right(known: Array | Sequence[str], characters: str, found: Sequence[Array]) -> int:
    """Return how many labels are right, or lines of text."""
    if not characters:
        return int((classes(found) == known).sum())
    lines = [_read(classes([each]), characters) for each in found]
    return sum(line == text for line, text in zip(lines, known, strict=True))


def classes(found: Sequence[Array]) -> Array:
    """Return the largest class of every row of the outputs."""
    return np.concatenate([np.nan_to_num(each).argmax(-1).reshape(-1) for each in found])


def _read(chosen: Array, characters: str) -> str:
    """Return the text of the chosen classes: 0 is a blank, and repeated ones are one."""
    known = ["", *characters.splitlines(), " "]
    changed = np.concatenate([[True], chosen[1:] != chosen[:-1]])
    return "".join(known[number] for number in chosen[changed])


def largest_channel(subject: Subject) -> float:
    """Return the largest channel by the median one, of all that a linear layer reads."""
    model = ir.from_proto(subject.model)
    stored = model.graph.initializers
    read = {
        node.inputs[0]
        for node in model.graph
        if node.op_type in ("MatMul", "Gemm") and (W := node.inputs[1]) and W.name in stored
    }
    peaks: dict[ir.Value, Array] = {}

    def observe(value: ir.Value, array: Array) -> Array:
        if value in read:
            peak = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0)
            peaks[value] = np.maximum(peaks.get(value, peak), peak)
        return array

    run(model, subject.choosing[0], precision=Precision.FLOAT64, observe=observe)
    ratios = [float(peak.max() / median) for peak in peaks.values() if (median := np.median(peak))]
    return max(ratios, default=1.0)


def mean_rows(benches: Sequence[Bench]) -> Iterator[Row]:
    """Yield the geometric means of the errors of several subjects of one name."""
    every = [list(bench.rows(rotated=False)) for bench in benches]
    for rows in zip(*every, strict=True):
        row = rows[0]
        row.error = _rounded(float(np.exp(np.mean(np.log([each.error for each in rows])))))
        yield row


def family_rows(
    family: str, bench: Callable[[Subject], Bench], exports: Path | None
) -> Iterator[Row]:
    """Yield the rows of a family of subjects."""
    if family == "digits":
        for subject in digits():
            yield from bench(subject).rows()
    elif family == "recipes":
        for name in TURNED:
            plain = recipe(name)
            for subject in (plain, *twins(plain)):
                yield from bench(subject).rows()
    elif family == "gammas":
        for name in SPLIT:
            yield from split_rows(recipe(name), bench)
    elif family == "streams":
        for subject in large_streams():
            yield from bench(subject).scaled_rows()
    else:
        for subject in trained(exports):
            yield from bench(subject).scaled_rows()
            yield from bench(subject).rows()


def split_rows(plain: Subject, bench: Callable[[Subject], Bench]) -> Iterator[Row]:
    """Yield the rows of a recipe without large gammas, with some, and with their twin's."""
    twin = replace(plain, name=f"{plain.name}, large gammas", model=gamma_twin(plain.model))
    for subject in (plain, twin):
        yield from bench(subject).rows(rotated=False)
    yield from mean_rows([bench(subject) for subject in planted(plain)])


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the rows and return the exit code."""
    options = {
        "--seeds": 4,
        "--exports": {"type": Path},
        "--only": FAMILIES,
        "--out": RESULTS / "precision.csv",
    }
    chosen = arguments(__doc__, options, words)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)  # of quantizers
    with tempfile.TemporaryDirectory() as folder:
        for family in chosen.only:
            made: list[Row] = []
            bench = partial(Bench, family=family, folder=Path(folder), seeds=chosen.seeds)
            for row in family_rows(family, bench, chosen.exports):
                print(row.subject, row.basis, row.precision, row.error, row.right, flush=True)
                made.append(row)
            merge(chosen.out, made, "family", [family], FAMILIES)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
