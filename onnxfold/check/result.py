"""What a verification says: per output, and in all."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

__all__ = ["ModelSource", "OutputCheck", "Verification"]

# What a fold may do: it rounds each changed weight once more, and takes fewer operations.


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model, and the file that holds it if there is one, from which a runtime reads it."""

    model: ir.Model
    path: Path | None = None

    @property
    def label(self) -> str:
        return "the model" if self.path is None else str(self.path)


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Errors of one output against the truth, over all samples, in the output's own unit.

    noise_ratio: the error of the rewritten model in multiples of the original's, root mean square,
    in the worst sample; infinite where shapes, NaN or infinities differ. compared: how many of its
    elements are finite in all runs, and so were compared as numbers.
    """

    name: str
    dtype: str
    max_abs_error: float
    rms_error: float
    original_rms_error: float
    noise_ratio: float
    passed: bool
    elements: int = 0
    compared: int = 0

    @property
    def nothing_compared(self) -> bool:
        """Whether NaN and infinities stand where they stood, and nothing else was to be seen."""
        return self.elements > 0 and self.compared == 0


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a rewritten model computes what the original does, and how that was found out.

    method: "float64" (both against a float64 run of the original) or "onnxruntime" (against the
    original without optimizations, where no float64 run could be had). runtime: what ran the two
    models. pieces: in how many pieces it ran the one with more, where they did not fit in memory.
    worst: on failure, one sentence on the worst output.
    """

    passed: bool
    method: str
    runtime: str
    samples: int
    max_abs_error: float
    noise_ratio: float
    limit: float
    outputs: tuple[OutputCheck, ...]
    worst: str | None = None
    pieces: int = 1

    def to_json(self) -> dict[str, Any]:
        """The same as a dictionary for JSON, in which numbers that are not finite become null."""
        record: dict[str, Any] = _finite(asdict(self))
        record["outputs"] = [
            {**_finite(asdict(output)), "nothing_compared": output.nothing_compared}
            for output in self.outputs
        ]
        record["nothing_compared"] = [o.name for o in self.outputs if o.nothing_compared]
        return record


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
