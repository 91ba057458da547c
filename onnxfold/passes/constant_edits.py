"""Edits of the constants at the places of a plan, each made once for any number of requests."""

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.graph.edit import Editor, change_constant, set_input
from onnxfold.graph.operands import known_producer, known_tensor, operand
from onnxfold.graph.traversal import declared_shape
from onnxfold.passes.places import Place
from onnxfold.refusal import Refusal
from onnxfold.weights.dequantised import QuantisedWeight, holder_of, quantised_weight
from onnxfold.weights.edited import EditedTensor, edited, unrounded
from onnxfold.weights.evaluation import Edit, Shift


def unrounded_numbers(info: ModelInfo, value: ir.Value | None) -> Array | None:
    """Return a constant's numbers, unrounded if they are computed or absorbed a scale."""
    array, tensor = info.wide_array(value), info.tensor(value)
    return array if array is None or tensor is None else unrounded(tensor)


def rounded_once(numbers: Float64, dtype: ir.DataType, name: str) -> EditedTensor:
    """Return a constant of a type whose unrounded numbers stay known."""
    zeros = ir.Tensor(np.zeros(numbers.shape, dtype.numpy()), dtype=dtype)
    channels = Channels.along(enumerate(numbers.shape))
    return edited(zeros, Shift(channels, numbers.reshape(-1)), name)


class PlaceEditor:
    """Editor of the constants that a plan names, in the edited model."""

    def __init__(self, edit: Editor):
        self.edit = edit
        self.values = edit.by_ref()
        self._before: dict[str, ir.TensorProtocol] = {}
        self._edited: set[str] = set()
        self._copied: set[tuple[ir.Node, int]] = set()

    def original(self, ref: str) -> ir.TensorProtocol:
        """Return the tensor of a constant before any fusion."""
        if ref not in self._before:
            self._before[ref] = known_tensor(self.values[ref])
        return self._before[ref]

    def numbers(self, place: Place) -> ir.TensorProtocol | QuantisedWeight:
        """Return the numbers of a weight as they were before any fusion, be they codes."""
        if not place.fixed:
            return self.original(place.value)
        reader = Reader(self._node(place), place.reader.index)
        holder = holder_of(self.values[place.value], reader)
        found = quantised_weight(self.edit.info, holder)
        if isinstance(found, Refusal):
            raise InvariantError(found.sentence)
        return found

    def change(self, place: Place, edit: Edit) -> None:
        """Edit the constant as it was before any edit; all readers in place want the same."""
        if place.behind:
            if not isinstance(edit, Shift):
                raise InvariantError(f"a new bias of '{place.reader.node}' is no weight")
            self._add_behind(place, edit)
            return
        if not place.value:
            self._add_bias(place, edit)
            return
        value = self.values[place.value]
        tensor = self.original(place.value)
        if place.copy:
            name = f"{value.name}.fused"
            copy = self.edit.new_constant(value, edited(tensor, edit, name), name)
            set_input(self._node(place), place.reader.index, copy)
            self.edit.drop_if_unread(value)
        elif place.value not in self._edited:
            self._edited.add(place.value)
            change_constant(value, edited(tensor, edit, tensor.name or value.name or ""))

    def append(self, place: Place, edit: Edit) -> None:
        """Edit the reader's current constant, copied first if others need it unchanged."""
        node = self._node(place)
        index = place.reader.index
        value = operand(node, index)
        if value is None:
            self._add_bias(place, edit)
            return
        tensor = known_tensor(value)
        if place.copy and (node, index) not in self._copied:
            self._copied.add((node, index))
            name = f"{value.name}.fused"
            copy = self.edit.new_constant(value, edited(tensor, edit, name), name)
            set_input(node, index, copy)
            self.edit.drop_if_unread(value)
        else:
            change_constant(value, edited(tensor, edit, tensor.name or value.name or ""))

    def _add_bias(self, place: Place, edit: Edit) -> None:
        node = self._node(place)
        rows, size = place.halves or place.rows, place.channels.size
        bias = self._new_bias(node, (rows, size // rows) if rows else (size,), edit)
        set_input(node, place.reader.index, bias)

    def _add_behind(self, place: Place, edit: Shift) -> None:
        """Add a new bias to a product; the sum takes its name and all readers."""
        node, channels = self._node(place), place.channels
        product = node.outputs[0]
        dims = declared_shape(product)
        if dims is None:
            raise InvariantError(f"'{product.name}' is of unknown rank")
        first, sizes = channels.axes[0], {digit.axis: digit.size for digit in channels.digits}
        shape = tuple(sizes.get(axis, 1) for axis in range(first, len(dims)))
        moved = channels.renamed({axis: axis - first for axis in channels.axes})
        bias = self._new_bias(node, shape, Shift(moved, edit.vector))
        self.edit.put_behind(product, [ir.node("Add", [product, bias])])

    def _new_bias(self, node: ir.Node, shape: tuple[int, ...], edit: Edit) -> ir.Value:
        # This is not the type of the stored weight, which a Cast may follow.
        known = [value.dtype for value in (node.outputs[0], *node.inputs) if value is not None]
        dtype = next(dtype for dtype in known if dtype is not None)
        zeros = ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype)
        name = f"{node.outputs[0].name}.bias"
        return self.edit.new_constant(node.outputs[0], edited(zeros, edit, name), name)

    def _node(self, place: Place) -> ir.Node:
        return known_producer(self.values[place.reader.node])
