"""Error budgets: is a model of reduced precision close enough to the original.

The criterion of ``onnxfold.check.criterion`` allows rounding errors alone, and a model in int8 errs
by thousands of times as much. How close is close enough is then a number that the user chooses: a
budget. The defaults are argued from measured models in docs/verify.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.check.criterion import kind_of_number
from onnxfold.check.error_metrics import OF_LOGITS, applies, differing, errors
from onnxfold.check.reference import Array, is_wide_float, unit_roundoff
from onnxfold.check.runners import Outputs
from onnxfold.errors import UsageError
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.options import Metric, member

# By precision, argued in docs/verify.md.  With independent errors 1 - cos = relative^2 / 2.
_DEFAULTS = {
    name: dict(zip(Metric, limits, strict=True))
    for name, limits in {
        "fp16": (0.01, 5e-5, 0.01, 1e-4),
        "bf16": (0.05, 1.25e-3, 0.02, 2.5e-3),
        "int8": (0.2, 0.02, 0.05, 0.05),
        "int4": (0.4, 0.08, 0.1, 0.2),
    }.items()
}
_FLOATING = "floating numbers"
_WORDS = {
    Metric.RELATIVE: "relative error",
    Metric.COSINE: "1 - cosine",
    Metric.TOP1: "share of other answers",
    Metric.KL: "KL divergence",
}
_INT4 = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
_INT8 = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_HALVES = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest allowed error by metric; all limits must be met.

    Relative error, 1 - cosine and KL are taken from the worst sample; top1 is the share over all
    rows of all samples, because a sample of one row is either right or wrong. For outputs that are
    not floating point, the share of elements that differ is limited by top1, otherwise by the
    relative error, otherwise it must be 0.
    """

    limits: Mapping[Metric, float]

    def __post_init__(self) -> None:
        if not self.limits:
            raise UsageError("an error budget needs a limit for one metric at least")
        for metric, limit in self.limits.items():
            if not (math.isfinite(limit) and limit >= 0):
                raise UsageError(f"the largest {metric} error must be 0 or more, not {limit}")

    @classmethod
    def default(cls, precision: str) -> "Budget":
        """The budget of a precision: fp16, bf16, int8 or int4; raises UsageError for others.

        It limits the metrics that suit every output.
        """
        metrics = (Metric.RELATIVE, Metric.COSINE)
        return cls({metric: cls.default_limit(precision, metric) for metric in metrics})

    @staticmethod
    def default_limit(precision: str, metric: Metric) -> float:
        """The limit of one metric for a precision; raises UsageError for unknown precisions."""
        if precision not in _DEFAULTS:
            raise UsageError(
                f"there is no budget for '{precision}'; there are {', '.join(_DEFAULTS)}"
            )
        return _DEFAULTS[precision][metric]

    @property
    def relative(self) -> float:
        """Return the allowed relative error, or the one that the cosine implies, or 0."""
        from_cosine = math.sqrt(2 * self.limits.get(Metric.COSINE, 0.0))
        return self.limits.get(Metric.RELATIVE, from_cosine)

    @property
    def share(self) -> float:
        """The share of elements that may differ in outputs that are not floating point."""
        return self.limits.get(Metric.TOP1, self.limits.get(Metric.RELATIVE, 0.0))


@dataclass(frozen=True, slots=True)
class OutputError:
    """One output: mean and worst error over samples by metric, the worst sample, the fault.

    The means are over all rows.  Metrics of logits are measured only where the budget names them.
    """

    name: str
    dtype: str
    mean: Mapping[Metric, float]
    worst: Mapping[Metric, float]
    worst_sample: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """Whether a budget is met; sentence: why not, one line that names output and metric."""

    passed: bool
    outputs: tuple[OutputError, ...]
    sentence: str | None

    def to_json(self) -> dict[str, object]:
        """Return the same as a dictionary for JSON, with non-finite numbers as null."""
        return {
            "passed": self.passed,
            "sentence": self.sentence,
            "outputs": [
                asdict(output) | {"mean": _finite(output.mean), "worst": _finite(output.worst)}
                for output in self.outputs
            ],
        }


def judge_budget(
    truths: Sequence[Outputs], outputs: Sequence[Outputs], budget: Budget
) -> BudgetReport:
    """Whether outputs of the same samples are within a budget of the truths.

    Faults under any budget: another shape, another kind of type, NaN or infinity elsewhere, and
    outputs that only one of the two has.
    """
    if not truths or len(truths) != len(outputs):
        raise UsageError(f"{len(outputs)} samples cannot be compared with {len(truths)} truths")
    names, given = list(truths[0]), list(outputs[0])
    new = [name for name in given if name not in names]
    found = [
        _judged(name, [t[name] for t in truths], [o[name] for o in outputs], budget)
        if name in given
        else _failed(name, truths[0][name], _missing(new))
        for name in names
    ]
    found += [_failed(name, outputs[0][name], "the original has no such output") for name in new]
    faults = [f"output '{e.name}': {e.fault}" for e in found if e.fault is not None]
    return BudgetReport(not faults, tuple(found), faults[0] if faults else None)


def _missing(new: Sequence[str]) -> str:
    instead = f", but {', '.join(map(repr, new))}" if new else ""
    return f"the changed model has no such output{instead}"


def _failed(name: str, array: Array, fault: str, sample: int = 0) -> OutputError:
    return OutputError(name, str(array.dtype), {}, {}, sample, fault)


def _judged(
    name: str, truths: Sequence[Array], outputs: Sequence[Array], budget: Budget
) -> OutputError:
    for number, (truth, output) in enumerate(zip(truths, outputs, strict=True)):
        fault = _misfit(truth, output)
        if fault is not None:
            return _failed(name, output, f"in sample {number} {fault}", number)
    if _kind(outputs[0]) != _FLOATING:
        shares = [differing(t, o) for t, o in zip(truths, outputs, strict=True)]
        limits = {Metric.TOP1: budget.share}
        return _held(name, outputs[0], {Metric.TOP1: shares}, [t.size for t in truths], limits)
    ts, rs = [_real(x) for x in truths], [_real(x) for x in outputs]
    if any(t.size for t in ts) and not any(np.isfinite(t).any() for t in ts):
        return _failed(name, outputs[0], "all of its truth is NaN or infinite")
    fitting = [m for m in Metric if all(applies(m, t.shape) for t in ts)]
    limits = {m: limit for m, limit in budget.limits.items() if m in fitting}
    if not limits:
        wanted = " or ".join(budget.limits)
        fault = f"of shape {list(ts[0].shape)} it has no {wanted} error: limit the relative one too"
        return _failed(name, outputs[0], fault)
    roundoff = unit_roundoff(np.real(outputs[0]).dtype)
    values = {m: errors(m, ts, rs, roundoff) for m in fitting if m in limits or m not in OF_LOGITS}
    rows = [t.size // max((1, *t.shape[-1:])) for t in ts]
    return _held(name, outputs[0], values, rows, limits)


def distance(truth: Array, output: Array) -> float:
    """The relative error, or the share of elements that differ; infinite where they do not fit."""
    if _misfit(truth, output) is not None:
        return math.inf
    if _kind(output) != _FLOATING:
        return differing(truth, output)
    roundoff = unit_roundoff(np.real(output).dtype)
    return errors(Metric.RELATIVE, [_real(truth)], [_real(output)], roundoff)[0]


def _misfit(truth: Array, output: Array) -> str | None:
    """Return why two arrays cannot be compared, whatever their numbers."""
    if output.shape != truth.shape:
        return f"its shape is {list(output.shape)}, not {list(truth.shape)}"
    kind, wanted = _kind(output), _kind(truth)
    if kind != wanted:
        return f"its type is {output.dtype}, {kind}, not {wanted}"
    if kind != _FLOATING:
        return None
    # Values beyond the range of float32 are infinite in the original too.
    with np.errstate(over="ignore"):
        single = _real(truth).astype(np.promote_types(np.float32, np.real(output).dtype))
    count = int(np.count_nonzero(kind_of_number(_real(output)) != kind_of_number(single)))
    return f"{count} of {truth.size} elements differ in being NaN or infinite" if count else None


def _kind(array: Array) -> str:
    dtype = array.dtype
    if dtype.kind == "c" or is_wide_float(dtype):
        return _FLOATING
    if dtype.kind in "iu":
        return "integers"
    names = {"b": "booleans", "O": "strings", "U": "strings", "S": "strings"}
    return names.get(dtype.kind, str(dtype))  # float8 and other codes


def _real(array: Array) -> Array:
    """Return the numbers in float64, complex ones as pairs."""
    if array.dtype.kind != "c":
        return array.astype(np.float64, copy=False)
    return np.stack([array.real, array.imag], axis=-1).astype(np.float64)


def _held(
    name: str,
    output: Array,
    values: Mapping[Metric, Sequence[float]],
    weights: Sequence[int],
    limits: Mapping[Metric, float],
) -> OutputError:
    """Return the errors of an output, and the limit that it exceeds."""
    weight = weights if sum(weights) else None
    mean = {m: float(np.average(each, weights=weight)) for m, each in values.items()}
    worst = {m: max(each) for m, each in values.items()}
    held = {m: mean[m] if m is Metric.TOP1 else worst[m] for m in limits}
    decisive = max(limits, key=lambda m: _used(held[m], limits[m]))
    sample = int(np.argmax(values[decisive]))
    fault = None
    if not held[decisive] <= limits[decisive]:
        where = "over all samples" if decisive is Metric.TOP1 else f"in sample {sample}"
        fault = (
            f"its {_WORDS[decisive]} is {held[decisive]:.3g} {where}, and the budget allows "
            f"{limits[decisive]:.3g}"
        )
    return OutputError(name, str(output.dtype), mean, worst, sample, fault)


def _used(held: float, limit: float) -> float:
    """Return the error in multiples of its limit."""
    if limit > 0:
        return held / limit
    return 0.0 if held == 0 else math.inf


def _finite(errors: Mapping[Metric, float]) -> dict[str, float | None]:
    return {str(m): value if math.isfinite(value) else None for m, value in errors.items()}


def precision_of(model: ir.Model) -> str:
    """Return the lowest precision of a model's weights: int4, int8, bf16, fp16 or fp32."""
    if any(node.op_type == "MatMulNBits" and _bits(node) <= 4 for node in all_nodes(model)):
        return "int4"
    types = {v.dtype for graph in all_graphs(model) for v in graph.initializers.values()}
    if types & _INT4:
        return "int4"
    if types & _INT8:
        return "int8"
    return next((name for kind, name in _HALVES.items() if kind in types), "fp32")


def _bits(node: ir.Node) -> int:
    bits = node.attributes.get("bits")
    return 4 if bits is None else bits.as_int()


def chosen_budget(
    metrics: Sequence[Metric | str], limits: Sequence[float], changed: ir.Model
) -> Budget:
    """Return the budget of some metrics and limits, or of the changed model's precision.

    Raises UsageError for unknown metrics, for unequal numbers of metrics and limits, and if neither
    limits nor a reduced precision imply a budget.
    """
    named = [member(Metric, name, f"metric '{name}'") for name in metrics]
    if len(set(named)) < len(named):
        raise UsageError("--metric names one metric twice")
    if limits:
        if len(limits) != len(named):
            raise UsageError(
                f"--max-error is given {len(limits)} times for {len(named)} of --metric"
            )
        return Budget(dict(zip(named, limits, strict=True)))
    precision = precision_of(changed)
    if precision == "fp32":
        raise UsageError(
            "the changed model is in full precision, which has no default budget: set "
            "--max-error, or leave --metric out"
        )
    return Budget({metric: Budget.default_limit(precision, metric) for metric in named})
