"""A view of the graph that skips operators without effect; the graph is not changed.

Skips Identity, Dropout, Casts to the same type, Reshape and Expand to the same shape, and
multiplication by exactly 1 or addition of exactly 0 (no tolerance).
"""

import math
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo
from onnxfold.graph.constants import Array, is_narrowing
from onnxfold.operators import facets
from onnxfold.operators.families.uniform import uniform
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra.forms import Coefficient
from onnxfold.shapes.named_sizes import SymbolicShape, fits, same_elements
from onnxfold.shapes.symbolic import SymbolicShapes

# The function of each.
_ARITHMETIC: dict[str, np.ufunc] = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
# Operators that exporters write twice upstream of a norm.
_REPEATED = (Family.CAST, Family.RESHAPE, Family.TRANSPOSE)
_CHAIN = 6  # Reshapes in a row; tf2onnx writes up to four around a mean
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Add": 0.0, "Sub": 0.0}


def _repeats(small: SymbolicShape, large: SymbolicShape) -> bool:
    """Whether a shape of the same rank broadcasts along at least one axis."""
    return fits(small, large) and small != large


class Canonical:
    """Answers to questions about values, each computed once.

    ``assumed_rank`` is used for values of unknown rank.
    """

    def __init__(self, view: ModelInfo, assumed_rank: int | None = None):
        self.view = view
        self._symbolic = SymbolicShapes(view, assumed_rank)
        self._first: dict[tuple[object, ...], ir.Value] = {}
        self._roots: dict[ir.Value, ir.Value] = {}
        self._atoms: dict[ir.Value, ir.Value] = {}
        self._dtypes: dict[ir.Value, ir.DataType | None] = {}
        self._numbers: dict[ir.Value, float | None] = {}

    def dims(self, value: ir.Value | None) -> SymbolicShape | None:
        """Return the shape in symbols and numbers."""
        return self._symbolic.dims(value)

    def root(self, value: ir.Value) -> ir.Value:
        """Return the value that this one is a plain copy of."""
        trail = []
        while value not in self._roots:
            trail.append(value)
            source = self.copied(value)
            if source is None:
                self._roots[value] = self._twin(value)
                break
            value = source
        root = self._roots[value]
        self._roots.update((item, root) for item in trail)
        return root

    def _twin(self, value: ir.Value) -> ir.Value:
        """Return the first value that the same operator computes from the same operands."""
        node = value.producer()
        if node is None or row_of(node).family not in _REPEATED:
            return value
        operands = []
        for index, operand in enumerate(node.inputs):
            integers = self.view.integers(operand) if index else None  # data may be a large table
            known = None if operand is None else self._roots.get(operand, operand)
            operands.append(known if integers is None else integers)
        attributes = sorted((key, repr(item.value)) for key, item in node.attributes.items())
        key = (node.graph, node.op_type, *operands, *attributes)
        return self._first.setdefault(key, value)

    def atom(self, value: ir.Value) -> ir.Value:
        """Return the value that this one equals exactly, also through widening Casts."""
        value = self.root(value)
        if value not in self._atoms:
            node = value.producer()
            source = None
            if node is not None and node.op_type == "Cast" and node.domain == "":
                source = node.inputs[0]
            exact = source is not None and is_narrowing(self.dtype(source), self.dtype(value))
            self._atoms[value] = (
                value if source is None or exact is not False else self.atom(source)
            )
        return self._atoms[value]

    def copied(self, value: ir.Value) -> ir.Value | None:
        """Return the input that the value's node passes on unchanged, or None."""
        node = value.producer()
        if node is None or node.domain != "" or value is not node.outputs[0] or not node.inputs:
            return None
        first = node.inputs[0]
        if first is None:
            return None
        unchanged = False
        if node.op_type == "Identity":
            unchanged = True
        elif node.op_type == "Dropout":
            unchanged = self._inference(node)
        elif node.op_type in ("Cast", "CastLike"):
            unchanged = self.dtype(first) is not None and self.dtype(first) == self.dtype(value)
        elif node.op_type == "Expand":
            unchanged = self.dims(value) == self.dims(first) is not None
        elif facets.reshapes(row_of(node)):
            return self._of_the_same_shape(value)
        elif node.op_type in _NEUTRAL:
            return self._neutral(node)
        return first if unchanged else None

    def _of_the_same_shape(self, value: ir.Value) -> ir.Value | None:
        """Return the nearest value with this shape upstream of a chain of Reshapes."""
        first: ir.Value | None = value
        for _ in range(_CHAIN):
            node = None if first is None else first.producer()
            if node is None or not facets.reshapes(row_of(node)):
                return None
            first = node.inputs[0]
            if first is not None and same_elements(self.dims(value), self.dims(first)):
                return first
        return None

    def _inference(self, node: ir.Node) -> bool:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return node.attributes.get_int("is_test", 1) == 1
        return self.view.scalar(node.inputs[2]) == 0.0

    def _neutral(self, node: ir.Node) -> ir.Value | None:
        """Return x of x * 1, 1 * x, x / 1, x + 0, 0 + x, x - 0 where the shape stays."""
        neutral = _NEUTRAL[node.op_type]
        for place in (1, 0) if node.op_type in ("Mul", "Add") else (1,):
            operand, other = node.inputs[place], node.inputs[1 - place]
            if operand is None or other is None or not self._small(operand):
                continue
            known = self.view.scalar(operand)
            if known is None:
                known = self.computed_number(operand)
            if known == neutral and fits(self.dims(operand), self.dims(other)):
                return other
        return None

    def _small(self, value: ir.Value) -> bool:
        tensor = self.view.tensor(value)
        return tensor is None or tensor.size == 1

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type, as declared or as the operator determines it."""
        if value is None:
            return None
        if value not in self._dtypes:
            self._dtypes[value] = None
            self._dtypes[value] = self._find_dtype(value)
        return self._dtypes[value]

    def _find_dtype(self, value: ir.Value) -> ir.DataType | None:
        node = value.producer()
        if node is not None and node.op_type == "Cast" and node.domain == "":
            to = node.attributes.get_int("to", 0)
            return ir.DataType(to) if to else None
        if value.dtype is not None:
            return value.dtype
        tensor = self.view.tensor(value)
        if tensor is not None:
            return tensor.dtype
        return None if node is None else self._result_dtype(node)

    def _result_dtype(self, node: ir.Node) -> ir.DataType | None:
        if not facets.reads_elements(row_of(node)):
            return ir.DataType.INT64
        if row_of(node).decides:
            return ir.DataType.BOOL
        if node.op_type == "ConstantOfShape":
            filling = node.attributes.get_tensor("value")
            return ir.DataType.FLOAT if filling is None else filling.dtype
        operands = {"Where": (1, 2), "CastLike": (1,)}.get(node.op_type, (0, 1))
        for index in operands:
            if index < len(node.inputs) and node.inputs[index] is not None:
                found = self.dtype(node.inputs[index])
                if found is not None:
                    return found
        return None

    def number(self, value: ir.Value | None) -> float | None:
        """Return a constant scalar, also one computed from static sizes, or None."""
        if value is None:
            return None
        root = self.root(value)
        # Operands first, each once: a computation may be deep, and read itself twice per step.
        waiting = [root]
        while waiting:
            last = waiting[-1]
            missing = [
                operand
                for operand in ([] if last in self._numbers else self._scalar_operands(last))
                if operand is not None and operand not in self._numbers
            ]
            waiting += missing
            if not missing:
                waiting.pop()
                self._numbers[last] = self._find_number(last)
        return self._numbers[root]

    def _scalar_operands(self, value: ir.Value) -> list[ir.Value | None]:
        """Return the values from which the number of a value is computed.

        Empty if it is not computed.
        """
        node = value.producer()
        if node is None or node.domain != "" or self._stored_number(value) is not None:
            return []
        if node.op_type == "CastLike":
            operands = node.inputs[:1]
        elif node.op_type in _ARITHMETIC and self.view.rank(value) in (0, 1):
            operands = node.inputs
        else:
            return []
        return [None if operand is None else self.root(operand) for operand in operands]

    def _stored_number(self, value: ir.Value) -> float | None:
        scalar = self.view.scalar(value)
        if scalar is not None:
            return scalar
        vector = self._symbolic.vector(value)
        if vector is not None and len(vector) == 1 and isinstance(vector[0], int):
            return float(vector[0])
        return None

    def _find_number(self, value: ir.Value) -> float | None:
        if value in self._numbers:
            return self._numbers[value]
        stored, node = self._stored_number(value), value.producer()
        operands = self._scalar_operands(value)
        if stored is not None or node is None or not operands:
            return stored
        numbers = [None if operand is None else self._numbers[operand] for operand in operands]
        if node.op_type == "CastLike":
            return self._rounded(numbers[0], self.dtype(value))
        if any(number is None for number in numbers):
            return None
        with np.errstate(all="ignore"):
            result = float(_ARITHMETIC[node.op_type](*numbers))
        return result if math.isfinite(result) else None

    def _rounded(self, number: float | None, dtype: ir.DataType | None) -> float | None:
        if number is None or dtype not in FLOATS:
            return None
        return float(np.asarray(number).astype(dtype.numpy()))

    def uniform(self, value: ir.Value | None, depth: int = 2) -> float | None:
        """Return the number that fills a value of any shape, or None.

        In addition to :func:`uniform`, this handles sums of two such values, and sums over known
        axes.
        """
        found = uniform(self.view, value)
        node = None if value is None or found is not None else value.producer()
        if node is None or node.domain != "" or depth == 0:
            return found
        if node.op_type == "Add":
            parts = [self.uniform(operand, depth - 1) for operand in node.inputs]
            return None if None in parts else sum(part for part in parts if part is not None)
        if node.op_type != "ReduceSum":
            return None
        part, before = self.uniform(node.inputs[0], depth - 1), self.dims(node.inputs[0])
        axes = self.view.axes(node)
        if part is None or before is None or not axes:
            return None
        sizes = [before[axis] for axis in axes if -len(before) <= axis < len(before)]
        count = prod(size for size in sizes if isinstance(size, int))
        exact = len(sizes) == len(axes) and all(isinstance(size, int) for size in sizes)
        return part * count if exact and float(np.float32(part * count)) == part * count else None

    def computed_number(self, value: ir.Value) -> float | None:
        """Return the number that fills a value computed from a shape, or None.

        Constants are excluded: a weight may be uniform only because it was edited.
        """
        if value.producer() is None or self.view.array(value) is not None:
            return None
        return self.uniform(value)

    def coefficient(
        self, value: ir.Value | None, t: ir.Value, *, repeated: bool = False
    ) -> Coefficient | None:
        """Return a factor or term that may be combined with t, whatever axes it varies along.

        A value computed at run time must have a lower rank than t: one of full rank is another
        tensor of the stream, a residual or a gate, not a parameter. With ``repeated``, one of full
        rank that broadcasts along some axis of t is accepted too.
        """
        if value is None:
            return None
        value = self._unexpanded(self.root(value), t)
        number = self.number(value)
        if number is not None and fits(self.dims(value), self.dims(t)):
            return Coefficient(np.asarray(number), (), value if number not in (0, 1) else None)
        array = self.view.array(value)
        if array is not None:
            if not np.issubdtype(array.dtype, np.number) and array.dtype.name != "bfloat16":
                return None
            return Coefficient(array.astype(np.float64), (), value)
        filled = self.uniform(value)
        if filled is not None and fits(self.dims(value), self.dims(t)):
            return Coefficient.of(filled)
        array = self._laid_out(value)
        if array is not None:
            return Coefficient(array.astype(np.float64), (), value)
        return self._runtime(value, t, repeated)

    def _runtime(self, value: ir.Value, t: ir.Value, repeated: bool) -> Coefficient | None:
        dims, limit = self.dims(value), self.dims(t)
        parameter = self.view.tensor(value) is not None or value.is_initializer()
        if dims is None or limit is None:
            return None
        if not (parameter or len(dims) < len(limit) or (repeated and _repeats(dims, limit))):
            return None
        if self.dtype(value) not in FLOATS:
            return None
        return Coefficient(np.ones(()), (value,), value)

    def _laid_out(self, value: ir.Value) -> Array | None:
        """Return a constant whose shape is computed from known sizes."""
        node, dims = value.producer(), self.dims(value)
        if node is None or node.op_type != "Reshape" or node.domain != "" or dims is None:
            return None
        array = self.view.array(node.inputs[0])
        sizes = [dim for dim in dims if isinstance(dim, int)]
        if array is None or len(sizes) != len(dims) or prod(sizes) != array.size:
            return None
        return array.reshape(sizes)

    def _unexpanded(self, value: ir.Value, t: ir.Value) -> ir.Value:
        """Return the input of an Expand to at most the shape of t."""
        node = value.producer()
        if node is None or node.op_type != "Expand" or node.domain != "":
            return value
        source = node.inputs[0]
        if source is None or not fits(self.dims(value), self.dims(t)):
            return value
        return self.root(source)
