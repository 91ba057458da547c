"""Walks over models: what steps reach, every graph, every value, and its declared shape."""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import onnx_ir as ir

from onnxfold.graph.dims import Dim, Shape

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
T = TypeVar("T")


def reached(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the start and everything reachable from it by steps, each once, nearest first."""
    waiting = deque(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        item = waiting.popleft()
        yield item
        new = [each for each in dict.fromkeys(onward(item)) if each not in seen]
        seen.update(new)
        waiting.extend(new)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph and every body in it, parents first.

    ir.Model.graphs does the same in several times the time, because it searches each node of every
    graph for nested graphs.
    """
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        # Without a call for each node, because few have a body.
        holders = [n for n in graph for a in n.attributes.data.values() if a.type in _GRAPHS]
        below = [body for node in dict.fromkeys(holders) for _, _, body in bodies(node)]
        waiting += reversed(below)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of the main graph and of all bodies, parents first."""
    for graph in all_graphs(model):
        yield from graph


def graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs, initializers and node outputs of one graph, bodies left out."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from (output for output in node.outputs if output.name)


def bodies(node: ir.Node) -> tuple[tuple[str, int, ir.Graph], ...]:
    """Return (attribute name, number, graph) of every body of a node."""
    for attribute in attributes(node):  # not a generator, because it is called most often
        if attribute.type in _GRAPHS:
            return _bodies(node)
    return ()


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, and those that its bodies read and return."""
    yield from (value for value in node.inputs if value is not None)
    for _, _, body in bodies(node):
        yield from body.outputs
        for inner in body:
            yield from reads(inner)


def _bodies(node: ir.Node) -> tuple[tuple[str, int, ir.Graph], ...]:
    return tuple(
        (attribute.name, number, graph)
        for attribute in attributes(node)
        if attribute.type in _GRAPHS and not attribute.is_ref()
        for number, graph in enumerate(
            (attribute.as_graph(),)
            if attribute.type == ir.AttributeType.GRAPH
            else attribute.as_graphs()
        )
    )


def attributes(node: ir.Node) -> Collection[ir.Attr]:
    """Return the attributes of a node."""
    # Of the dict itself: a UserDict is ten times as slow.
    return node.attributes.data.values()


def declared_shape(value: ir.Value) -> Shape | None:
    """Return the shape of a value, or None if not even its rank is known."""
    fixed = fixed_tensor(value)
    shape = value.shape if fixed is None else fixed.shape
    if shape is None:
        return None
    return tuple([dim if type(dim) is int and dim >= 0 else _size(dim) for dim in shape])


def fixed_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a value that is the same in every run, or None."""
    return None if value.is_graph_input() else value.const_value  # callers may override a default


def _size(dim: int | ir.SymbolicDimProtocol) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else None  # some exporters write a negative one for an unknown size
    return str(dim.value) if dim.value is not None else None


class NodeQueue:
    """Nodes to visit in the order of the graph, each once even if added several times.

    Nodes added during a visit come later in the order, so all predecessors of a node are visited
    before it.
    """

    def __init__(self, order: Mapping[ir.Node, int]):
        self._order = order
        self._waiting: list[tuple[int, ir.Node]] = []
        self._known: set[ir.Node] = set()

    def add(self, node: ir.Node) -> None:
        """Queue a node."""
        if node not in self._known:
            self._known.add(node)
            heapq.heappush(self._waiting, (self._order[node], node))

    def add_readers(self, value: ir.Value) -> None:
        """Queue the readers of a value, except those without a place in the order."""
        for use in value.uses():
            if use.node in self._order:
                self.add(use.node)

    def __iter__(self) -> Iterator[ir.Node]:
        while self._waiting:
            yield heapq.heappop(self._waiting)[1]
