"""Shape operands of Reshape and Expand: change of their entry for the channels."""

from collections.abc import Callable

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import (
    Editor,
    change_constant,
    drop_weight,
    insert_before,
    set_input,
    sweep,
)
from onnxfold.graph.operands import computed_by, known_producer, known_tensor, operand
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.passes.stream_forms.plan import CompressionPlan
from onnxfold.refusal import Refusal, RefusalCode

_Entry = tuple[int | None, Array, int]
"""A constant entry of a shape: the operand of a Concat (None: no Concat), its numbers, where."""


def takes_shape(node: ir.Node) -> bool:
    """Whether a node reads the shape of its result, from opset 5 on as its second input."""
    return operator(node) in ("Reshape", "Expand")


def names_size(info: ModelInfo, node: ir.Node, axis: int, size: int) -> bool:
    """Whether a node reads a shape that does not follow from its operand."""
    if not takes_shape(node):
        return False
    entry = _entry(info, node, axis)
    return entry is None or int(entry[1][entry[2]]) == size


def refuse_shape(info: ModelInfo, node: ir.Node, axis: int) -> Refusal | None:
    """Return why the shape passed to a node cannot be changed, or None."""
    if _entry(info, node, axis) is not None:
        return None
    return refuse(RefusalCode.UNKNOWN_SHAPE, node, "reads a computed number of channels")


def _entry(info: ModelInfo, node: ir.Node, axis: int) -> _Entry | None:
    shape = operand(node, 1)
    if shape is None:
        return None
    whole = info.array(shape)
    if whole is not None:
        # Expand aligns its shape from the right.
        rank = info.rank(node.outputs[0]) or whole.size
        return None, whole, axis - (rank - whole.size)
    maker = computed_by(shape, "Concat")
    if maker is None:
        return None
    start = 0
    for part, entries in enumerate(maker.inputs):
        length = info.dim(entries, 0)
        if entries is None or not isinstance(length, int):
            return None
        if start <= axis < start + length:
            numbers = info.array(entries)
            return None if numbers is None else (part, numbers, axis - start)
        start += length
    return None


def change_shapes(edit: Editor, plan: CompressionPlan, more: int) -> None:
    """Make all nodes that a plan names read shapes with ``more`` additional channels."""
    known = edit.info.by_ref()
    changed: dict[tuple[ir.Value, int], ir.Value] = {}
    for change in plan.shapes:
        node = known_producer(known[change.value])
        _change_shape(edit, node, change.axis, more, changed)


def _change_shape(
    edit: Editor,
    node: ir.Node,
    axis: int,
    more: int,
    changed: dict[tuple[ir.Value, int], ir.Value],
) -> None:
    """Make a node read another shape, created once for all readers of the same one."""
    entry, twin = _entry(edit.info, node, axis), edit.node(node)
    shape = twin.inputs[1]
    if entry is None or shape is None:
        raise InvariantError(f"node '{node_label(node)}' is told no shape")
    if (shape, axis) not in changed:
        changed[shape, axis] = _resized(edit, shape, entry, more)
    set_input(twin, 1, changed[shape, axis])
    maker = shape.producer()
    if maker is not None:
        sweep([maker])
    drop_weight(shape)


def _resized(edit: Editor, shape: ir.Value, entry: _Entry, more: int) -> ir.Value:
    changed_part, old, position = entry
    numbers = old.copy()
    numbers[position] += more
    maker = shape.producer()
    name = f"{shape.name}.resized"
    changed = edit.new_constant(shape, ir.tensor(numbers), name)
    if changed_part is None or maker is None:
        return changed
    parts = [changed if part == changed_part else value for part, value in enumerate(maker.inputs)]
    joined = ir.node("Concat", parts, {"axis": 0}, name=edit.unused(name))
    output = joined.outputs[0]
    output.name, output.type, output.shape = edit.unused(name), shape.type, shape.shape
    insert_before(maker, joined)
    return output


def declare(value: ir.Value, axis: int, more: int) -> None:
    """Change the declared shape of a value by so many channels."""
    size = None if value.shape is None else value.shape[axis]
    if value.shape is not None and isinstance(size, int):
        dims = enumerate(value.shape)
        value.shape = ir.Shape(size + more if place == axis else dim for place, dim in dims)


def resize_weight(
    value: ir.Value, axis: int, more: int, computed: Callable[[ir.TensorProtocol], Array]
) -> None:
    """Store a tensor computed lazily from a weight, with so many channels more."""
    tensor = known_tensor(value)
    dtype, name = tensor.dtype, tensor.name
    sizes = enumerate(tensor.shape.numpy())
    shape = ir.Shape(size + more * (place == axis) for place, size in sizes)

    def made() -> ir.TensorProtocol:
        return ir.Tensor(computed(tensor), dtype=dtype, name=name)

    change_constant(value, ir.LazyTensor(made, dtype=dtype, shape=shape, name=name))
    value.shape = shape


def slice_off_last(new: NewNodes, value: ir.Value, axis: int, name: str) -> ir.Value:
    """Return a value without its last channel."""
    parts = {"start": 0, "end": -1, "axis": axis}
    return new.op("Slice", value, *(new.integers(f"{name}.{k}", [v]) for k, v in parts.items()))
