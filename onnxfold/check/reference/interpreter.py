"""Run a model node by node in numpy, one tensor of the model in memory at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import (
    Array,
    Call,
    Datum,
    Kernel,
    Precision,
    ResourceLimitError,
    UnsupportedOperator,
    carried,
    find_kernel,
    is_half,
    is_wide_float,
    rounded,
)
from onnxfold.errors import InvariantError, ModelError
from onnxfold.graph import node_label, operator
from onnxfold.graph.traversal import reads

# Receives every value that a node computes, in functions and subgraphs too, except views of stored
# tensors; returns the array to continue with, possibly of another shape and type.
Observer: TypeAlias = Callable[[ir.Value, Array], Array]
# A tensor of the model stays in its file until a kernel asks for it.
Stored: TypeAlias = "Datum | ir.TensorProtocol"

_KERNEL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
# The most nodes that bodies of loops may run in all, about 10 seconds; a decoder runs thousands.
_MOST_BODY_NODES = 500_000


def run(
    model: ir.Model,
    feeds: Mapping[str, Array],
    *,
    precision: Precision,
    observe: Observer | None = None,
) -> dict[str, Array]:
    """Return outputs of the model by name.

    Initializers are read when a node first needs them and values are freed after their last use.
    Raises UnsupportedOperator for a missing kernel, ResourceLimitError for more loop steps or
    larger values than a check is worth, ModelError if a node cannot be computed.
    """
    interpreter = _Interpreter(model, precision, observe)
    with np.errstate(all="ignore"):
        return interpreter.run(feeds)


def run_nodes(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    given: Mapping[ir.Value, Array],
    precision: Precision = Precision.FLOAT64,
) -> dict[ir.Value, Array]:
    """Return what some nodes of a model compute from the given values, and these values.

    ``nodes`` are in order, without bodies. Raises as ``run`` does.
    """
    return NodeRuns(model, nodes, precision).run(given)


class NodeRuns:
    """Runs of the same nodes on different values: kernels and attributes are looked up once."""

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        precision: Precision = Precision.FLOAT64,
    ) -> None:
        self._interpreter = _Interpreter(model, precision, None)
        self._opsets, self._nodes = model.graph.opset_imports, nodes

    def run(self, given: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
        """Return what the nodes compute, and the given values; raises as ``run`` does."""
        frame = _Frame(self._opsets, {}, values=dict(given))
        interpreter = self._interpreter
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)  # it is NaN
            for node in self._nodes:
                interpreter.run_node(node, frame)
        computed = {value: interpreter.read(item) for value, item in frame.values.items()}
        return {value: item for value, item in computed.items() if isinstance(item, np.ndarray)}


def check_supported(model: ir.Model) -> None:
    """Raise UnsupportedOperator at the first node with neither a kernel nor a function body."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        for node in body.all_nodes():
            if not is_supported(model, node):
                raise UnsupportedOperator.at(node, "the float64 interpreter has no kernel for it")


def is_supported(model: ir.Model, node: ir.Node) -> bool:
    """Whether the operator of a node has a kernel, or a body in the model."""
    known = node.op_identifier() in model.functions
    return known or find_kernel(_domain(node.domain), node.op_type) is not None


def moves_numbers(node: ir.Node) -> bool:
    """Whether an operator passes numbers on as they are stored, so that it rounds nothing."""
    found = find_kernel(_domain(node.domain), node.op_type)
    return found is not None and found.raw


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


@dataclass(slots=True)
class _Frame:
    """The values of one execution of a graph or function body."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, ir.Attr]
    parent: _Frame | None = None
    values: dict[ir.Value, Stored] = field(default_factory=dict)

    def find(self, value: ir.Value) -> Stored:
        frame: _Frame | None = self
        while frame is not None:
            if value in frame.values:
                return frame.values[value]
            frame = frame.parent
        if value.is_initializer() and value.const_value is not None:
            return value.const_value
        raise ModelError(f"value {value.name!r} is used before it is computed")


# Nodes in order, each with the values that it reads last.
_Schedule = list[tuple[ir.Node, list[ir.Value]]]


def _scheduled(body: ir.Graph | ir.Function) -> _Schedule:
    nodes = tuple(body)
    last: dict[ir.Value, int] = {}
    for position, node in enumerate(nodes):
        for value in (*node.outputs, *reads(node)):
            last[value] = position
    for value in body.outputs:
        last.pop(value, None)
    dead: list[list[ir.Value]] = [[] for _ in nodes]
    for value, position in last.items():
        dead[position].append(value)
    return list(zip(nodes, dead, strict=True))


@dataclass(frozen=True, slots=True)
class _Step:
    """A node's kernel and opset; and its call, if that depends on no caller and no body."""

    kernel: Kernel
    domain: str
    version: int
    call: Call | None


class _Interpreter:
    def __init__(self, model: ir.Model, precision: Precision, observe: Observer | None) -> None:
        self._model = model
        self._precision = precision
        self._observe = observe
        self._schedules: dict[ir.Graph | ir.Function, _Schedule] = {}
        self._steps: dict[ir.Node, _Step] = {}
        self._body_nodes = 0

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        graph = self._model.graph
        frame = _Frame(graph.opset_imports, {})
        for value in graph.inputs:
            if value.type is not None and not isinstance(value.type, ir.TensorType):
                raise UnsupportedOperator(f"input {value.name!r} is a sequence or an optional")
            if str(value.name) in feeds:
                given = np.asarray(feeds[str(value.name)])
                frame.values[value] = carried(given, self._precision)
            elif not value.is_initializer():
                raise ModelError(f"input {value.name!r} was given no value")
        self._execute(graph, frame)
        outputs = {}
        for value in graph.outputs:
            result = self.read(frame.find(value))
            if not isinstance(result, np.ndarray):
                raise UnsupportedOperator(f"output {value.name!r} is a sequence or an optional")
            outputs[str(value.name)] = result
        return outputs

    def _execute(self, body: ir.Graph | ir.Function, frame: _Frame) -> None:
        if body not in self._schedules:
            self._schedules[body] = _scheduled(body)
        for node, dead in self._schedules[body]:
            self.run_node(node, frame)
            for value in dead:
                frame.values.pop(value, None)

    def run_node(self, node: ir.Node, frame: _Frame) -> None:
        inputs = [None if value is None else frame.find(value) for value in node.inputs]
        functions = self._model.functions
        function = functions.get(node.op_identifier()) if functions else None
        results: Sequence[Stored]
        if function is not None:
            results = self._call_function(function, inputs, _resolved(node, frame))
        else:
            results = self._call_kernel(node, inputs, frame)
        for value, result in zip(node.outputs, results, strict=False):
            frame.values[value] = self._observed(value, result)

    def _observed(self, value: ir.Value, result: Stored) -> Stored:
        if self._observe is not None and isinstance(result, np.ndarray):
            return self._observe(value, result)
        return result

    def _call_function(
        self, function: ir.Function, inputs: Sequence[Stored], given: Mapping[str, ir.Attr]
    ) -> list[Stored]:
        defaults = {
            name: attribute
            for name, attribute in function.attributes.items()
            if attribute.value is not None
        }
        frame = _Frame(function.opset_imports, {**defaults, **given})
        padded = [*inputs, *(None for _ in function.inputs[len(inputs) :])]
        frame.values.update(zip(function.inputs, padded, strict=True))
        self._execute(function, frame)
        return [frame.find(value) for value in function.outputs]

    def _run_graph(self, graph: ir.Graph, inputs: Sequence[Datum], parent: _Frame) -> list[Datum]:
        self._body_nodes += 1 + len(graph)
        if self._body_nodes > _MOST_BODY_NODES:
            raise ResourceLimitError(
                f"loops run more than {_MOST_BODY_NODES} nodes (the last in graph "
                f"'{graph.name}'); give inputs for which they end sooner (--inputs), or leave out "
                "the check (--check 0)"
            )
        frame = _Frame(parent.opsets, parent.attributes, parent)
        frame.values.update(
            (value, self.read(datum)) for value, datum in zip(graph.inputs, inputs, strict=True)
        )
        self._execute(graph, frame)
        return [self.read(frame.find(value)) for value in graph.outputs]

    def _step(self, node: ir.Node, frame: _Frame) -> _Step:
        domain = _domain(node.domain)
        found = find_kernel(domain, node.op_type)
        if found is None:
            raise UnsupportedOperator.at(node, "the float64 interpreter has no kernel for it")
        version = frame.opsets.get(node.domain, frame.opsets.get(domain, 1))
        attributes = node.attributes
        bound = any(each.is_ref() or each.type in _GRAPHS for each in attributes.values())
        call = None if bound else Call(node, attributes, version, self._precision, _no_bodies)
        return _Step(found, domain, version, call)

    def _call_kernel(
        self, node: ir.Node, inputs: Sequence[Stored], frame: _Frame
    ) -> Sequence[Stored]:
        step = self._steps.get(node)
        if step is None:
            step = self._steps[node] = self._step(node, frame)
        found = step.kernel
        call = step.call or Call(
            node,
            _resolved(node, frame),
            step.version,
            self._precision,
            lambda graph, data: self._run_graph(graph, data, frame),
        )
        stored = [_in_memory(i) for i in inputs]
        arguments = stored if found.raw else self._arguments(stored, found)
        try:
            if found.broadcasts:
                shapes = [a.shape for a in arguments if isinstance(a, np.ndarray)]
                call.check_size(np.broadcast_shapes(*shapes))
            output = found.function(call, *arguments)
        except ModelError:
            raise
        except _KERNEL_ERRORS as error:
            raise ModelError(
                f"node {node_label(node)!r} ({operator(node)}) cannot be computed: {error}"
            ) from error
        results = list(output) if isinstance(output, tuple) else [output]
        if found.raw:
            first = (inputs[0], stored[0]) if inputs else (None, None)
            return [self._moved(r, *first) for r in results]
        if self._precision is Precision.FLOAT64:
            return [self.read(r) for r in results]
        return rounded(results, stored, found, (step.domain, node.op_type, step.version))

    def _arguments(self, stored: Sequence[Datum], found: Kernel) -> list[Datum]:
        narrow = found.narrow if self._precision is Precision.FLOAT64 else None
        return [i if n == narrow else self._widened(i) for n, i in enumerate(stored)]

    def _moved(self, result: Datum, source: Stored, array: Datum) -> Stored:
        """Return the result of a kernel that only moves numbers.

        A view of a stored tensor is stored.
        """
        if (
            isinstance(result, np.ndarray)
            and isinstance(array, np.ndarray)
            and source is not array
            and is_wide_float(result.dtype)
            and result.size <= array.size
            and np.may_share_memory(result, array)
        ):
            return ir.Tensor(result)
        return self.read(result)

    def read(self, stored: Stored) -> Datum:
        """Return the datum in the type in which this precision represents it."""
        datum = _in_memory(stored)
        if isinstance(datum, list):
            return [carried(np.asarray(a), self._precision) for a in datum]
        return None if datum is None else carried(datum, self._precision)

    def _widened(self, datum: Datum) -> Datum:
        """Return what a kernel computes with: float64, or at least float32 under NATIVE."""
        if not isinstance(datum, np.ndarray):
            return datum
        if self._precision is Precision.NATIVE and is_half(datum.dtype):
            return datum.astype(np.float32)
        return carried(datum, self._precision)


def _no_bodies(graph: ir.Graph, _inputs: Sequence[Datum]) -> list[Datum]:
    raise InvariantError(f"graph '{graph.name}' belongs to no node that is run")


def _in_memory(stored: Stored) -> Datum:
    # Not isinstance of ir.TensorProtocol: a protocol tries all its members, for every input.
    if stored is None or isinstance(stored, (np.ndarray, list)):
        return stored
    return np.asarray(stored if isinstance(stored, np.generic) else stored.numpy())


def _resolved(node: ir.Node, frame: _Frame) -> Mapping[str, ir.Attr]:
    """Return the node's attributes with references replaced by what the caller passed."""
    if not any(attribute.is_ref() for attribute in node.attributes.values()):
        return node.attributes
    resolved: dict[str, ir.Attr] = {}
    for name, attribute in node.attributes.items():
        if not attribute.is_ref():
            resolved[name] = attribute
        elif str(attribute.ref_attr_name) in frame.attributes:
            given = frame.attributes[str(attribute.ref_attr_name)]
            resolved[name] = ir.Attr(name, given.type, given.value)
    return resolved
