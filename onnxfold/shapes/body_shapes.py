"""Shapes of the results of If, Loop and Scan, derived from their bodies, and of loop states.

A state starts as the loop's operand. If, given its rank and some of its sizes at the start of a
step, the body returns the same ones, they hold at every step.
"""

from collections.abc import Callable, Iterable

import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.graph.model_info import ModelInfo
from onnxfold.graph.traversal import bodies, declared_shape, graph_values
from onnxfold.shapes.named_sizes import own_names

_WITHOUT_A_BATCH_AXIS = 9  # the first opset of this Scan
_CONTROLS = 2  # trip count and condition of a Loop: its first operands


def body_results(node: ir.Node, opset: int) -> list[tuple[ir.Value, Shape]]:
    """Return the known shapes of a node's results, without symbols of bodies."""
    rule = None if node.domain else _RULES.get(node.op_type)
    found = [] if rule is None else rule(node, opset)
    shapes = zip(node.outputs, found, strict=False)
    return [(value, shape) for value, shape in shapes if value.name and shape is not None]


def _of_if(node: ir.Node, _: int) -> list[Shape | None]:
    branches = [[_shape(value) for value in body.outputs] for _, _, body in bodies(node)]
    return [either(pair) for pair in zip(*branches, strict=False)]


def _of_loop(node: ir.Node, _: int) -> list[Shape | None]:
    """A state is its initial value, or what the body returned last."""
    given = [_shape(value) for value in _only_body(node).outputs[1:]]
    initial = [_shape(value) for value in node.inputs[_CONTROLS:]]
    states = [either(pair) for pair in zip(initial, given, strict=False)]
    return states + [_stacked(shape, 0) for shape in given[len(states) :]]


def _of_scan(node: ir.Node, opset: int) -> list[Shape | None]:
    """A state keeps its shape."""
    if opset < _WITHOUT_A_BATCH_AXIS:
        return []
    given = [_shape(value) for value in _only_body(node).outputs]
    count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", len(node.inputs))
    axes = node.attributes.get_ints("scan_output_axes", [0] * len(given))
    stacked = map(_stacked, given[count:], axes)
    return [*(either([shape]) for shape in given[:count]), *stacked]


_RULES: dict[str, Callable[[ir.Node, int], list[Shape | None]]] = {
    "If": _of_if,
    "Loop": _of_loop,
    "Scan": _of_scan,
}


def _shape(value: ir.Value | None) -> Shape | None:
    return None if value is None else declared_shape(value)


def _only_body(node: ir.Node) -> ir.Graph:
    return bodies(node)[0][2]


def either(shapes: Iterable[Shape | None]) -> Shape | None:
    """Return the sizes in which shapes agree."""
    known = [shape for shape in shapes if shape is not None]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or not known:
        return None
    return tuple(
        dims[0] if isinstance(dims[0], int) and len(set(dims)) == 1 else None
        for dims in zip(*known, strict=True)
    )


def _stacked(shape: Shape | None, axis: int) -> Shape | None:
    """Return the shape of the results of many runs, stacked along a new axis."""
    numbers = either([shape])
    if numbers is None:
        return None
    place = axis % (len(numbers) + 1)
    return (*numbers[:place], None, *numbers[place:])


# Of Loop: trip count and condition come before the states; the body returns a condition too.
_LOOP_INPUTS, _LOOP_OUTPUTS = 2, 1


# A state as the loop's operand, as the body's input, and as the body's output.
_State = tuple[ir.Value, ir.Value, ir.Value]


def fill_body(view: ModelInfo, node: ir.Node, fill: Callable[[], None]) -> None:
    """Infer the shapes in the bodies of a node with ``fill``, after those for a loop's states."""
    inside = [graph for _, _, body in bodies(node) for graph in (body, *body.subgraphs())]
    untold = [value for graph in inside for value in graph_values(graph) if value.shape is None]
    states = [state for state in _states(view, node) if declared_shape(state[1]) is None]
    claims = {state: either([declared_shape(state[0])]) for state in states}
    while claims := {state: shape for state, shape in claims.items() if shape is not None}:
        for (_, read, _), shape in claims.items():
            _set_shape(view, read, shape)
        fill()
        held = {state: either([shape, declared_shape(state[2])]) for state, shape in claims.items()}
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
    return [(initial, read, given) for initial, read, given in found if initial is not None]


def _set_shape(view: ModelInfo, value: ir.Value, shape: Shape) -> None:
    names = own_names(value, len(shape))
    value.shape = ir.Shape(n if dim is None else dim for n, dim in zip(names, shape, strict=True))
    view.forget_shape(value)
