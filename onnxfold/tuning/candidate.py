"""A chain and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from onnxfold.tuning.chains import Chain, needs_kernels, precision_of, spelled
from onnxfold.tuning.options import TargetPrecision


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
