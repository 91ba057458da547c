"""Visit every node of a graph once, in order; the complete forms are the norms."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra import (
    handled_operators,
    moments,
    products,
    reshaped_forms,
    selection,
    summed_forms,
)
from onnxfold.recognition.algebra.canonical import Canonical
from onnxfold.recognition.algebra.forms import AffineForm, Form
from onnxfold.recognition.algebra.graph_state import Algebra

_Rule = Callable[[Algebra, ir.Node], Form | None]

# The effect of each on a form: the grammar of recognition.
_RULES: dict[str, _Rule] = {
    "Add": summed_forms.add,
    "BatchNormalization": handled_operators.batch_normalization,
    "Cast": products.cast,
    "CastLike": products.cast,
    "Clip": moments.clip,
    "Div": products.divide,
    "Expand": reshaped_forms.reshape,
    "GlobalAveragePool": moments.global_average,
    "InstanceNormalization": handled_operators.instance_normalization,
    "Max": moments.maximum,
    "Min": moments.minimum,
    "Mul": products.multiply,
    "Neg": products.negate,
    "Pow": moments.power,
    "RMSNormalization": handled_operators.rms_operator,
    "Reciprocal": products.reciprocal,
    "ReduceL2": moments.reduce_l2,
    "ReduceMean": moments.reduce_mean,
    "ReduceSum": moments.reduce_sum,
    "ReduceSumSquare": moments.reduce_square_sum,
    "Relu": moments.relu,
    "SimplifiedLayerNormalization": handled_operators.rms_operator,
    "Sqrt": moments.square_root,
    "Sub": summed_forms.subtract,
    "Sum": summed_forms.add,
    "Where": selection.where,
}


# A norm divides by a moment. All other rules need the form of an operand, or form a square, which
# is not a moment until it is reduced: a graph without one of these has no decomposed norm.
_FIRST = frozenset(
    """GlobalAveragePool InstanceNormalization ReduceL2 ReduceMean ReduceSum
    ReduceSumSquare""".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A value that is a norm, its form, and the shorter norms that it extends, longest first."""

    output: ir.Value
    form: AffineForm
    shorter: tuple[tuple[ir.Value, AffineForm], ...]


def match_graph(canonical: Canonical, graph: ir.Graph) -> tuple[Algebra, list[Match]]:
    """Return the norms of one graph, each as far as it extends, in topological order."""
    algebra = Algebra(canonical)
    if not any(node.op_type in _FIRST for node in graph):
        return algebra, []
    complete: dict[ir.Value, AffineForm] = {}
    for node in graph:
        if node.domain not in ("", "com.microsoft") or not node.outputs:
            continue
        reshapes = facets.reshapes(row_of(node))
        rule = reshaped_forms.reshape if reshapes else _RULES.get(node.op_type)
        output = node.outputs[0]
        if canonical.root(output) is not output or rule is None:
            continue
        form = rule(algebra, node)
        if form is None:
            algebra.extends.pop(output, None)
            continue
        algebra.forms[output] = form
        if isinstance(form, AffineForm) and form.complete:
            complete[output] = form
    extended = set(algebra.extends.values())
    matches = []
    for output, form in complete.items():
        if output not in extended:
            matches.append(Match(output, form, _shorter(algebra, complete, output)))
    return algebra, matches


def _shorter(
    algebra: Algebra, complete: dict[ir.Value, AffineForm], output: ir.Value
) -> tuple[tuple[ir.Value, AffineForm], ...]:
    trail = []
    inner = algebra.extends.get(output)
    while inner in complete:
        trail.append((inner, complete[inner]))
        inner = algebra.extends.get(inner)
    return tuple(trail)
