"""Search for the rotation of a model's streams with the least quantization error, or none.

Each candidate is quantized by the same step in its own process, and the results of the quantized
file are compared with a float64 run of the original model. The model without a rotation is a
candidate too: the written file is never worse on these inputs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold import model_io
from onnxfold.check.error_metrics import errors
from onnxfold.check.runners import CannotRun, OnnxRuntime
from onnxfold.check.truth import Truth, truth_of
from onnxfold.errors import ModelError
from onnxfold.inputs import InputSpec
from onnxfold.inputs.data import read_samples
from onnxfold.model_io.load import open_source
from onnxfold.model_io.staging import StagingFolder
from onnxfold.options import Device, Metric, Options
from onnxfold.pipeline import run
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.tuning.facts import guess
from onnxfold.tuning.options import QUANTIZERS, RotationOptions
from onnxfold.tuning.processes import JobFailed, Processes
from onnxfold.tuning.workshop import Workshop

_STEP_SECONDS = 600.0
# A rotation is taken where it errs at most so many times as much: the least of some seeds is a
# little less by luck, which other inputs do not bring.
WORTH = 0.9


@dataclass(frozen=True, slots=True)
class RotationRow:
    """A candidate: its seed, None for the model as it is, and the error of its quantized file."""

    seed: int | None
    error: float
    path: Path

    @property
    def name(self) -> str:
        """The candidate in words."""
        return "as it is" if self.seed is None else f"seed {self.seed}"


@dataclass(frozen=True, slots=True)
class RotationResult:
    """What was written, and the report of all candidates."""

    output: Path
    report: dict[str, Any]


def search(
    model: str | os.PathLike[str], output: str | os.PathLike[str], options: RotationOptions
) -> RotationResult:
    """Write the model in the basis whose quantized file errs least; as it is where none does.

    Raises ModelError where no stream can be rotated, or nothing can be quantized or run; DataError
    for data that does not suit the model.
    """
    source = Path(model)
    model_io.check_destination(output, source=source, force=options.force)
    model_io.check_replaceable(output, source=source, force=options.force)
    loaded = open_source(source)
    given = None if options.data is None else read_samples(options.data, loaded.model, source)
    truth = truth_of(
        loaded,
        spec=InputSpec.of(options.inputs),
        samples=0 if given is not None else options.samples,
        seed=options.seed,
        data=() if given is None else given.feeds,
    )
    with closing(StagingFolder(Path(tempfile.gettempdir()))) as scratch:
        rows = [_measured(source, None, truth, scratch.path, options)]
        rotations: dict[str, Any] = {}
        for seed in range(options.seeds):
            path = scratch.path / f"seed{seed}.onnx"
            rotations = _rotated(source, path, seed, options)
            rows.append(_measured(path, seed, truth, scratch.path, options))
        best = _best(rows)
        written = _written(best.path, source, Path(output), options)
    said = f"{len(truth.feeds)} drawn inputs" if given is None else given.label
    return RotationResult(written, _document(rows, best, rotations, options, said))


def _best(rows: Sequence[RotationRow]) -> RotationRow:
    """Return the least error, or the model as it is where no rotation is clearly better."""
    least = min(rows, key=lambda row: row.error)
    return least if least.error <= WORTH * rows[0].error else rows[0]


def _rotated(source: Path, path: Path, seed: int, options: RotationOptions) -> dict[str, Any]:
    """Write the model rotated by a seed; return what was rotated."""
    chosen = Options(
        rotate=options.matrix,
        rotation_seed=seed,
        allow_split=options.allow_split,
        check=2,
        inputs=options.inputs,
        force=True,
    )
    with np.errstate(all="ignore"):
        report = run(open_source(source), path, chosen, StageTimer(None)).report
    return {name: report[name] for name in ("rotated_streams", "rotated_heads")}


def _measured(
    path: Path, seed: int | None, truth: Truth, scratch: Path, options: RotationOptions
) -> RotationRow:
    """Quantise a file, run it, and compare it with the truth."""
    folder = scratch / f"quantised{'' if seed is None else seed}"
    folder.mkdir()
    facts = guess(model_io.load(path))
    workshop = Workshop(folder, path, Processes(folder), facts, Device.CPU, _STEP_SECONDS)
    try:
        made = workshop.build((QUANTIZERS[options.to],), time.monotonic() + _STEP_SECONDS)
        quantised = open_source(made.path)
        outputs = OnnxRuntime.of(None).run(quantised, truth.feeds, optimize=True)
    except (JobFailed, CannotRun) as error:
        raise ModelError(f"{path.name} cannot be measured in {options.to}: {error}") from error
    return RotationRow(seed, _error(truth.outputs, outputs), path)


def _error(truths: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> float:
    """Return the relative error of the worst output, root mean square over the samples."""
    names = [name for name, array in truths[0].items() if array.dtype.kind == "f"]
    found = [0.0]
    for name in names:
        pairs = [t[name] for t in truths], [o[name] for o in outputs]
        each = np.array(errors(Metric.RELATIVE, *pairs, 2.0**-24))
        found.append(float(np.sqrt(np.mean(np.square(each)))))
    return max(found)


def _written(best: Path, source: Path, output: Path, options: RotationOptions) -> Path:
    with model_io.stage(model_io.load(best), output, source=source, force=options.force) as staged:
        written = staged.commit().model
    model_io.mark_copy(written)  # the model as it is has no note of ours
    return written


def _document(
    rows: Sequence[RotationRow],
    best: RotationRow,
    rotations: Mapping[str, Any],
    options: RotationOptions,
    said: str,
) -> dict[str, Any]:
    return {
        "schema": 1,
        "to": options.to,
        "quantiser": QUANTIZERS[options.to],
        "matrix": options.matrix,
        "data": said,
        "candidates": [{"seed": row.seed, "name": row.name, "error": row.error} for row in rows],
        "best": best.name,
        "gain": rows[0].error / best.error if best.error else 1.0,
        **rotations,
    }
