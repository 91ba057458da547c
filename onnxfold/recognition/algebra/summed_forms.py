"""Rule C, sums: x - mean(x), an epsilon, a variance of two moments, beta."""

from dataclasses import replace

import onnx_ir as ir

from onnxfold.norms.second_moments import Moment
from onnxfold.recognition.algebra import moments
from onnxfold.recognition.algebra.coefficient import MINUS_ONE, ONE, Coefficient
from onnxfold.recognition.algebra.forms import AffineForm, Form, Root
from onnxfold.recognition.algebra.graph_state import Algebra
from onnxfold.recognition.algebra.guards import along, beside, extend, legal, reading


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
