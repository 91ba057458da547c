"""What more seeds of a rotation are worth in int8 and int4, and the least that any can reach.

    python -m benchmarks.rotation_seeds [--seeds 64] [--twins gpt2 ..]

The twins of ``benchmarks.precision`` in their principal axes, rotated by some seeds: of the first 4
and of all the best on some inputs, and its error on the others.  MatMulNBits rounds weights in
blocks of 32 rows, so a rotation of the stream helps where rows of some blocks are larger than
others.  ``weights_as_is`` and ``weights_rotated``, the median of the seeds, are the errors of the
weights themselves, root mean square relative to them: where these are equal, no rotation has an
outlier to spread.  Errors are in percent; rows of a twin take the place of its old ones in
benchmarks/results/rotation_seeds.csv.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.harness import arguments
from benchmarks.precision import Bench, error, truths
from benchmarks.precision_subjects import TURNED, Array, Subject, digits, recipe, twins
from benchmarks.rows import RESULTS, Row, put, tell
from onnxfold.tuning.rotation_search import WORTH

_PRECISIONS, _FEW = ("int8", "int4-blocks32"), 4
_ZERO = 8  # of four bits without a zero point


def twin(name: str) -> Subject:
    """Return a model in its principal axes."""
    if name == "digits":
        return next(islice(digits(), 1, None))
    return next(twins(recipe(name)))


def weight_error(source: onnx.ModelProto, reduced: onnx.ModelProto) -> float:
    """Return the relative error in percent of the weights that are in blocks of four bits."""
    known = {each.name: each for each in source.graph.initializer}
    made = {each.name: numpy_helper.to_array(each) for each in reduced.graph.initializer}
    off = size = 0.0
    for node in reduced.graph.node:
        name = node.input[1].removesuffix("_Q4") if node.op_type == "MatMulNBits" else ""
        if name in known:
            weight = numpy_helper.to_array(known[name]).astype(np.float64)
            rounded = _rounded(made[node.input[1]], made[node.input[2]])[:, : len(weight)].T
            off += float(np.square(rounded - weight).sum())
            size += float(np.square(weight).sum())
    return 100 * float(np.sqrt(off / size))


def _rounded(packed: Array, scales: Array) -> Array:
    """Return [columns, rows] of packed [columns, blocks, bytes] and a scale for each block."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float64) - _ZERO
    columns, blocks = packed.shape[:2]
    values = nibbles.reshape(columns, blocks, -1) * scales.reshape(columns, blocks, 1)
    return np.asarray(values.reshape(columns, -1))


def rows(name: str, seeds: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of one twin: the best of few and of all seeds, in each precision."""
    subject = twin(name)
    bench = Bench(subject, "", folder, seeds)
    every = [subject.model, *bench.rotations()]
    chosen_by = truths(subject, subject.choosing)
    for precision in _PRECISIONS:
        choosing, errors, weights = [], [], []
        for model in every:
            choosing.append(error(chosen_by, bench.outputs(model, precision, subject.choosing)))
            errors.append(error(bench.expected, bench.outputs(model, precision, subject.feeds)))
            if precision.startswith("int4"):
                weights.append(weight_error(model, onnx.load(folder / "reduced.onnx")))
        for count in sorted({min(_FEW, seeds), seeds}):
            best = int(np.argmin(choosing[: count + 1]))
            best = best if choosing[best] <= WORTH * choosing[0] else 0
            turned = errors[1 : count + 1]
            yield Row(
                subject=subject.name,
                precision=precision,
                seeds=count,
                as_is=round(errors[0], 4),
                rotated=round(errors[best], 4),
                ratio=round(errors[best] / errors[0], 3),
                least=round(min(turned), 4),
                median=round(float(np.median(turned)), 4),
                most=round(max(turned), 4),
                weights_as_is=round(weights[0], 3) if weights else None,
                weights_rotated=round(float(np.median(weights[1:])), 3) if weights else None,
            )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the rows and return the exit code."""
    options = {
        "--seeds": 64,
        "--twins": ("digits", *TURNED),
        "--out": RESULTS / "rotation_seeds.csv",
    }
    given = arguments(__doc__, options, words)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)  # of quantizers
    with tempfile.TemporaryDirectory() as folder:
        for name in given.twins:
            made = list(rows(name, given.seeds, Path(folder)))
            put(given.out, made, ("subject",))
            tell(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
