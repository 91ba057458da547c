"""The result of a run, as an object and as the document of its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxfold import __version__
from onnxfold.inputs import InputSpec
from onnxfold.tuning.candidate import Candidate
from onnxfold.tuning.chains import spelled
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TuneOptions

SCHEMA = 1


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
