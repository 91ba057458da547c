"""Forms through Reshape, Flatten, Squeeze, Unsqueeze, Expand and Where."""

from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.graph import follow_reshape, keeps_dims, operator
from onnxfold.graph.operands import computed_by, operands
from onnxfold.graph.traversal import reached
from onnxfold.norms.second_moments import Moment, MomentAxes
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra.forms import AffineForm, Coefficient, Form, Root, Square
from onnxfold.recognition.algebra.graph_state import Algebra, extend, legal
from onnxfold.shapes.named_sizes import SymbolicShape, fits, same_elements

_APPLY = ("Add", "Div", "Mul", "Sub")  # gamma or beta


def reshape(algebra: Algebra, node: ir.Node) -> Form | None:
    """Reshape and the like: a reduced axis returns or vanishes, or a norm returns to its layout."""
    value = node.inputs[0]
    form = algebra.form(value)
    if value is None or not isinstance(form, Moment | Root | AffineForm):
        return None
    shape, whole = algebra.dims(node.outputs[0]), algebra.dims(form.t)
    if shape is None or whole is None:
        return None
    if isinstance(form, AffineForm) and form.denominator is not None:
        return _returned(algebra, node, value, form)
    if isinstance(form, AffineForm) and not (form.a.is_zero and form.c.is_zero):
        return None
    if form.over is None:
        return None
    if form.dropped is None:
        return _kept(form, form.over, node, shape, whole)
    kept = tuple(1 if axis in form.dropped else dim for axis, dim in enumerate(whole))
    if node.op_type != "Expand" and same_elements(shape, kept):
        return replace(form, dropped=None)
    return None


def _kept(
    form: Moment | Root | AffineForm,
    over: MomentAxes,
    node: ir.Node,
    shape: SymbolicShape,
    whole: SymbolicShape,
) -> Form | None:
    """Repeat a statistic up to the shape of t, or drop the axes over which it was reduced."""
    if node.op_type == "Expand":
        return form if len(shape) == len(whole) and fits(shape, whole) else None
    single = tuple(axis for axis, dim in enumerate(whole) if dim == 1)
    for dropped in (over.axes, tuple(sorted({*over.axes, *single}))):
        rest = tuple(dim for axis, dim in enumerate(whole) if axis not in dropped)
        if same_elements(shape, rest):
            return replace(form, dropped=dropped)
    return None


def _returned(
    algebra: Algebra, node: ir.Node, value: ir.Value, form: AffineForm
) -> AffineForm | None:
    """Return a norm of Reshape(x), reshaped back to the shape of x, as a norm of x."""
    if not form.normalises or form.over is None or form.denominator is None:
        return None
    producer = form.t.producer()
    if producer is None or not facets.reshapes(row_of(producer)):
        return None
    x, whole = producer.inputs[0], algebra.dims(form.t)
    shape = algebra.dims(x)
    if x is None or shape is None or whole is None:
        return None
    if not same_elements(algebra.dims(node.outputs[0]), shape):
        return None
    if not _only_the_norm_reads(algebra, form.t):
        return None
    over = _over_before(form.over, whole, shape)
    a, m, c = (_before(term, whole, shape) for term in (form.a, form.m, form.c))
    if over is None or a is None or m is None or c is None:
        return None
    of_rows = form.complete and _is_of_rows(form.over, whole) and _is_of_rows(over, shape)
    if of_rows and not _is_joined_with_constant(algebra, node.outputs[0]):
        return None
    if not form.mixed and not extend(algebra, node, value):
        return None
    algebra.reshaped[node.outputs[0]] = form.t
    t = algebra.atom(x)
    denominator = replace(form.denominator, t=t, over=over)
    returned = replace(form, t=t, over=over, a=a, m=m, c=c, denominator=denominator, mixed=False)
    return returned if legal(algebra, returned) else None


def _is_of_rows(over: MomentAxes, shape: SymbolicShape) -> bool:
    """Whether a norm is of all of the last axis, so that Reshapes around it only count its rows.

    Such a norm ends before the last Reshape, as one of one operator does; InstanceNormalization of
    one channel is a norm of rows by its Reshapes alone.
    """
    whole = over.fiber is not None and over.fiber.whole and over.channel is None
    return whole and over.axes == (len(shape) - 1,)


def _is_joined_with_constant(algebra: Algebra, value: ir.Value) -> bool:
    """Whether a reader may apply gamma or beta."""
    readers = [use.node for use in value.uses() if operator(use.node) in _APPLY]
    return any(algebra.view.tensor(other) is not None for node in readers for other in node.inputs)


def _only_the_norm_reads(algebra: Algebra, t: ir.Value) -> bool:
    """Whether a Reshape of x serves only the norm; if a residual reads it too, it is the x."""
    if t.is_graph_output():
        return False
    for reader in algebra.view.readers(t):
        if not facets.reads_elements(row_of(reader.node)) or not reader.node.outputs:
            continue
        result = reader.node.outputs[0]
        form = algebra.form(result)
        if form is None and algebra.atom(result) is not t:
            return False
        if form is not None and not isinstance(form, Square) and form.t is not t:
            return False
    return True


def _over_before(over: MomentAxes, whole: SymbolicShape, shape: SymbolicShape) -> MomentAxes | None:
    """Return the same elements in the coordinates of the tensor before its Reshape."""
    if over.fiber is None:
        if len(whole) != 3 or over.axes != (2,) or len(shape) <= 2:
            return None
        groups, channels = whole[1], shape[1]
        if not isinstance(groups, int) or not isinstance(channels, int):
            return None
        if whole[0] != shape[0] or groups < 1 or channels % groups:
            return None
        return MomentAxes(tuple(range(1, len(shape))), None, groups, 1)
    fiber = follow_reshape(over.fiber, whole, shape)
    if fiber is None:
        return None
    partial = [block.axis for block in fiber.blocks if not block.whole]
    if len(set(partial)) > 1:
        return None
    channel = partial[0] if partial else over.channel
    return MomentAxes(fiber.axes, fiber, 0, channel)


def _before(term: Coefficient, whole: SymbolicShape, shape: SymbolicShape) -> Coefficient | None:
    """Return a constant that varies along trailing axes in the layout before the Reshape."""
    if term.number is not None:
        return Coefficient.of(term.number)
    if term.runtime:
        return None
    array = term.array
    places = [axis for axis, dim in enumerate(array.shape) if dim != 1]
    first = len(whole) - array.ndim + min(places, default=array.ndim)
    tail = whole[first:]
    sizes = [dim for dim in tail if isinstance(dim, int)]
    if len(sizes) != len(tail):
        return None
    for axis in range(len(shape) - 1, -1, -1):
        block = [dim for dim in shape[axis:] if isinstance(dim, int)]
        if len(block) != len(shape) - axis:
            return None
        if prod(block) == prod(sizes):
            full = np.broadcast_to(array.reshape(array.shape[min(places) :]), sizes)
            return Coefficient(full.reshape(block))
    return None


_CONDITION_LIMIT = 24


def where(algebra: Algebra, node: ir.Node) -> Form | None:
    """Where with a constant condition that is the same everywhere, or a guard of constant rows."""
    condition = algebra.view.array(node.inputs[0])
    decided = _decided(algebra, node.inputs[0])
    if condition is None and decided is None:
        return _guarded(algebra, node)
    if condition is not None:
        if condition.size == 0 or not (condition.all() or not condition.any()):
            return None
        decided = bool(condition.reshape(-1)[0])
    chosen = node.inputs[1 if decided else 2]
    if chosen is None or algebra.dims(chosen) != algebra.dims(node.outputs[0]):
        return None
    form = algebra.form(chosen)
    if isinstance(form, AffineForm) and form.denominator is not None:
        return None
    return form if isinstance(form, Moment | Root | AffineForm) else None


def _decided(algebra: Algebra, condition: ir.Value | None) -> bool | None:
    """Return the result of an Equal of two values that are each one known number."""
    node = computed_by(condition, "Equal")
    if node is None:
        return None
    numbers = [algebra.canonical.uniform(operand) for operand in node.inputs]
    return None if None in numbers else numbers[0] == numbers[1]


def _guarded(algebra: Algebra, node: ir.Node) -> Form | None:
    """Read Where(min(x) = max(x) [and ..], 0, x - mean(x)) as x - mean(x), zero in such rows."""
    condition, zero, centred = node.inputs
    form = algebra.form(centred)
    if condition is None or not isinstance(form, AffineForm) or form.centred is None:
        return None
    if algebra.canonical.uniform(zero) != 0.0:
        return None
    if algebra.dims(centred) != algebra.dims(node.outputs[0]):
        return None
    if not _constant_rows(algebra, condition, form):
        return None
    nodes = _condition_nodes(algebra, condition, form.t)
    if nodes is None:
        return None
    algebra.conditions[node] = nodes
    return form


def _constant_rows(algebra: Algebra, condition: ir.Value, form: AffineForm) -> bool:
    """Whether the condition implies that all elements of the row are equal."""

    def onward(value: ir.Value) -> list[ir.Value]:
        return operands(computed_by(value, "And"))

    equal = (computed_by(value, "Equal") for value in reached([condition], onward))
    return any(node is not None and _equal_extremes(algebra, node, form) for node in equal)


def _equal_extremes(algebra: Algebra, node: ir.Node, form: AffineForm) -> bool:
    """Whether the node compares the smallest and the largest element of the row."""
    found = set()
    for operand in node.inputs:
        extreme = computed_by(operand, "ReduceMin") or computed_by(operand, "ReduceMax")
        if extreme is None:
            return False
        x, axes = extreme.inputs[0], algebra.view.axes(extreme)
        dims = algebra.dims(x)
        if x is None or dims is None or not axes or not keeps_dims(extreme):
            return False
        places = tuple(sorted({axis % len(dims) for axis in axes}))
        if algebra.atom(x) is not form.t or algebra.over(x, places) != form.over:
            return False
        found.add(extreme.op_type)
    return len(found) == 2


def _condition_nodes(
    algebra: Algebra, condition: ir.Value, t: ir.Value
) -> frozenset[ir.Node] | None:
    """Return the nodes of a condition that is computed only from t."""
    nodes: set[ir.Node] = set()
    waiting = [condition]
    while waiting:
        value = waiting.pop()
        if algebra.atom(value) is t or algebra.view.array(value) is not None:
            continue
        node = value.producer()
        if node is None or len(nodes) > _CONDITION_LIMIT:
            return None
        if node not in nodes:
            nodes.add(node)
            waiting += operands(node)
    return frozenset(nodes)
