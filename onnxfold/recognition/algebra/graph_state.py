"""Facts about the values of one graph, collected in topological order."""

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.norms.second_moments import MomentAxes
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra.canonical import Canonical
from onnxfold.recognition.algebra.forms import AffineForm, Coefficient, Form, Square
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
        """Return the form of a value or of what it copies."""
        return None if value is None else self.forms.get(self.canonical.root(value))

    def atom(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value equals, seen through copies and exact Casts."""
        return self.canonical.atom(value)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, as declared or as the operator determines it."""
        return self.canonical.dtype(value)

    def dims(self, value: ir.Value | None) -> SymbolicShape | None:
        """Return the shape in symbols and numbers."""
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
