"""States of loops, whose shapes nothing declares inside of the body.

A state begins as what the loop is given.  Where it has that rank and some of those sizes at the
start of a step, and the body then gives it the same ones, it has them at every step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.graph.model_info import ModelInfo
from onnxfold.graph.traversal import bodies, declared_shape, graph_values
from onnxfold.shapes.body_results import either
from onnxfold.shapes.named_sizes import own_names

_WITHOUT_A_BATCH_AXIS = 9  # the first opset of such a Scan
# Of Loop: how often it runs, and whether, before the states; and whether it goes on.
_LOOP_INPUTS, _LOOP_OUTPUTS = 2, 1


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state as its loop is given it, as a step reads it, and as a step gives it."""

    initial: ir.Value
    read: ir.Value
    given: ir.Value


def fill_body(view: ModelInfo, node: ir.Node, fill: Callable[[], None]) -> None:
    """Let ``fill`` find the shapes in the bodies of a node, with those of a loop's states."""
    inside = [graph for _, _, body in bodies(node) for graph in (body, *body.subgraphs())]
    untold = [value for graph in inside for value in graph_values(graph) if value.shape is None]
    states = [state for state in _states(view, node) if declared_shape(state.read) is None]
    claims = {state: either([declared_shape(state.initial)]) for state in states}
    while claims := {state: shape for state, shape in claims.items() if shape is not None}:
        for state, shape in claims.items():
            _set_shape(view, state.read, shape)
        fill()
        held = {
            state: either([shape, declared_shape(state.given)]) for state, shape in claims.items()
        }
        if held == claims:
            return
        for value in untold:
            value.shape = None
            view.forget_shape(value)
        claims = held
    fill()


def _states(view: ModelInfo, node: ir.Node) -> list[_State]:
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return []
    (_, _, body), *_ = bodies(node)
    if node.op_type == "Loop":
        first, behind, count = _LOOP_INPUTS, _LOOP_OUTPUTS, len(node.inputs) - _LOOP_INPUTS
    elif view.opset < _WITHOUT_A_BATCH_AXIS:
        return []
    else:
        count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", len(node.inputs))
        first, behind = 0, 0
    found = zip(
        node.inputs[first : first + count],
        body.inputs[first : first + count],
        body.outputs[behind : behind + count],
        strict=False,
    )
    return [_State(initial, read, given) for initial, read, given in found if initial is not None]


def _set_shape(view: ModelInfo, value: ir.Value, shape: Shape) -> None:
    names = own_names(value, len(shape))
    value.shape = ir.Shape(n if dim is None else dim for n, dim in zip(names, shape, strict=True))
    view.forget_shape(value)
