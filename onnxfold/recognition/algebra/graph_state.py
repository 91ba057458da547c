"""Facts about the values of one graph, collected in topological order, and guards that ask them."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, operator
from onnxfold.norms.second_moments import MomentAxes
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra.canonical import Canonical
from onnxfold.recognition.algebra.forms import ONE, ZERO, AffineForm, Coefficient, Form, Square
from onnxfold.shapes.named_sizes import SymbolicShape, fits


class Algebra:
    """The forms of values; a value without a form is just a tensor.

    ``extends`` leads from a norm to the shorter norm that it extends, ``reshaped`` from a norm of x
    to the Reshape of x that it was computed on, ``conditions`` from a Where to its condition.
    """

    def __init__(self, canonical: Canonical):
        self.canonical = canonical
        self.forms: dict[ir.Value, Form] = {}
        self.extends: dict[ir.Value, ir.Value] = {}
        self.reshaped: dict[ir.Value, ir.Value] = {}
        self.conditions: dict[ir.Node, frozenset[ir.Node]] = {}

    @property
    def view(self) -> ModelInfo:
        """The model."""
        return self.canonical.view

    def form(self, value: ir.Value | None) -> Form | None:
        return None if value is None else self.forms.get(self.canonical.root(value))

    def atom(self, value: ir.Value) -> ir.Value:
        return self.canonical.atom(value)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        return self.canonical.dtype(value)

    def dims(self, value: ir.Value | None) -> SymbolicShape | None:
        return self.canonical.dims(value)

    def over(self, value: ir.Value, axes: tuple[int, ...]) -> MomentAxes | None:
        """Return the elements over which ``axes`` are reduced; None if all axes have size 1."""
        dims = self.dims(value)
        if dims is None:
            return None
        places = tuple(axis for axis in axes if dims[axis] != 1)
        if not places:
            return None
        blocks = []
        for axis in places:
            dim = dims[axis]
            if not isinstance(dim, int) or dim < 1:
                return MomentAxes(places, None)
            blocks.append(AxisBlock(axis, 1, dim, 1))
        return MomentAxes(places, Fiber.of(blocks))

    def square(self, value: ir.Value) -> Form | None:
        """Return the square of a value, seen at its exact source."""
        root = self.canonical.root(value)
        return Square(root if root in self.forms else self.atom(root))

    def number_beside(self, value: ir.Value | None, other: ir.Value | None) -> float | None:
        """Return a constant scalar that does not change the shape of ``other``."""
        if value is None or other is None:
            return None
        number = self.canonical.number(value)
        if number is None:
            number = self.canonical.computed_number(value)
        if number is None or not fits(self.dims(value), self.dims(other)):
            return None
        return number

    def varying(self, factor: Coefficient, t: ir.Value) -> frozenset[int] | None:
        """Return the axes of t along which a coefficient varies; None if it would enlarge t."""
        limit = self.dims(t)
        shape: SymbolicShape | None = factor.array.shape
        if factor.runtime:
            shape = self.dims(factor.runtime[0])
        if not fits(shape, limit) or shape is None or limit is None:
            return None
        offset = len(limit) - len(shape)
        return frozenset(offset + axis for axis, dim in enumerate(shape) if dim != 1)

    def single(self, value: ir.Value) -> bool:
        """Whether exactly one node reads the value, including reads through copies.

        A reader of the shape alone does not count.
        """
        while True:
            readers = {r.node for r in self.view.readers(value) if not _reads_shape(r.node)}
            if value.is_graph_output() or len(readers) != 1:
                return False
            source = self.canonical.copied(value)
            if source is None:
                return True
            value = source

    def complete(self, value: ir.Value) -> AffineForm | None:
        """Return the form of a value that is a norm, or None."""
        form = self.form(value)
        return form if isinstance(form, AffineForm) and form.complete else None


def _reads_shape(node: ir.Node) -> bool:
    return not facets.reads_elements(row_of(node))


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
