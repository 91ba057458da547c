"""The gate: whether a candidate is correct, by the criterion of its precision.

The truth is a float64 run of the input model. At full precision a candidate passes as a fold does:
it may err at most a small multiple of the input model's own error on the device. A reduced
precision has an error budget (`onnxfold.check.budget`), on the user's data if given, otherwise on
drawn inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from onnxfold.check.budget import Budget, judge_budget
from onnxfold.check.compare import check_interface
from onnxfold.check.criterion import AcceptanceCriterion
from onnxfold.check.result import ModelSource
from onnxfold.check.runners import Outputs
from onnxfold.check.truth import Truth, judged
from onnxfold.errors import VerificationError
from onnxfold.options import DEFAULT_NOISE_LIMIT, Metric
from onnxfold.tuning.options import TargetPrecision, TuneOptions

Run = Callable[[bool], list[Outputs]]  # with optimizations or without
# Rows that overflow no narrow type, and on which a norm divides by little more than epsilon.
_HARMLESS = frozenset({"constant", "zero"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate passes, why not, and its worst errors by metric."""

    passed: bool
    reason: str | None
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gate:
    """Judge of candidates' outputs on the feeds of a truth."""

    source: ModelSource
    truth: Truth
    options: TuneOptions

    def budget(self, precision: TargetPrecision) -> Budget:
        """Return the error budget of a precision, or the user's if given."""
        metric, limit = self.options.metric, self.options.max_error
        if limit is not None:
            return Budget({metric or Metric.RELATIVE: limit})
        if metric is not None:
            return Budget({metric: Budget.default_limit(precision.value, metric)})
        return Budget.default(precision.value)

    @property
    def judged_on(self) -> slice:
        """The feeds on which a reduced precision is judged: the user's, if given.

        Artificial numbers would exceed the ranges that a quantizer has seen in data.
        """
        drawn = self.truth.drawn
        given = self.options.data is not None
        return slice(drawn, None) if given else slice(drawn - len(self.truth.rows))

    def judge(self, run: Run, candidate: ModelSource, precision: TargetPrecision) -> Verdict:
        """Return whether a candidate is correct.

        `run` returns its outputs, one mapping for each feed. The session has all optimizations, or
        none if the run is asked for that.
        """
        try:
            check_interface(self.source, candidate)
        except VerificationError as error:
            return Verdict(False, str(error))
        if precision is TargetPrecision.FP32 and self.options.max_error is None:
            criterion = AcceptanceCriterion(DEFAULT_NOISE_LIMIT)
            found = judged(self.source, candidate, self.truth, criterion, run)
            return Verdict(found.passed, found.worst, {"noise_ratio": found.noise_ratio})
        drawn, rows, outputs = self.truth.drawn, self.truth.rows, run(True)
        report = judge_budget(
            self.truth.outputs[self.judged_on], outputs[self.judged_on], self.budget(precision)
        )
        for number, kind in enumerate(rows, drawn - len(rows)):
            if report.passed and kind in _HARMLESS and not _is_finite(outputs[number]):
                sentence = f"it gives NaN or infinity where inputs have {kind} rows"
                report = replace(report, passed=False, sentence=sentence)
        worst: dict[str, float] = {}
        for output in report.outputs:
            for metric, size in output.worst.items():
                worst[metric.value] = max(worst.get(metric.value, 0.0), size)
        return Verdict(report.passed, report.sentence, worst)


def _is_finite(outputs: Outputs) -> bool:
    floats = (array for array in outputs.values() if array.dtype.kind == "f")
    return all(bool(np.isfinite(array).all()) for array in floats)
