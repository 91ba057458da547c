"""The only mutator of graphs: carries out a plan, in place, on the working copy of a model.

Requires: the view that the plan was made on, whose model has not changed since.  Ensures: every
value that others can see (inputs, outputs) keeps its name and type; nodes and weights that nothing
reads any more are gone; nothing else has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import Fiber, GraphView
from onnxfold.graph.shapes import graph_values
from onnxfold.norms.site import NormSite
from onnxfold.planning.plan import Insertion, Plan, ReaderRef, WeightCentring
from onnxfold.rewrite.centre import centred_tensor

__all__ = [
    "Applied",
    "Fusion",
    "Lowered",
    "Lowering",
    "add_function",
    "apply_fusions",
    "apply_plan",
]


@dataclass(frozen=True, slots=True)
class Lowered:
    """New nodes, in order, and which value each of their results stands in for."""

    nodes: tuple[ir.Node, ...]
    stands_for: tuple[tuple[ir.Value, ir.Value], ...]  # (old, new)
    initializers: tuple[ir.Value, ...] = ()
    functions: tuple[ir.Function, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Applied:
    """The rewritten model, and whether anything in it differs from before."""

    model: ir.Model
    changed: bool


class Lowering(Protocol):
    """Which nodes compute what; returns them, changes nothing."""

    def rms_norm(self, site: NormSite, x: ir.Value) -> Lowered:
        """Return the RMSNorm that a folded LayerNorm becomes, reading ``x``."""

    def layer_norm(self, site: NormSite) -> Lowered | None:
        """Return a cheaper spelling of a norm that stays, or None."""

    def centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        """Return ``value`` minus its mean along ``fiber``."""


def apply_plan(
    view: GraphView, plan: Plan, sites: Iterable[NormSite], lowering: Lowering
) -> Applied:
    """Carry out ``plan`` on ``view.model``, in place."""
    changed = not plan.empty
    values = view.by_ref()
    editor = _Editor(view.model)
    for weight in plan.weights:
        _centre_weight(view, values, weight, editor)
    fed: dict[str, ir.Value] = {}
    for insertion in plan.insertions:
        copy = _insert_centring(editor, values, insertion, lowering)
        fed.update(dict.fromkeys(insertion.norms, copy))
    folded = {fold.output for fold in plan.folds}
    for site in sites:
        ref = view.ref(site.output)
        if ref in folded:
            lowered = lowering.rms_norm(site, fed.get(ref, site.input))
            editor.stand_in(lowered, _last(site), site.nodes)
        else:
            cheaper = lowering.layer_norm(site)
            if cheaper is not None:
                editor.stand_in(cheaper, _last(site), site.nodes)
                changed = True
    return Applied(view.model, changed)


class Fusion(Protocol):
    """Nodes that one call replaces; the call is made when those before it are in place."""

    @property
    def norm(self) -> ir.Node:
        """The last node that is replaced."""

    @property
    def additions(self) -> tuple[ir.Node, ...]:
        """The nodes before it that are replaced too, in graph order."""

    def lower(self) -> Lowered:
        """Return the call that replaces them."""


def apply_fusions(model: ir.Model, fusions: Iterable[Fusion]) -> None:
    """Replace the nodes of every fusion, in graph order."""
    editor = _Editor(model)
    for fusion in fusions:
        old = (*fusion.additions, fusion.norm)
        editor.stand_in(fusion.lower(), fusion.additions[-1], old)


def _last(site: NormSite) -> ir.Node:
    node = site.output.producer()
    if node is None:
        raise InvariantError(f"norm '{site.name}' is computed by no node")
    return node


def _centre_weight(
    view: GraphView, values: Mapping[str, ir.Value], weight: WeightCentring, editor: _Editor
) -> None:
    value = values[weight.value]
    tensor = view.tensor(value)
    if tensor is None:
        raise InvariantError(f"the plan centres '{weight.value}', which is no weight")
    if weight.readers:
        _split(values, value, tensor, weight, editor)
        return
    centred = centred_tensor(tensor, weight.fiber, tensor.name or value.name or "")
    if value.is_initializer():
        value.const_value = centred
        return
    node = value.producer()
    if node is None:
        raise InvariantError(f"the plan centres '{weight.value}', which nothing holds")
    node.attributes.clear()
    node.attributes.add(ir.AttrTensor("value", centred))


def _split(
    values: Mapping[str, ir.Value],
    value: ir.Value,
    tensor: ir.TensorProtocol,
    weight: WeightCentring,
    editor: _Editor,
) -> None:
    node = value.producer()
    graph = node.graph if node is not None else value.graph
    if not isinstance(graph, ir.Graph):
        raise InvariantError(f"'{weight.value}' is in no graph")
    name = editor.unused(f"{value.name}.centred")
    copy = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=centred_tensor(tensor, weight.fiber, name),
    )
    graph.register_initializer(copy)
    _redirect(values, weight.readers, copy)


def _redirect(values: Mapping[str, ir.Value], readers: Iterable[ReaderRef], new: ir.Value) -> None:
    for reader in readers:
        node = values[reader.node].producer()
        if node is None:
            raise InvariantError(f"the plan names '{reader.node}', which no node computes")
        node.replace_input_with(reader.index, new)


def _insert_centring(
    editor: _Editor, values: Mapping[str, ir.Value], insertion: Insertion, lowering: Lowering
) -> ir.Value:
    value = values[insertion.value]
    lowered = lowering.centring(value, insertion.fiber)
    editor.insert_behind(value, lowered)
    copy = lowered.stands_for[0][1]
    _redirect(values, insertion.readers, copy)
    return copy


def add_function(model: ir.Model, body: ir.Function) -> None:
    """Give the model a function, unless it has one of that name that is right for more types.

    The body for a half type converts, hence is right for FLOAT too and has more nodes.
    """
    present = model.functions.get(body.identifier())
    if present is None or len(present) < len(body):
        model.functions[body.identifier()] = body
    model.graph.opset_imports.setdefault(body.domain, 1)


class _Editor:
    """Inserts nodes into one model; remembers which names are taken and what replaced what."""

    def __init__(self, model: ir.Model):
        self._model = model
        self._taken = {value.name for graph in model.graphs() for value in graph_values(graph)}
        self._replaced: dict[ir.Value, ir.Value] = {}

    def unused(self, name: str) -> str:
        """Return the name, with a number where it is taken, and take it."""
        candidate, number = name, 2
        while candidate in self._taken:
            candidate, number = f"{name}.{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def insert_behind(self, value: ir.Value, lowered: Lowered) -> None:
        """Insert nodes behind the producer of a value, or first where the value is an input."""
        node = value.producer()
        graph = node.graph if node is not None else value.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"'{value.name}' is in no graph")
        self._prepare(graph, lowered, ())
        if node is not None:
            graph.insert_after(node, lowered.nodes)
        elif len(graph) > 0:
            graph.insert_before(graph[0], lowered.nodes)

    def stand_in(self, lowered: Lowered, before: ir.Node, old: Iterable[ir.Node]) -> None:
        """Insert new nodes before a node; they take over the names of what they stand for.

        Those of the ``old`` nodes that nothing reads any more are removed, with their weights.
        """
        graph = before.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"node '{before.name}' is in no graph")
        self._prepare(graph, lowered, tuple(new for _, new in lowered.stands_for))
        graph.insert_before(before, lowered.nodes)
        for value, new in lowered.stands_for:
            heir = self._replaced.get(new, new)
            if heir.producer() in lowered.nodes:
                _inherit(value, heir)
            value.replace_all_uses_with(heir, replace_graph_outputs=True)
            self._replaced[value] = heir
        _sweep(old)

    def _prepare(self, graph: ir.Graph, lowered: Lowered, heirs: tuple[ir.Value, ...]) -> None:
        """Name what is new, read what replaced an operand, register weights and functions."""
        for value in lowered.initializers:
            value.name = self.unused(value.name or "weight")
            if value.const_value is not None:
                value.const_value.name = value.name
            graph.register_initializer(value)
        for node in lowered.nodes:
            for index, operand in enumerate(node.inputs):
                if operand in self._replaced:
                    node.replace_input_with(index, self._replaced[operand])
            for output in node.outputs:
                if output not in heirs:
                    output.name = self.unused(output.name or node.op_type)
        for function in lowered.functions:
            add_function(self._model, function)


def _inherit(old: ir.Value, new: ir.Value) -> None:
    new.shape, new.type = old.shape, old.type
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    name, old.name = old.name, f"{old.name}.replaced"
    new.name = name


def _sweep(nodes: Iterable[ir.Node]) -> None:
    """Remove those of ``nodes`` that nothing reads, and weights that only they read."""
    for node in reversed(list(nodes)):
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        inputs = [operand for operand in node.inputs if operand is not None]
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            continue
        graph.remove(node, safe=True)
        _sweep_inputs(inputs)


def _sweep_inputs(values: Iterable[ir.Value]) -> None:
    for value in values:
        if value.uses() or value.is_graph_output():
            continue
        producer, graph = value.producer(), value.graph
        if producer is not None and producer.op_type == "Constant":
            _sweep([producer])
        elif value.is_initializer() and not value.is_graph_input() and graph is not None:
            graph.initializers.pop(value.name or "")
