"""The result of a run and its candidates: objects, the document of its report, and files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from onnxfold import __version__, model_io
from onnxfold.errors import ModelError
from onnxfold.inputs import InputSpec
from onnxfold.tuning.chains import Chain, needs_kernels, precision_of, spelled
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision, TuneOptions


class Status(StrEnum):
    """The outcome of a candidate."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"  # a step, or the session
    SAME = "same"  # the same file as another chain's
    MISSING = "missing"  # a package
    SKIPPED = "skipped"  # the budget ran out


@dataclass(slots=True)
class Candidate:
    """A chain, its file, and the results of the gate and the timing.

    reason: why it is not correct, or not fast. errors: the worst error of any output by metric.
    excluded: nodes that the reducing step left unchanged. ratio: the speed relative to the input,
    the median over rounds, with the 10th and 90th percentile if it reached the final.
    """

    chain: Chain
    status: Status = Status.SKIPPED
    reason: str | None = None
    path: Path | None = None
    nbytes: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    seconds: float = 0.0
    milliseconds: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def steps(self) -> Chain:
        return self.chain

    @property
    def name(self) -> str:
        return spelled(self.chain)

    @property
    def precision(self) -> TargetPrecision:
        return precision_of(self.chain)

    @property
    def kernels(self) -> bool:
        """Whether it runs with onnxfold's kernels."""
        return needs_kernels(self.chain)

    @property
    def session_nodes(self) -> int:
        return sum(self.operators.values())

    def to_json(self) -> dict[str, Any]:
        """Return the row of the report."""
        return {
            "chain": list(self.chain),
            "name": self.name,
            "precision": self.precision.value,
            "status": self.status.value,
            "reason": self.reason,
            "bytes": self.nbytes,
            "session_nodes": self.session_nodes,
            "session_operators": dict(self.operators),
            "errors": dict(self.errors),
            "excluded": list(self.excluded),
            "kernels": self.kernels,
            "milliseconds": self.milliseconds,
            "ratio": self.ratio,
            "ratio_low": self.ratio_low,
            "ratio_high": self.ratio_high,
            "build_seconds": round(self.seconds, 2),
        }


SCHEMA = 1
METADATA_KEY = "onnxfold.tune"
_UNFIT = re.compile(r"[^A-Za-z0-9]+")
# The part of the report that a file keeps.
_NOTED = ("onnxfold", "onnxruntime", "device", "threads", "winner", "commands")


@dataclass(slots=True)
class TuneResult:
    """Every candidate, the one that was written (or None), the report, and its location."""

    candidates: list[Candidate]
    winner: Candidate | None
    facts: ModelFacts
    report: dict[str, Any] = field(default_factory=dict)
    output: Path | None = None


def document(result: TuneResult, options: TuneOptions, source: Path) -> dict[str, Any]:
    """Return the report for machines."""
    import onnxruntime

    winner = result.winner
    return {
        "schema": SCHEMA,
        "onnxfold": __version__,
        "onnxruntime": onnxruntime.__version__,
        "input": str(source),
        "device": options.device.value,
        "threads": options.threads,
        "timed": options.timed,
        "precisions": [each.value for each in options.precision],
        "facts": {
            "model_type": result.facts.model_type,
            "num_heads": result.facts.num_heads,
            "hidden_size": result.facts.hidden_size,
        },
        "winner": None if winner is None else winner.name,
        "commands": [] if winner is None else commands(winner, options, result.facts),
        "candidates": [candidate.to_json() for candidate in result.candidates],
    }


def commands(winner: Candidate, options: TuneOptions, facts: ModelFacts) -> list[str]:
    """Return the commands that produce the winner again."""
    if not winner.chain:
        return []
    words = ["onnxfold tune IN OUT", f'--chain "{spelled(winner.chain)}"']
    if options.device.value != "cpu":
        words.append(f"--device {options.device.value}")
    if "optimizer" in winner.chain:
        words.append(f"--model-type {facts.model_type}")
        words.append(f"--num-heads {facts.num_heads} --hidden-size {facts.hidden_size}")
    if options.data is not None:
        words.append(f"--data {options.data}")
    words += [f"--inputs {text}" for text in InputSpec.of(options.inputs).words()]
    return [" ".join(words)]


def publish(
    winner: Candidate, source: Path, output: Path, options: TuneOptions, report: Mapping[str, Any]
) -> Path:
    """Write the winner with a note of the commands that produce it, or the input byte for byte.

    Raises ModelError if it cannot be written, and if the input was changed
    meanwhile.
    """
    if winner.path is None:
        raise ModelError(f"{winner.name}: its file is gone")
    model = model_io.load(winner.path)
    if winner.path == source and model.meta.get(model_io.HAS_EXTERNAL_DATA) is False:
        with model_io.stage_copy(source, output, force=options.force) as staged:
            return staged.commit().model
    if winner.chain:
        note = {name: report[name] for name in _NOTED}
        model.metadata_props[METADATA_KEY] = json.dumps(note)
    with model_io.stage(model, output, source=source, force=options.force) as staged:
        model_io.check_unchanged(model)
        written = staged.commit().model
    model_io.mark_copy(written)  # the model as it is has no note of ours
    return written


def keep(candidates: Sequence[Candidate], folder: Path) -> None:
    """Write the file of every candidate into a folder, numbered as in the table."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror}; name another --keep-candidates") from error
    for number, candidate in enumerate(candidates):
        if candidate.chain and candidate.path is not None:
            name = _UNFIT.sub("-", candidate.name).strip("-")
            model = model_io.load(candidate.path)
            with model_io.stage(model, folder / f"{number:02}-{name}.onnx") as staged:
                staged.commit()


def model_bytes(path: Path) -> int:
    """Return the bytes of a model's files."""
    files = (path, *model_io.data_files(path).values())
    return sum(file.stat().st_size for file in files)
