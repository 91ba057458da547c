"""Result of a verification: per output, and overall."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # their types need imports that a result does not
    from onnxfold.check.blame import Blame
    from onnxfold.check.budget import Budget, BudgetReport

# A relative error of ONNX Runtime that rounding explains only in chaotic and quantized models.
FAR = 0.02


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Errors of one output against the truth, over all samples, in the output's own unit.

    noise_ratio: the error of the rewritten model in multiples of the original's, root mean square,
    in the worst sample; infinite where shapes, NaN or infinities differ. method: the truth was a
    "float64" run of the original, or its run in "onnxruntime" without optimizations; reason: why it
    is not a float64 run. bound: the allowed root mean square error, or the largest error by the
    user's tolerance; allowed: where that bound comes from, in words. relative_noise: the original's
    own error relative to the size of the output, root mean square; near 1, as in chaotic models, a
    comparison means little. compared: how many elements are finite in all runs, and so were
    compared as numbers.
    """

    name: str
    dtype: str
    method: str
    bound: float
    allowed: str
    reason: str | None
    max_abs_error: float
    rms_error: float
    original_rms_error: float
    noise_ratio: float
    relative_noise: float
    passed: bool
    elements: int = 0
    compared: int = 0

    @property
    def nothing_compared(self) -> bool:
        """Whether the output is empty, or holds only NaN and infinities, at the same positions."""
        return self.compared == 0


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a rewritten model computes what the original does, and the evidence.

    runtime: what ran the two models. pieces: the larger number of pieces in which a model ran, if
    it did not fit in memory. single: why batches had one row, if the original runs on no others.
    worst: on failure, one sentence on the worst output. notes: known traps. blame: the nodes at
    fault, if requested. data: the user's inputs, in addition to the drawn ones. rows: the kinds of
    extreme rows in additional samples.
    """

    passed: bool
    runtime: str
    samples: int
    limit: float
    outputs: tuple[OutputCheck, ...]
    worst: str | None = None
    pieces: int = 1
    single: str | None = None
    notes: tuple[str, ...] = ()
    blame: tuple["Blame", ...] = ()
    data: str | None = None
    rows: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method of all outputs (see `OutputCheck`), or "mixed" if they differ."""
        methods = {output.method for output in self.outputs}
        return "mixed" if len(methods) > 1 else next(iter(methods), "float64")

    @property
    def max_abs_error(self) -> float:
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    @property
    def noise_ratio(self) -> float:
        return max((output.noise_ratio for output in self.outputs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the same as a dictionary for JSON, with non-finite numbers as null."""
        totals = {name: getattr(self, name) for name in ("method", "max_abs_error", "noise_ratio")}
        record: dict[str, Any] = _finite(asdict(self) | totals)
        record["blame"] = [_finite(asdict(one)) for one in self.blame]
        for name in ("notes", "blame", "data"):
            if not record[name]:
                del record[name]
        record["outputs"] = [
            {**_finite(asdict(output)), "nothing_compared": output.nothing_compared}
            for output in self.outputs
        ]
        record["nothing_compared"] = [o.name for o in self.outputs if o.nothing_compared]
        return record


@dataclass(frozen=True, slots=True)
class BudgetVerification:
    """Whether a model of reduced precision is within an error budget of the original.

    method and reason: of the truth, as in `OutputCheck`. The other fields are as in `Verification`.
    """

    passed: bool
    runtime: str
    samples: int
    method: str
    reason: str | None
    budget: "Budget"
    report: "BudgetReport"
    notes: tuple[str, ...] = ()
    blame: tuple["Blame", ...] = ()
    data: str | None = None

    @property
    def worst(self) -> str | None:
        """On failure, one sentence on the first output over the budget."""
        return self.report.sentence

    def to_json(self) -> dict[str, Any]:
        """Return the same as a dictionary for JSON, with non-finite numbers as null."""
        return {
            **self.report.to_json(),
            "budget": {str(metric): limit for metric, limit in self.budget.limits.items()},
            "runtime": self.runtime,
            "samples": self.samples,
            "method": self.method,
            "reason": self.reason,
            "notes": list(self.notes),
            "blame": [_finite(asdict(one)) for one in self.blame],
            "data": self.data,
        }


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
