"""Rules A and B: the effect of reductions, roots, epsilons and clamps on a tensor.

Each rule maps the algebra and a node to the form of the node's first output, or None if the output
is just another tensor.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import keeps_dims
from onnxfold.graph.operands import computed_by
from onnxfold.norms.second_moments import Moment, MomentAxes, Statistic
from onnxfold.norms.site import EpsilonMode
from onnxfold.recognition.algebra.forms import (
    ONE,
    ZERO,
    AffineForm,
    Coefficient,
    Denominator,
    Form,
    Root,
    Square,
)
from onnxfold.recognition.algebra.graph_state import Algebra

_FACTOR_TOLERANCE = 1e-6  # 1/n is rounded to float32 before it meets n, and may be squared
_UNBOUNDED = 3.38e38  # practically infinite: the largest numbers of float32 and bfloat16


def _reduction(algebra: Algebra, node: ir.Node) -> tuple[ir.Value, tuple[int, ...], bool] | None:
    """Return the operand, the reduced axes and whether they are kept."""
    x, axes = node.inputs[0], algebra.view.axes(node)
    dims = algebra.dims(x)
    if x is None or dims is None or axes is None:
        return None
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return None
    if any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    places = {axis % len(dims) for axis in axes} if axes else set(range(len(dims)))
    return x, tuple(sorted(places)), keeps_dims(node)


def _over(
    algebra: Algebra, node: ir.Node
) -> tuple[ir.Value, MomentAxes, tuple[int, ...] | None] | None:
    reduction = _reduction(algebra, node)
    if reduction is None:
        return None
    x, axes, kept = reduction
    if algebra.canonical.computed_number(x) is not None:
        return None  # sizes of 1 count too
    over = algebra.over(x, axes)
    return None if over is None else (x, over, None if kept else axes)


def reduce_mean(algebra: Algebra, node: ir.Node) -> Form | None:
    """ReduceMean: mean(t), or a second moment where the operand is a square."""
    found = _over(algebra, node)
    return None if found is None else _mean(algebra, *found, 1.0)


def reduce_sum(algebra: Algebra, node: ir.Node) -> Form | None:
    """ReduceSum: n times the mean."""
    found = _over(algebra, node)
    return _mean(algebra, *found, found[1].size) if found and found[1].size else None


def reduce_square_sum(algebra: Algebra, node: ir.Node) -> Form | None:
    """ReduceSumSquare: n times the mean square."""
    found = _over(algebra, node)
    return _second(algebra, *found, found[1].size) if found and found[1].size else None


def reduce_l2(algebra: Algebra, node: ir.Node) -> Form | None:
    """ReduceL2: the root of the sum of squares."""
    moment = reduce_square_sum(algebra, node)
    return _root(algebra, moment, node, 1) if isinstance(moment, Moment) else None


def global_average(algebra: Algebra, node: ir.Node) -> Form | None:
    """GlobalAveragePool: the mean over axes 2 and up, kept."""
    x = node.inputs[0]
    dims = algebra.dims(x)
    if x is None or dims is None or len(dims) < 3:
        return None
    over = algebra.over(x, tuple(range(2, len(dims))))
    return None if over is None else _mean(algebra, x, over, None, 1.0)


def _mean(
    algebra: Algebra, x: ir.Value, over: MomentAxes, dropped: tuple[int, ...] | None, factor: float
) -> Form | None:
    form = algebra.form(x)
    if isinstance(form, Square):
        return _second(algebra, form.value, over, dropped, factor)
    return AffineForm(algebra.atom(x), over, ZERO, Coefficient.of(factor), dropped=dropped)


def _second(
    algebra: Algebra, v: ir.Value, over: MomentAxes, dropped: tuple[int, ...] | None, factor: float
) -> Moment:
    """Return factor * mean(v^2), as a variance if v is a centered tensor."""
    form = algebra.form(v)
    if isinstance(form, AffineForm) and form.over == over and form.centred is not None:
        scale = factor * form.centred**2
        return Moment(form.t, over, Statistic.VARIANCE, _snap(scale, over), dropped)
    return Moment(algebra.atom(v), over, Statistic.MEAN_SQUARE, _snap(factor, over), dropped)


def _snap(factor: float, over: MomentAxes) -> float:
    """Return 1, n or n/(n-1) for a factor that is one of them up to rounding."""
    n = float(over.size)
    for exact in (1.0, n, n / (n - 1.0) if n > 1.0 else 1.0):
        if exact and abs(factor - exact) <= _FACTOR_TOLERANCE * exact:
            return exact
    return factor


def as_moment(algebra: Algebra, value: ir.Value | None) -> Moment | None:
    """Return a value's second moment, also the square of a bare mean."""
    form = algebra.form(value)
    if isinstance(form, Moment):
        return form
    if not isinstance(form, Square):
        return None
    mean = algebra.form(form.value)
    if not isinstance(mean, AffineForm) or mean.over is None or mean.denominator is not None:
        return None
    k = mean.m.number
    if k is None or not mean.a.is_zero or not mean.c.is_zero:
        return None
    return Moment(mean.t, mean.over, Statistic.SQUARED_MEAN, k * k, mean.dropped)


def scaled_moment(moment: Moment, number: float) -> Moment | None:
    """Return number * moment."""
    if not math.isfinite(number) or (number <= 0 and moment.mode is not None):
        return None
    factor = moment.factor * number
    if factor > 0:
        factor = _snap(factor, moment.over)
    return replace(moment, factor=factor, epsilon=moment.epsilon * number)


def summed_moments(p: Moment, q: Moment) -> Moment | None:
    """Return mean(t^2) - mean(t)^2 as the variance that it is."""
    if p.statistic is Statistic.SQUARED_MEAN:
        p, q = q, p
    kinds = (p.statistic, q.statistic)
    if kinds != (Statistic.MEAN_SQUARE, Statistic.SQUARED_MEAN) or p.mode or q.mode:
        return None
    if p.t is not q.t or p.over != q.over or p.dropped != q.dropped or p.factor <= 0:
        return None
    if abs(p.factor + q.factor) > _FACTOR_TOLERANCE * p.factor:
        return None
    return replace(p, statistic=Statistic.VARIANCE, one_pass=True)


def shifted_moment(moment: Moment, number: float) -> Moment | None:
    """Return moment + number: an epsilon inside the root."""
    if number < 0 or moment.mode is EpsilonMode.MAX_INSIDE or not math.isfinite(number):
        return None
    return replace(moment, epsilon=moment.epsilon + number, mode=EpsilonMode.INSIDE)


def square_root(algebra: Algebra, node: ir.Node) -> Form | None:
    """Sqrt of a second moment."""
    moment = as_moment(algebra, node.inputs[0])
    return None if moment is None else _root(algebra, moment, node, 1)


def _root(algebra: Algebra, moment: Moment, node: ir.Node, power: int) -> Root | None:
    if moment.statistic is Statistic.SQUARED_MEAN or moment.factor <= 0:
        return None
    denominator = Denominator(
        moment.t,
        moment.over,
        moment.statistic,
        moment.factor,
        moment.epsilon,
        moment.mode or EpsilonMode.INSIDE,
        moment.one_pass,
        algebra.canonical.dtype(node.outputs[0]) or ir.DataType.FLOAT,
    )
    return Root(denominator, power, ONE, moment.dropped)


def power(algebra: Algebra, node: ir.Node) -> Form | None:
    """Pow with exponent 2, 1/2, -1/2 or -1, exactly."""
    base, exponent = node.inputs[0], algebra.number_beside(node.inputs[1], node.inputs[0])
    if base is None or exponent is None:
        return None
    if exponent == 2.0:
        inner = computed_by(base, "Abs")
        return algebra.square((inner and inner.inputs[0]) or base)
    if exponent == -1.0:
        form = algebra.form(base)
        return inverted(form) if isinstance(form, Root) else None
    if abs(exponent) != 0.5:
        return None
    moment = as_moment(algebra, base)
    return None if moment is None else _root(algebra, moment, node, 1 if exponent > 0 else -1)


def inverted(root: Root) -> Root | None:
    """Return 1 / root."""
    coefficient = root.coefficient.inverse()
    if coefficient is None or (root.power == -1 and root.coefficient.number is None):
        return None
    return replace(root, power=-root.power, coefficient=coefficient)


def scaled_root(root: Root, number: float) -> Root | None:
    """Return number * root; the scale of a denominator moves into its factor and epsilon."""
    if not math.isfinite(number) or number == 0:
        return None
    if root.power == -1:
        return replace(root, coefficient=root.coefficient.times(Coefficient.of(number)))
    if number < 0:
        return None
    return replace(root, denominator=rescaled(root.denominator, number))


def rescaled(denominator: Denominator, number: float) -> Denominator:
    """Return number * denominator, for a positive number."""
    outside = denominator.mode in (EpsilonMode.OUTSIDE, EpsilonMode.MAX_OUTSIDE)
    return replace(
        denominator,
        factor=_snap(denominator.factor * number**2, denominator.over),
        epsilon=denominator.epsilon * (number if outside else number**2),
    )


def scaled_statistic(algebra: Algebra, value: ir.Value | None, number: float) -> Form | None:
    """Return number * value if it is a root or a second moment."""
    form = algebra.form(value)
    if isinstance(form, Root):
        return scaled_root(form, number)
    moment = as_moment(algebra, value)
    return None if moment is None else scaled_moment(moment, number)


def shifted_root(root: Root, number: float) -> Root | None:
    """Return root + number: an epsilon outside the root."""
    bare = root.denominator.mode is EpsilonMode.INSIDE and root.denominator.epsilon == 0
    if root.power != 1 or not bare or number < 0 or not math.isfinite(number):
        return None
    outside = replace(root.denominator, epsilon=number, mode=EpsilonMode.OUTSIDE)
    return replace(root, denominator=outside)


def maximum(algebra: Algebra, node: ir.Node) -> Form | None:
    """Max of a moment or root and constants."""
    for value, bounds in _bounds(algebra, node):
        return _bounded_below(algebra, value, max(bounds))
    return None


def minimum(algebra: Algebra, node: ir.Node) -> Form | None:
    """Min of a reciprocal root and a constant: the maximum of the root and its reciprocal.

    For a statistic and a constant that no number exceeds it returns the statistic.
    """
    for value, bounds in _bounds(algebra, node):
        number, form = min(bounds), algebra.form(value)
        if number >= _UNBOUNDED and isinstance(form, Moment | Root):
            return form
        if number <= 0 or not isinstance(form, Root) or form.power != -1:
            continue
        if form.coefficient.number != 1.0:
            continue
        bounded = _root_bounded_below(replace(form, power=1), 1.0 / number)
        return None if bounded is None else replace(bounded, power=-1)
    return None


def _bounds(algebra: Algebra, node: ir.Node) -> Iterator[tuple[ir.Value, list[float]]]:
    """Yield each operand beside which all others are numbers, and these."""
    for value in node.inputs:
        others = [each for each in node.inputs if each is not value]
        numbers = [algebra.number_beside(each, value) for each in others]
        known = [number for number in numbers if number is not None]
        if value is not None and known and len(known) == len(others):
            yield value, known


def clip(algebra: Algebra, node: ir.Node) -> Form | None:
    """Clip from below only."""
    if node.inputs[0] is None:
        return None
    lower: float | None = node.attributes.get_float("min", -math.inf)
    upper: float | None = node.attributes.get_float("max", math.inf)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        lower = algebra.canonical.number(node.inputs[1])
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        upper = algebra.canonical.number(node.inputs[2])
    if lower is None or upper is None or upper < _UNBOUNDED:
        return None
    return _bounded_below(algebra, node.inputs[0], lower)


def relu(algebra: Algebra, node: ir.Node) -> Form | None:
    """Relu, the maximum with 0, or Abs, which is the same of what is never negative."""
    value = node.inputs[0]
    return None if value is None else _bounded_below(algebra, value, 0.0)


def _bounded_below(algebra: Algebra, value: ir.Value, bound: float) -> Form | None:
    form = algebra.form(value)
    if isinstance(form, Root):
        return _root_bounded_below(form, bound)
    if not isinstance(form, Moment) or form.statistic is Statistic.SQUARED_MEAN or form.factor <= 0:
        return None
    if bound <= form.epsilon and form.mode is not EpsilonMode.MAX_INSIDE:
        return form  # a second moment is never negative
    if form.mode is not None:
        return None
    return replace(form, epsilon=bound, mode=EpsilonMode.MAX_INSIDE)


def _root_bounded_below(root: Root, bound: float) -> Root | None:
    if root.power != 1:
        return None
    if bound <= 0:
        return root
    if root.denominator.mode is not EpsilonMode.INSIDE or root.denominator.epsilon != 0:
        return None
    limited = replace(root.denominator, epsilon=bound, mode=EpsilonMode.MAX_OUTSIDE)
    return replace(root, denominator=limited)
