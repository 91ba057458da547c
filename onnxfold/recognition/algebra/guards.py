"""Guards of the closure: operands allowed with a tensor, and limits to extending a norm."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import operator
from onnxfold.norms.second_moments import MomentAxes
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra.forms import ONE, ZERO, AffineForm, Coefficient
from onnxfold.recognition.algebra.graph_state import Algebra


def beside(dropped: tuple[int, ...] | None) -> bool:
    """Whether a statistic broadcasts against t; leading axes may be missing."""
    return dropped is None or dropped == tuple(range(len(dropped)))


def reading(algebra: Algebra, value: ir.Value, t: ir.Value, depth: int = 2) -> AffineForm | None:
    """Return a value as an affine form of t, including a constant multiple of t itself."""
    form = algebra.form(value)
    if isinstance(form, AffineForm) and form.t is t:
        return form
    if algebra.atom(value) is t:
        return AffineForm(t, None, ONE, ZERO)
    node = algebra.canonical.root(value).producer()
    if depth == 0 or form is not None or node is None or node.domain != "":
        return None
    if node.op_type == "Neg" and node.inputs[0] is not None:
        inner = reading(algebra, node.inputs[0], t, depth - 1)
        return None if inner is None else replace(inner, a=inner.a.negated())
    if node.op_type == "Mul":
        for operand, other in (node.inputs, node.inputs[::-1]):
            if operand is None or algebra.canonical.atom(operand) is not t:
                continue
            factor = algebra.canonical.coefficient(other, t)
            if factor is not None and algebra.varying(factor, t) is not None:
                return AffineForm(t, None, factor, ZERO)
    return None


def extend(algebra: Algebra, node: ir.Node, value: ir.Value) -> bool:
    """Record that a node extends a complete norm, unless another node reads the norm.

    The exception are norms that differ only in gamma or beta and that tools have merged up to
    there: each reader extends it.
    """
    if not (algebra.single(value) or _is_merged(algebra, value)):
        return False
    algebra.extends[node.outputs[0]] = algebra.canonical.root(value)
    return True


def _is_merged(algebra: Algebra, value: ir.Value) -> bool:
    """Whether each reader of a complete norm multiplies it by a vector, or adds one."""
    root = algebra.canonical.root(value)
    form = algebra.complete(root)
    if form is None or form.over is None or root.is_graph_output():
        return False
    readers = [use for use in algebra.view.readers(root) if facets.reads_elements(row_of(use.node))]
    return all(_applies_vector(algebra, use.node, use.index, form) for use in readers)


def _applies_vector(algebra: Algebra, node: ir.Node, index: int, form: AffineForm) -> bool:
    """Whether a node applies a gamma, or a first beta, along the norm's axes."""
    if operator(node) not in ("Add", "Mul") or form.over is None or not form.c.is_zero:
        return False
    other = node.inputs[1 - index]
    factor = algebra.canonical.coefficient(other, form.t)
    constant = factor is not None and not factor.runtime and factor.number is None
    return constant and factor is not None and along(algebra, factor, form.t, form.over)


def channel_axis(algebra: Algebra, t: ir.Value, over: MomentAxes) -> int | None:
    """Return the one axis other than the first that a group or instance norm does not reduce."""
    if over.channel is not None:
        return over.channel
    dims = algebra.dims(t)
    if dims is None or len(over.axes) < 2:
        return None
    rest = [axis for axis in range(1, len(dims)) if axis not in over.axes and dims[axis] != 1]
    return rest[0] if len(rest) == 1 else None


def along(algebra: Algebra, factor: Coefficient, t: ir.Value, over: MomentAxes) -> bool:
    axes = algebra.varying(factor, t)
    if axes is None:
        return False
    return axes <= set(over.axes) or axes == {channel_axis(algebra, t, over)}


def legal(algebra: Algebra, form: AffineForm) -> bool:
    """Whether all coefficients vary only along the fiber, or only along the channels.

    A factor computed at run time that came with the root, and a term added to the mean times it,
    may vary along any axis: no shorter norm of the graph leaves them out.
    """
    if form.over is None:
        return True
    axes: set[int] = set()
    for factor in (form.a, form.m, form.c):
        for runtime in factor.runtime:
            if algebra.varying(Coefficient(np.ones(()), (runtime,)), form.t) is None:
                return False
        if not factor.runtime:
            varied = algebra.varying(factor, form.t)
            if varied is None:
                return False
            axes |= varied
    return axes <= set(form.over.axes) or axes == {channel_axis(algebra, form.t, form.over)}
