"""Carries out scaled streams: constants times c, epsilons times c^2, products with c."""

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.edit import Editor, Lowered, set_attribute, set_input
from onnxfold.graph.operands import known_operand, known_producer
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import NewEpsilon, OpenedValue, ScalePlan
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.weights.edits import Scale


def apply(edit: Editor, plan: ScalePlan, settings: Settings) -> None:
    """Multiply every stream that is named by its power of two."""
    del settings
    places = PlaceEditor(edit)
    values = edit.by_ref()
    for place, factor in plan.factors():
        places.change(place, Scale(place.channels, np.array([factor])))
    for stream in plan.streams:
        for opened in stream.opened:
            _open(edit, values, opened, stream.factor)
        for epsilon in stream.epsilons:
            _change_epsilon(edit, values, epsilon)


def _open(edit: Editor, values: dict[str, ir.Value], opened: OpenedValue, c: float) -> None:
    """Let readers read the product of a value with c."""
    value = values[opened.value]
    if value.dtype is None:
        raise InvariantError(f"'{value.name}' has no known type")
    new, name = NewNodes(edit.info.opset), f"{value.name}.scaled"
    factor = new.weight(f"{name}.factor", np.array(c, value.dtype.numpy()))
    result = new.op("Mul", value, factor)
    result.name, result.type, new.nodes[0].name = name, value.type, name
    result.shape = None if value.shape is None else value.shape.copy()
    edit.insert_behind(value, Lowered.of(new))
    for reader in opened.readers:
        set_input(known_producer(values[reader.node]), reader.index, result)


def _change_epsilon(edit: Editor, values: dict[str, ir.Value], epsilon: NewEpsilon) -> None:
    node = known_producer(values[epsilon.reader.node])
    if epsilon.reader.index < 0:
        set_attribute(node, ir.AttrFloat32("epsilon", epsilon.number))
        return
    old = known_operand(node, epsilon.reader.index)
    if old.dtype is None:
        raise InvariantError(f"'{old.name}' has no known type")
    like = edit.info.array(old)
    shape = () if like is None else like.shape
    tensor = ir.tensor(np.full(shape, epsilon.number, old.dtype.numpy()))
    set_input(
        node, epsilon.reader.index, edit.new_constant(node.outputs[0], tensor, f"{old.name}.scaled")
    )
    edit.drop_if_unread(old)
