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
from onnxfold.norms.site import NormSite
from onnxfold.planning.plan import Insertion, Plan, ReaderRef, WeightCentring
from onnxfold.rewrite.centre import centred_tensor

__all__ = ["Applied", "Fusion", "Lowered", "Lowering", "apply_fusions", "apply_plan", "stand_in"]


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
    for weight in plan.weights:
        _centre_weight(view, values, weight)
    fed: dict[str, ir.Value] = {}
    for insertion in plan.insertions:
        copy = _insert_centring(view.model, values, insertion, lowering)
        fed.update(dict.fromkeys(insertion.norms, copy))
    folded = {fold.output for fold in plan.folds}
    for site in sites:
        ref = view.ref(site.output)
        if ref in folded:
            lowered = lowering.rms_norm(site, fed.get(ref, site.input))
            stand_in(view.model, lowered, _last(site), site.nodes)
        else:
            cheaper = lowering.layer_norm(site)
            if cheaper is not None:
                stand_in(view.model, cheaper, _last(site), site.nodes)
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

    def lower(self, renamed: Mapping[ir.Value, ir.Value]) -> Lowered:
        """Return the call, given what stands for values that are no more."""


def apply_fusions(model: ir.Model, fusions: Iterable[Fusion]) -> None:
    """Replace the nodes of every fusion, in graph order."""
    renamed: dict[ir.Value, ir.Value] = {}
    for fusion in fusions:
        lowered = fusion.lower(renamed)
        stand_in(model, lowered, fusion.additions[-1], (*fusion.additions, fusion.norm))
        renamed.update(lowered.stands_for)


def _last(site: NormSite) -> ir.Node:
    node = site.output.producer()
    if node is None:
        raise InvariantError(f"norm '{site.name}' is computed by no node")
    return node


def _centre_weight(view: GraphView, values: Mapping[str, ir.Value], weight: WeightCentring) -> None:
    value = values[weight.value]
    tensor = view.tensor(value)
    if tensor is None:
        raise InvariantError(f"the plan centres '{weight.value}', which is no weight")
    if weight.readers:
        _split(values, value, tensor, weight)
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
) -> None:
    node = value.producer()
    graph = node.graph if node is not None else value.graph
    if not isinstance(graph, ir.Graph):
        raise InvariantError(f"'{weight.value}' is in no graph")
    name = _unused(values, f"{value.name}.centred")
    copy = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=centred_tensor(tensor, weight.fiber, name),
    )
    graph.register_initializer(copy)
    _redirect(values, weight.readers, copy)


def _unused(values: Mapping[str, ir.Value], name: str) -> str:
    taken = {value.name for value in values.values()}
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}.{number}", number + 1
    return candidate


def _redirect(values: Mapping[str, ir.Value], readers: Iterable[ReaderRef], new: ir.Value) -> None:
    for reader in readers:
        node = values[reader.node].producer()
        if node is None:
            raise InvariantError(f"the plan names '{reader.node}', which no node computes")
        node.replace_input_with(reader.index, new)


def _insert_centring(
    model: ir.Model, values: Mapping[str, ir.Value], insertion: Insertion, lowering: Lowering
) -> ir.Value:
    value = values[insertion.value]
    lowered = lowering.centring(value, insertion.fiber)
    _add(model, value, lowered)
    copy = lowered.stands_for[0][1]
    _redirect(values, insertion.readers, copy)
    return copy


def _add(model: ir.Model, after: ir.Value, lowered: Lowered) -> None:
    """Insert nodes behind the producer of a value, or first where the value is an input."""
    node = after.producer()
    graph = node.graph if node is not None else after.graph
    if not isinstance(graph, ir.Graph):
        raise InvariantError(f"'{after.name}' is in no graph")
    if node is not None:
        graph.insert_after(node, lowered.nodes)
    elif len(graph) > 0:
        graph.insert_before(graph[0], lowered.nodes)
    _register(model, graph, lowered)


def _register(model: ir.Model, graph: ir.Graph, lowered: Lowered) -> None:
    for initializer in lowered.initializers:
        graph.register_initializer(initializer)
    for function in lowered.functions:
        model.functions.setdefault(function.identifier(), function)
        model.graph.opset_imports.setdefault(function.domain, 1)


def stand_in(model: ir.Model, lowered: Lowered, before: ir.Node, old: Iterable[ir.Node]) -> None:
    """Insert new nodes before a node; they take over the names of what they stand for.

    Those of the ``old`` nodes that nothing reads any more are removed, with their weights.
    """
    graph = before.graph
    if not isinstance(graph, ir.Graph):
        raise InvariantError(f"node '{before.name}' is in no graph")
    graph.insert_before(before, lowered.nodes)
    _register(model, graph, lowered)
    for value, new in lowered.stands_for:
        if new.producer() in lowered.nodes:
            _inherit(value, new)
        value.replace_all_uses_with(new, replace_graph_outputs=True)
    _sweep(old)


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
