"""Visit every node of a graph once, in order; the complete forms are the norms.

Operators that are half a norm have their rules here: they combine with the neighboring operators'.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold.norms.second_moments import MomentAxes, Statistic
from onnxfold.norms.site import DEFAULT_EPSILON, EpsilonMode
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra import moments, products, reshaped_forms
from onnxfold.recognition.algebra.canonical import Canonical
from onnxfold.recognition.algebra.forms import (
    MINUS_ONE,
    ONE,
    ZERO,
    AffineForm,
    Coefficient,
    Denominator,
    Form,
)
from onnxfold.recognition.algebra.graph_state import Algebra
from onnxfold.recognition.algebra.moments import as_moment

_Rule = Callable[[Algebra, ir.Node], Form | None]


# A norm divides by a moment. All other rules need the form of an operand, or form a square, which
# is not a moment until it is reduced: a graph without one of these has no decomposed norm.
_FIRST = frozenset(
    """GlobalAveragePool InstanceNormalization ReduceL2 ReduceMean ReduceSum
    ReduceSumSquare""".split()
)


def instance_normalization(algebra: Algebra, node: ir.Node) -> Form | None:
    """InstanceNormalization with scale 1 and bias 0: a norm over axes 2 and up."""
    x, scale, bias = node.inputs[:3]
    dims = algebra.dims(x)
    if x is None or dims is None or len(dims) < 3:
        return None
    if algebra.canonical.uniform(scale) != 1.0 or algebra.canonical.uniform(bias) != 0.0:
        return None
    over = algebra.over(x, tuple(range(2, len(dims))))
    if over is None:
        return None
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    return _normalised(algebra, x, replace(over, channel=1), epsilon, ONE)


def rms_operator(algebra: Algebra, node: ir.Node) -> Form | None:
    """An RMS norm of a centered tensor without other readers: a layer norm with its epsilon.

    If other nodes read the centered tensor too, it is a stream of its own that happens to have mean
    zero, and the operator stays an RMS norm.
    """
    d = node.inputs[0]
    form = algebra.form(d)
    if d is None or not isinstance(form, AffineForm) or form.over is None or not algebra.single(d):
        return None
    dims, k = algebra.dims(form.t), form.centred
    if dims is None or k is None:
        return None
    first = node.attributes.get_int("axis", -1)
    over = algebra.over(form.t, tuple(range(first % len(dims), len(dims))))
    gamma = algebra.canonical.coefficient(node.inputs[1], form.t)
    if over != form.over or gamma is None or k != 1.0:
        return None
    if algebra.varying(gamma, form.t) is None:
        return None
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    return _normalised(algebra, form.t, over, epsilon, gamma)


def batch_normalization(algebra: Algebra, node: ir.Node) -> Form | None:
    """BatchNormalization with the moments of its own input, scale 1 and bias 0."""
    x, scale, bias, mean, variance = node.inputs[:5]
    dims = algebra.dims(x)
    u = algebra.form(mean)
    v = as_moment(algebra, variance)
    if x is None or dims is None or not isinstance(u, AffineForm) or v is None:
        return None
    others = tuple(axis for axis in range(len(dims)) if axis != 1)
    over, t = algebra.over(x, others), algebra.atom(x)
    same = u.t is t and v.t is t and u.over == over and v.over == over
    plain = u.m.number == 1.0 and u.a.is_zero and u.c.is_zero and u.denominator is None
    if over is None or not same or not plain or v.mode is not None or v.factor != 1.0:
        return None
    if v.statistic is not Statistic.VARIANCE or u.dropped is None or v.dropped is None:
        return None
    if algebra.canonical.uniform(scale) != 1.0 or algebra.canonical.uniform(bias) != 0.0:
        return None
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    return _normalised(algebra, x, over, epsilon, ONE)


def _normalised(
    algebra: Algebra, x: ir.Value, over: MomentAxes, epsilon: float, gamma: Coefficient
) -> AffineForm:
    """Return the layer norm of x over ``over``."""
    t = algebra.atom(x)
    dtype = algebra.canonical.dtype(t) or ir.DataType.FLOAT
    wide = dtype if dtype is ir.DataType.DOUBLE else ir.DataType.FLOAT
    denominator = Denominator(
        t, over, Statistic.VARIANCE, 1.0, epsilon, EpsilonMode.INSIDE, False, wide
    )
    return AffineForm(t, over, gamma, gamma.times(MINUS_ONE), ZERO, denominator)


# The effect of each on a form: the grammar of recognition.
_RULES: dict[str, _Rule] = {
    "Abs": moments.relu,
    "Add": products.add,
    "BatchNormalization": batch_normalization,
    "Cast": products.cast,
    "CastLike": products.cast,
    "Clip": moments.clip,
    "Div": products.divide,
    "Expand": reshaped_forms.reshape,
    "GlobalAveragePool": moments.global_average,
    "InstanceNormalization": instance_normalization,
    "Max": moments.maximum,
    "Min": moments.minimum,
    "Mul": products.multiply,
    "Neg": products.negate,
    "Pow": moments.power,
    "RMSNormalization": rms_operator,
    "Reciprocal": products.reciprocal,
    "ReduceL2": moments.reduce_l2,
    "ReduceMean": moments.reduce_mean,
    "ReduceSum": moments.reduce_sum,
    "ReduceSumSquare": moments.reduce_square_sum,
    "Relu": moments.relu,
    "SimplifiedLayerNormalization": rms_operator,
    "Sqrt": moments.square_root,
    "Sub": products.subtract,
    "Sum": products.add,
    "Where": reshaped_forms.where,
}


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
