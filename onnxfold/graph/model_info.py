"""Read-only questions about a model: producers, readers, constants, shapes, attributes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.constants import Array, ConstantFolder, TensorOf, constant_tensor
from onnxfold.graph.dims import Dim, Shape, in_order
from onnxfold.graph.traversal import NodeQueue, all_graphs, declared_shape, graph_values

_SMALL_CONSTANT_ELEMENTS = 1 << 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reader:
    """A node that reads a value, and the index of the input."""

    node: ir.Node
    index: int


def operator(node: ir.Node) -> str:
    """Return the operator as written in messages: ``Add``, ``com.microsoft.Gelu``."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def node_label(node: ir.Node) -> str:
    """Return a name that a person can find in a viewer, also for a node without a name."""
    if node.name:
        return node.name
    outputs = [output.name for output in node.outputs if output.name]
    return f"{operator(node)}->{outputs[0]}" if outputs else operator(node)


class ModelInfo:
    """Facts about one version of a model, which it reads but does not change.

    Types and shapes that the model omits stay unknown: infer them first
    (:func:`onnxfold.shapes.infer`). ``tensor_of`` returns the stored tensor of a value.
    """

    def __init__(self, model: ir.Model, tensor_of: TensorOf = constant_tensor):
        self.model = model
        self._tensor_of = tensor_of
        self.opset = model.graph.opset_imports.get("", 1)
        self._shapes: dict[ir.Value, Shape] = {}
        self.graphs = tuple(all_graphs(model))
        self.facts: dict[object, Any] = {}  # onnxfold.graph.model_info
        self._refs: dict[ir.Value, str] | None = None
        self._by_ref: dict[str, ir.Value] | None = None
        self._dead: frozenset[ir.Node] | None = None
        self._order: dict[ir.Node, int] | None = None
        self._folder, self._wide_folder = (
            ConstantFolder(
                self.opset, self.shape, _SMALL_CONSTANT_ELEMENTS, wide=wide, tensor_of=tensor_of
            )
            for wide in (False, True)
        )

    def nodes(self) -> Iterator[ir.Node]:
        """Yield every node of the main graph and of all bodies, parents first."""
        for graph in self.graphs:
            yield from graph

    @property
    def order(self) -> Mapping[ir.Node, int]:
        """The number of every node in this order, which is topological in each graph."""
        if self._order is None:
            self._order = {node: number for number, node in enumerate(self.nodes())}
        return self._order

    def queue(self) -> NodeQueue:
        """Return an empty queue of nodes of any graph."""
        return NodeQueue(self.order)

    def ref(self, value: ir.Value) -> str:
        """Return a name for the value that is unique in the model, bodies included.

        It is the value's own name, with ``@<number of the body>`` appended inside bodies, because
        two branches may use one name.
        """
        return self._all_refs()[value]

    def node_ref(self, node: ir.Node) -> str:
        """Return the reference of a node: the reference of its first output that is not omitted."""
        return self.ref(next(output for output in node.outputs if output.name))

    def by_ref(self) -> Mapping[str, ir.Value]:
        """Return the value of every reference."""
        if self._by_ref is None:
            self._by_ref = {ref: value for value, ref in self._all_refs().items()}
        return self._by_ref

    def _all_refs(self) -> dict[ir.Value, str]:
        if self._refs is None:
            self._refs = {}
            for number, graph in enumerate(self.graphs):
                mark = f"@{number}" if number else ""
                for known in graph_values(graph):
                    self._refs[known] = f"{known.name}{mark}"
        return self._refs

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the shape, or None if not even the rank is known."""
        if value is None:
            return None
        shape = self._shapes.get(value)
        if shape is None and (declared := declared_shape(value)) is not None:
            shape = self._shapes[value] = tuple(map(in_order, declared))
        return shape

    def forget_shape(self, value: ir.Value) -> None:
        """Read the shape of a value again on the next request, because it is known better now."""
        self._shapes.pop(value, None)

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the number of axes, or None if unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def dim(self, value: ir.Value | None, axis: int) -> Dim:
        """Return one dimension, or None if unknown."""
        shape = self.shape(value)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return shape[axis]

    def readers(self, value: ir.Value) -> tuple[Reader, ...]:
        """Return every (node, input index) that reads the value, in bodies too."""
        return tuple(Reader(use.node, use.idx) for use in value.uses())

    def is_dead(self, node: ir.Node) -> bool:
        """Whether nothing that leaves the node's graph depends on the node's results."""
        if self._dead is None:
            self._dead = _dead_nodes(self.graphs)
        return node in self._dead

    def is_output(self, value: ir.Value) -> bool:
        """Whether the value is an output of its graph, the model or a body."""
        return value.is_graph_output()

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer (not overridable) or Constant node, unread."""
        return self._tensor_of(value)

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a small constant or constant expression, or None."""
        return self._folder.array(value)

    def wide_array(self, value: ir.Value | None) -> Array | None:
        """Return the result of :meth:`array` with floats as float64: exact up to its roundings."""
        return self._wide_folder.array(value)

    def wide_results(self, node: ir.Node, inputs: list[Array | None]) -> list[Array] | None:
        """Return what a node computes from such arrays of its operands, or None if it fails."""
        return self._wide_folder.results(node, inputs)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value is a constant: a stored one of any size, or a small expression."""
        return self.tensor(value) is not None or self.array(value) is not None

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return a constant with exactly one element as a float, or None."""
        array = self.array(value)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def integers(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return a small constant of an integer type as a flat tuple, or None."""
        array = self.array(value)
        if array is None or array.dtype.kind not in "iu":
            return None
        return tuple(int(item) for item in array.reshape(-1))

    def axes(self, node: ir.Node, input_index: int = 1) -> tuple[int, ...] | None:
        """Return ``axes`` as written, from the attribute or the input; () if absent.

        None means that the axes are a value that is not constant.
        """
        attribute = node.attributes.get("axes")
        if attribute is not None:
            return None if attribute.is_ref() else tuple(attribute.as_ints())
        if len(node.inputs) <= input_index or node.inputs[input_index] is None:
            return ()
        return self.integers(node.inputs[input_index])


def _dead_nodes(graphs: Iterable[ir.Graph]) -> frozenset[ir.Node]:
    """Return the nodes whose results are read only by dead nodes and are not graph outputs."""
    dead: set[ir.Node] = set()
    for graph in graphs:
        for node in reversed(graph):
            if not any(
                output.is_graph_output() or any(use.node not in dead for use in output.uses())
                for output in node.outputs
            ):
                dead.add(node)
    return frozenset(dead)


def keeps_dims(node: ir.Node) -> bool:
    """Whether a reduction keeps its axes, of size 1; onnx and ONNX Runtime take 1 alone for yes."""
    return node.attributes.get_int("keepdims", 1) == 1


class Fact(Generic[T]):
    """A fact that one module finds, once for each version, and that others read.

    The module registers its finder when it is imported, with :meth:`found_by`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._find: Callable[[ModelInfo], T] | None = None

    def found_by(self, find: Callable[[ModelInfo], T]) -> Callable[[ModelInfo], T]:
        """Register the finder; returns the function that finds once for each version."""
        self._find = find
        return self.of

    def of(self, info: ModelInfo) -> T:
        """Return the fact about a version; raises InvariantError if no module finds it."""
        if self not in info.facts:
            if self._find is None:
                raise InvariantError(f"nothing that is imported finds the {self._name} of a model")
            info.facts[self] = self._find(info)
        found: T = info.facts[self]
        return found


SIZES: Fact[Callable[[ir.Value | None], Sequence[object] | None]] = Fact("sizes")
"""The entries of a vector of sizes, numbers and symbols; None if they are not known."""
