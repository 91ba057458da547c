"""Rule C, products and sums of forms.

A complete norm is extended by gamma and beta only if the next node is its only reader, gamma and
beta vary only along the normalized axes (or, for group and instance norms, along the channel axis),
and each of them is one value or one constant.
"""

from dataclasses import replace
from math import isclose, sqrt

import onnx_ir as ir

from onnxfold.graph.constants import is_narrowing
from onnxfold.norms.second_moments import Moment, Statistic
from onnxfold.recognition.algebra import moments
from onnxfold.recognition.algebra.forms import (
    MINUS_ONE,
    ONE,
    AffineForm,
    Coefficient,
    Form,
    Root,
    Square,
)
from onnxfold.recognition.algebra.graph_state import Algebra, along, beside, extend, legal, reading

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


def add(algebra: Algebra, node: ir.Node) -> Form | None:
    """Add, or Sum of two."""
    return _sum(algebra, node, ONE) if len(node.inputs) == 2 else None


def subtract(algebra: Algebra, node: ir.Node) -> Form | None:
    """Sub."""
    return _sum(algebra, node, MINUS_ONE)


def _sum(algebra: Algebra, node: ir.Node, sign: Coefficient) -> Form | None:
    p, q = node.inputs
    if p is None or q is None:
        return None
    forms = (algebra.form(p), algebra.form(q))
    if forms == (None, None):
        return None
    statistic = _statistic_sum(algebra, p, q, sign)
    if statistic is not None:
        return statistic
    for form in forms:
        if isinstance(form, AffineForm):
            left, right = reading(algebra, p, form.t), reading(algebra, q, form.t)
            if left is not None and right is not None:
                total = _affine_sum(algebra, left, right, sign)
                if total is not None:
                    return total
    for value, other, first in ((p, q, True), (q, p, False)):
        form = algebra.form(value)
        if isinstance(form, AffineForm) and form.denominator is not None:
            term = algebra.canonical.coefficient(other, form.t, repeated=form.a.is_zero)
            if term is not None and algebra.form(other) is None:
                if not _may_shift(algebra, node, value, term):
                    return None
                return _shifted(algebra, form, term, sign if first or sign is ONE else None)
    return None


def _statistic_sum(
    algebra: Algebra, p: ir.Value, q: ir.Value, sign: Coefficient
) -> Moment | Root | None:
    """Return the sum of two second moments, or of a moment or root and an epsilon."""
    left, right = moments.as_moment(algebra, p), moments.as_moment(algebra, q)
    if left is not None and right is not None:
        signed = moments.scaled_moment(right, sign.number or 1.0)
        return None if signed is None else moments.summed_moments(left, signed)
    for value, other, first in ((p, q, True), (q, p, False)):
        number = algebra.number_beside(other, value)
        if number is None or (sign is MINUS_ONE and not first):
            continue
        number = number if sign is ONE else -number
        form = algebra.form(value)
        if isinstance(form, Root):
            return moments.shifted_root(form, number)
        moment = moments.as_moment(algebra, value)
        if moment is not None:
            return moments.shifted_moment(moment, number)
    return None


def _affine_sum(
    algebra: Algebra, p: AffineForm, q: AffineForm, sign: Coefficient
) -> AffineForm | None:
    if p.complete or q.complete or (p.denominator != q.denominator and not _constant(p, q)):
        return None
    if p.over is not None and q.over is not None and p.over != q.over:
        return None
    if p.dropped != q.dropped and not (beside(p.dropped) and beside(q.dropped)):
        return None
    terms = [x.plus(y.times(sign)) for x, y in ((p.a, q.a), (p.m, q.m), (p.c, q.c))]
    if any(term is None for term in terms):
        return None
    a, m, c = (term for term in terms if term is not None)
    total = AffineForm(
        p.t,
        p.over or q.over,
        a,
        m.snapped(),
        c,
        p.denominator or q.denominator,
        p.dropped if p.dropped == q.dropped else None,
        p.narrowed or q.narrowed,
        cancels=p.cancels or q.cancels or p.denominator is not None,
        mixed=p.mixed or q.mixed,
    )
    return total if total.mixed or legal(algebra, total) else None


def _constant(p: AffineForm, q: AffineForm) -> bool:
    """Whether the operand without a denominator has only a constant term."""
    bare = [form for form in (p, q) if form.denominator is None]
    return len(bare) == 1 and bare[0].a.is_zero and bare[0].m.is_zero


def _may_shift(algebra: Algebra, node: ir.Node, value: ir.Value, term: Coefficient) -> bool:
    """Whether a term along the fiber may join the form; a norm that has a beta is closed."""
    form = algebra.form(value)
    if not isinstance(form, AffineForm) or form.over is None:
        return False
    if algebra.varying(term, form.t) is None:
        return False
    if form.a.is_zero and term.runtime:  # added to the mean alone, where no norm can end
        return True
    if not form.mixed and not along(algebra, term, form.t, form.over):
        return False
    return not form.complete or (form.c.is_zero and extend(algebra, node, value))


def _shifted(
    algebra: Algebra, form: AffineForm, term: Coefficient, sign: Coefficient | None
) -> AffineForm | None:
    """Return form + sign * term, or term - form if ``sign`` is None."""
    mine, theirs = (ONE, sign) if sign is not None else (MINUS_ONE, ONE)
    c = form.c.times(mine).plus(term.times(theirs))
    if c is None:
        return None
    shifted = replace(
        form,
        a=form.a.times(mine),
        m=form.m.times(mine),
        c=c,
        rounds_before_affine=form.rounds_before_affine or (form.complete and form.narrowed),
    )
    if not (form.mixed or legal(algebra, shifted)) or (form.complete and not shifted.complete):
        return None
    return shifted
