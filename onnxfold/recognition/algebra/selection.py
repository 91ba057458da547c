"""Where, with a known condition or one that only singles out constant rows."""

import onnx_ir as ir

from onnxfold.graph import keeps_dims
from onnxfold.graph.operands import computed_by, operands
from onnxfold.graph.traversal import reached
from onnxfold.norms.second_moments import Moment
from onnxfold.recognition.algebra.forms import AffineForm, Form, Root
from onnxfold.recognition.algebra.graph_state import Algebra

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
