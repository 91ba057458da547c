"""Shapes of the results of If, Loop and Scan, derived from their bodies, and of loop states.

A state starts as the loop's operand. If, given its rank and some of its sizes at the start of a
step, the body returns the same ones, they hold at every step.

Ranks that follow from the readers of a value, if the operator does not determine its result.

PyTorch writes ``squeeze(dim)`` of an unknown size as an If whose branches differ in rank by one. A
downstream Transpose, Gemm or convolution determines the branch, and so does a declared output
reached through linear layers and residual sums.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.graph.model_info import ModelInfo, operator
from onnxfold.graph.operands import known_producer, producer_of
from onnxfold.graph.traversal import bodies, declared_shape, graph_values
from onnxfold.operators import facets
from onnxfold.operators.row import Family, Layer
from onnxfold.operators.table import row_of
from onnxfold.shapes.named_sizes import own_names

_WITHOUT_A_BATCH_AXIS = 9  # the first opset of this Scan
_CONTROLS = 2  # trip count and condition of a Loop: its first operands
_ANY = range(1 << 16)
_CONVOLUTIONS = (
    Layer.CONVOLUTION,
    Layer.DEFORMABLE_CONVOLUTION,
    Layer.TRANSPOSED_CONVOLUTION,
)
_KEEP_RANK = (Family.CUMULATIVE, Family.PAD, Family.SLICE, Family.SPLIT)
_LAYERS = (*_CONVOLUTIONS, Layer.MATMUL)
_MATRIX = 2


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
    if operator(node) not in ("Loop", "Scan"):
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


class DemandedRanks:
    """The ranks that values must have for everything downstream to run, from the last node on."""

    def __init__(self, view: ModelInfo):
        self._view = view

    def shapes(self, node: ir.Node) -> Iterator[tuple[ir.Value, Shape]]:
        """Yield results of unknown shape for which only one shape is possible, with that shape."""
        for value in node.outputs:
            if self._view.shape(value) is not None:
                continue
            ranks, branches = self._ranks.get(value, _ANY), self._branches(value)
            shape: Shape | None = (None,) * ranks[0] if len(ranks) == 1 else None
            if branches:
                shape = either([branch for branch in branches if len(branch) in ranks])
            if shape is not None:
                yield value, shape

    def _branches(self, value: ir.Value) -> list[Shape]:
        """Return the shapes that branches yield for a value, or nothing if one is unknown."""
        node = known_producer(value)
        results = (body.outputs[value.index() or 0] for _, _, body in bodies(node))
        shapes = [self._view.shape(result) for result in results if node.op_type == "If"]
        known = [shape for shape in shapes if shape is not None]
        return known if len(known) == len(shapes) else []

    @cached_property
    def _ranks(self) -> dict[ir.Value, range]:
        found: dict[ir.Value, range] = {}
        for graph in self._view.graphs:  # a reader within a body need not run
            for node in reversed(graph):
                if not self._view.is_dead(node):
                    self._look_at(node, found)
        return found

    def _look_at(self, node: ir.Node, found: dict[ir.Value, range]) -> None:
        for index, operand in enumerate(node.inputs):
            producer = producer_of(operand)
            if operand is not None and producer is not None and producer.graph is node.graph:
                known, asked = found.get(operand, _ANY), self._asked(node, index, found)
                least, most = max(known.start, asked.start), min(known.stop, asked.stop)
                found[operand] = range(least, most)

    def _asked(self, node: ir.Node, index: int, found: dict[ir.Value, range]) -> range:
        """Return the ranks that an operator accepts at an input."""
        row, result = row_of(node), self._of(node.outputs[0], found)
        if row.family is Family.GEMM:
            return range(_MATRIX, _MATRIX + 1) if index < _MATRIX else range(_MATRIX + 1)
        broadcast = facets.broadcasts(row)
        if broadcast is not None:
            return range(result.stop) if not broadcast or index < broadcast else _ANY
        if row.family is Family.CONCAT:
            return next((self._of(other, found) for other in self._known(node)), result)
        if index != 0:
            return _ANY
        if row.family is Family.TRANSPOSE:
            perm = node.attributes.get_ints("perm", ())
            return range(len(perm), len(perm) + 1) if perm else result
        if row.family is Family.GATHER:
            gathered = self._view.rank(node.inputs[1])
            return _ANY if gathered is None else _shifted(result, 1 - gathered)
        weight = self._view.rank(node.inputs[1]) if row.layer in _LAYERS else None
        if row.layer in _CONVOLUTIONS:
            return _ANY if weight is None else range(weight, weight + 1)
        keeps = weight == _MATRIX or row.family in _KEEP_RANK or facets.same_shape(row)
        return result if keeps else _ANY

    def _known(self, node: ir.Node) -> Iterator[ir.Value]:
        return (v for v in node.inputs if v is not None and self._view.rank(v) is not None)

    def _of(self, value: ir.Value, found: dict[ir.Value, range]) -> range:
        rank = self._view.rank(value)
        return found.get(value, _ANY) if rank is None else range(rank, rank + 1)


def _shifted(ranks: range, more: int) -> range:
    return range(max(0, ranks.start + more), ranks.stop + more)
