"""Rule C, products: squares, a numerator over a root, gamma, signs and Casts.

A complete norm is extended by gamma and beta only if the next node is its only reader, gamma and
beta vary only along the normalized axes (or, for group and instance norms, along the channel axis),
and each of them is one value or one constant.
"""

from dataclasses import replace
from math import isclose, sqrt

import onnx_ir as ir

from onnxfold.graph.array_types import is_narrowing
from onnxfold.norms.second_moments import Statistic
from onnxfold.recognition.algebra import moments
from onnxfold.recognition.algebra.coefficient import MINUS_ONE, Coefficient
from onnxfold.recognition.algebra.forms import AffineForm, Form, Root, Square
from onnxfold.recognition.algebra.graph_state import Algebra
from onnxfold.recognition.algebra.guards import along, beside, extend, legal, reading

_ROOT_TOLERANCE = 1e-6  # a float32 constant sqrt(n) is this close


def multiply(algebra: Algebra, node: ir.Node) -> Form | None:
    """Mul: a square, a numerator times a reciprocal root, or a scale."""
    p, q = node.inputs
    if p is None or q is None:
        return None
    if algebra.atom(p) is algebra.atom(q) or _equal(algebra.form(p), algebra.form(q)):
        return algebra.square(p)
    for value, other in ((p, q), (q, p)):
        form = algebra.form(value)
        if isinstance(form, Root):
            product = _times_root(algebra, other, form)
            return product or _scaled_root(algebra, form, value, other)
    for value, other in ((p, q), (q, p)):
        moment = moments.as_moment(algebra, value)
        number = algebra.number_beside(other, value)
        if moment is not None and number is not None:
            return moments.scaled_moment(moment, number)
    for value, other in ((p, q), (q, p)):
        form = algebra.form(value)
        if isinstance(form, AffineForm):
            factor = algebra.canonical.coefficient(other, form.t)
            if factor is not None and algebra.form(other) is None:
                return _scaled(algebra, node, value, form, factor)
    return None


def _equal(one: Form | None, other: Form | None) -> bool:
    """Whether both are the same multiple of x - mean(x), each subtracted by a node of its own."""
    if not isinstance(one, AffineForm) or not isinstance(other, AffineForm) or one.centred is None:
        return False
    parts = ((each.t, each.over, each.centred, each.narrowed) for each in (one, other))
    return len(set(parts)) == 1


def divide(algebra: Algebra, node: ir.Node) -> Form | None:
    """Div: a numerator over a root, 1 over a root, or a scale."""
    p, q = node.inputs
    if p is None or q is None:
        return None
    below = algebra.form(q)
    if isinstance(below, Root):
        inverse = moments.inverted(below)
        if below.power != 1 or inverse is None:
            return None
        return _times_root(algebra, p, inverse) or _scaled_root(algebra, inverse, q, p)
    above = algebra.form(p)
    if above is None or below is not None:
        return None
    if not isinstance(above, AffineForm):
        number = algebra.number_beside(q, p)
        return moments.scaled_statistic(algebra, p, 1.0 / number) if number else None
    divisor = algebra.canonical.coefficient(q, above.t)
    factor = None if divisor is None else divisor.inverse()
    return None if factor is None else _scaled(algebra, node, p, above, factor)


def negate(algebra: Algebra, node: ir.Node) -> Form | None:
    """Neg; a norm ends before it, because no operator of a norm has a sign."""
    value = node.inputs[0]
    form = algebra.form(value)
    if value is not None and isinstance(form, AffineForm):
        return None if form.complete else _scaled(algebra, node, value, form, MINUS_ONE)
    return moments.scaled_statistic(algebra, value, -1.0)


def reciprocal(algebra: Algebra, node: ir.Node) -> Form | None:
    """Reciprocal of a root."""
    form = algebra.form(node.inputs[0])
    return moments.inverted(form) if isinstance(form, Root) else None


def cast(algebra: Algebra, node: ir.Node) -> Form | None:
    """Cast between float types; a rounding one is recorded."""
    value = node.inputs[0]
    form = algebra.form(value)
    if value is None or form is None:
        return None
    canonical = algebra.canonical
    narrowing = is_narrowing(canonical.dtype(value), canonical.dtype(node.outputs[0]))
    if narrowing is None:
        return None
    if not isinstance(form, AffineForm):
        if isinstance(form, Square) or not narrowing:
            return None if narrowing else form
        lossy = is_narrowing(canonical.dtype(form.t), canonical.dtype(node.outputs[0]))
        return form if lossy is False else None  # computed in a wider type than x, then cast back
    if form.complete and not extend(algebra, node, value):
        return None
    rough = form.cancels or (narrowing and not form.complete)
    return replace(form, narrowed=form.narrowed or narrowing, cancels=rough)


def _times_root(algebra: Algebra, value: ir.Value, root: Root) -> AffineForm | None:
    """Return numerator / denominator; RMS forms are over the bare tensor."""
    denominator = root.denominator
    if root.power != -1 or not beside(root.dropped):
        return None
    numerator = reading(algebra, value, denominator.t)
    if numerator is None or numerator.denominator is not None or not numerator.c.is_zero:
        return None
    if not beside(numerator.dropped) or numerator.over not in (None, denominator.over):
        return None
    product = replace(
        numerator,
        over=denominator.over,
        a=numerator.a.times(root.coefficient),
        m=numerator.m.times(root.coefficient),
        denominator=denominator,
        dropped=None,
    )
    return replace(product, mixed=not legal(algebra, product))


def _scaled_root(algebra: Algebra, root: Root, value: ir.Value, other: ir.Value) -> Root | None:
    number = algebra.number_beside(other, value)
    if number is not None:
        return moments.scaled_root(root, number)
    if root.power != -1 or not beside(root.dropped) or algebra.form(other) is not None:
        return None
    t = root.denominator.t
    factor = algebra.canonical.coefficient(other, t, repeated=True)
    if factor is None or algebra.varying(factor, t) is None:
        return None
    return replace(root, coefficient=root.coefficient.times(factor), dropped=None)


def _scaled(
    algebra: Algebra, node: ir.Node, value: ir.Value, form: AffineForm, factor: Coefficient
) -> AffineForm | None:
    """Return factor * form."""
    if form.over is None:
        return None
    number, axes = factor.number, algebra.varying(factor, form.t)
    if axes is None or (number is None and form.dropped is not None):
        return None
    if not form.mixed and not along(algebra, factor, form.t, form.over):
        return None
    denominator, root = form.denominator, sqrt(form.over.size)
    if form.complete:
        if not form.c.is_zero or not extend(algebra, node, value):
            return None
        if (
            denominator is not None
            and denominator.statistic is Statistic.MEAN_SQUARE
            and denominator.factor == form.over.size > 1
            and number is not None
            and isclose(number, root, rel_tol=_ROOT_TOLERANCE)
        ):
            return replace(form, denominator=moments.rescaled(denominator, 1.0 / root))
    scaled = replace(
        form,
        a=form.a.times(factor),
        m=form.m.times(factor).snapped(),
        c=form.c.times(factor),
        rounds_before_affine=form.rounds_before_affine or (form.complete and form.narrowed),
    )
    if not (form.mixed or legal(algebra, scaled)) or (form.complete and not scaled.complete):
        return None
    return scaled
