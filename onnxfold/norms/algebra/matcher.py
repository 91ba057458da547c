"""Every node of a graph is looked at once, in order; the complete forms are the norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.norms.algebra import layout, moments, operators, products, selection, sums
from onnxfold.norms.algebra.canonical import Canonical
from onnxfold.norms.algebra.forms import Affine, Form
from onnxfold.norms.algebra.state import Algebra

__all__ = ["Match", "match_graph"]

_Rule = Callable[[Algebra, ir.Node], Form | None]

# What each does to a form: the recogniser's own grammar.
_RULES: dict[str, _Rule] = {
    "Add": sums.add,
    "BatchNormalization": operators.batch_normalization,
    "Cast": products.cast,
    "CastLike": products.cast,
    "Clip": moments.clip,
    "Div": products.divide,
    "Expand": layout.reshape,
    "Flatten": layout.reshape,
    "GlobalAveragePool": moments.global_average,
    "InstanceNormalization": operators.instance_normalization,
    "Max": moments.maximum,
    "Min": moments.minimum,
    "Mul": products.multiply,
    "Neg": products.negate,
    "Pow": moments.power,
    "RMSNormalization": operators.rms_operator,
    "Reciprocal": products.reciprocal,
    "ReduceL2": moments.reduce_l2,
    "ReduceMean": moments.reduce_mean,
    "ReduceSum": moments.reduce_sum,
    "ReduceSumSquare": moments.reduce_square_sum,
    "Reshape": layout.reshape,
    "SimplifiedLayerNormalization": operators.rms_operator,
    "Sqrt": moments.square_root,
    "Squeeze": layout.reshape,
    "Sub": sums.subtract,
    "Sum": sums.add,
    "Unsqueeze": layout.reshape,
    "Where": selection.where,
}


# A norm divides by a moment.  All other rules ask for the form of an operand, or make a square of
# it, which is no moment before it is reduced: a graph without one of these has no norm in parts.
_FIRST = frozenset(
    """GlobalAveragePool InstanceNormalization ReduceL2 ReduceMean ReduceSum
    ReduceSumSquare""".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A value that is a norm, its form, and the shorter norms that it extends, longest first."""

    output: ir.Value
    form: Affine
    shorter: tuple[tuple[ir.Value, Affine], ...]


def match_graph(canonical: Canonical, graph: ir.Graph) -> tuple[Algebra, list[Match]]:
    """Return the norms of one graph, each as far as it extends, in topological order."""
    algebra = Algebra(canonical)
    if not any(node.op_type in _FIRST for node in graph):
        return algebra, []
    complete: dict[ir.Value, Affine] = {}
    for node in graph:
        if node.domain not in ("", "com.microsoft") or not node.outputs:
            continue
        rule = _RULES.get(node.op_type)
        output = node.outputs[0]
        if canonical.root(output) is not output or rule is None:
            continue
        form = rule(algebra, node)
        if form is None:
            algebra.extends.pop(output, None)
            continue
        algebra.forms[output] = form
        if isinstance(form, Affine) and form.complete:
            complete[output] = form
    extended = set(algebra.extends.values())
    matches = []
    for output, form in complete.items():
        if output not in extended:
            matches.append(Match(output, form, _shorter(algebra, complete, output)))
    return algebra, matches


def _shorter(
    algebra: Algebra, complete: dict[ir.Value, Affine], output: ir.Value
) -> tuple[tuple[ir.Value, Affine], ...]:
    trail = []
    inner = algebra.extends.get(output)
    while inner is not None and inner in complete:
        trail.append((inner, complete[inner]))
        inner = algebra.extends.get(inner)
    return tuple(trail)
