"""The precision in which a model computes, and the budget that a user asks for."""

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.check.budget import Budget, Metric
from onnxfold.errors import UsageError
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.options import member

_INT4 = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
_INT8 = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_HALVES = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}


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
