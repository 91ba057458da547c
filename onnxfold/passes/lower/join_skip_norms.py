"""Skip norms that were split for the analysis become one operator again if the norm stays.

The fusions of an optimized model are kept, except those that a fold replaced. The original is split
again, and the result is searched for the parts: the same nodes between the same values, or with
replaced values, such as a moved gamma. A part that is stored now, such as positions of a fixed
length, must have the numbers that the split computes.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from sys import maxsize

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import ConstantFolder, constant_tensor
from onnxfold.graph.edit import add_constant, inherit, insert_before, redirect, sweep
from onnxfold.graph.equality import same_tensor
from onnxfold.graph.traversal import all_graphs, all_nodes, graph_values
from onnxfold.operators.families.cut_parts import cut_of
from onnxfold.operators.new_nodes import weight_value
from onnxfold.options import Device
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.residual import CONTRIB_DOMAIN, ready
from onnxfold.passes.split_skip_norms import SPLITTERS, Builder
from onnxfold.shapes import fill_types, infer
from onnxfold.targets.installed import onnxruntime_version
from onnxfold.targets.sums import SLOW_SINCE

_EMBEDDING = (CONTRIB_DOMAIN, "EmbedLayerNormalization")


class _Copy:
    """The original in parts, and its constants; types are inferred when one is asked for."""

    def __init__(self, model: ir.Model):
        self.model = model

    @cached_property
    def _info(self) -> ModelInfo:
        return infer(self.model)

    @cached_property
    def _folder(self) -> ConstantFolder:
        return ConstantFolder(self._info.opset, self._info.shape, maxsize)

    def constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return what is stored, or computed from what is, of any size."""
        stored = constant_tensor(value)
        if stored is not None:
            return stored
        array, cut = self._folder.array(value), cut_of(self._info, value)
        if array is None and cut is not None:  # of a length that only the shapes tell
            whole = self.constant(cut.source)
            array = None if whole is None else whole.numpy()[cut.index]
        return None if array is None else ir.Tensor(array, name=value.name)

    def has(self, value: ir.Value, stored: ir.Value) -> bool:
        """Whether a constant of the result is this one of the original."""
        new = constant_tensor(stored)
        old = None if new is None else self.constant(value)
        return new is not None and old is not None and same_tensor(new, old)


@dataclass(slots=True)
class _Split:
    """A skip norm of the original, and the nodes into which it is split.

    ``nodes`` of the result are these parts, and ``values`` the ones that they read.
    """

    copy: _Copy
    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[str, ...]
    parts: tuple[ir.Node, ...]
    results: Mapping[int, ir.Value]
    nodes: dict[ir.Node, ir.Node] = field(default_factory=dict)
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)


def join_skip_norms(model: ir.Model, original: ir.Model, settings: Settings) -> None:
    """Join the parts in ``model`` of the skip norms of ``original``.

    On CPUs, ONNX Runtime from 1.30 on is slower with a skip norm than with its parts, but not with
    an embedding with its norm; our kernels include the sums.
    """
    kinds = _kinds(settings)
    splits = list(_splits(original, kinds)) if kinds else []
    if not splits:
        return
    model.graph.opset_imports.setdefault(CONTRIB_DOMAIN, 1)
    values = {value.name: value for graph in all_graphs(model) for value in graph_values(graph)}
    for split in splits:
        found = {index: values.get(split.outputs[index]) for index in split.results}
        if all(_matches(split, part, found[i]) for i, part in split.results.items()):
            _join(split, found, values)


def _kinds(settings: Settings) -> Collection[tuple[str, str]]:
    if settings.target.traits.calls:
        return ()
    on_cpu = settings.target.traits.contrib and settings.device is Device.CPU
    if on_cpu and onnxruntime_version() >= SLOW_SINCE:
        return (_EMBEDDING,)
    return tuple(kind for kind in SPLITTERS if kind[0] == CONTRIB_DOMAIN)


def _splits(original: ir.Model, kinds: Collection[tuple[str, str]]) -> Iterator[_Split]:
    if not any((node.domain, node.op_type) in kinds for node in all_nodes(original)):
        return
    copy = original.clone()
    if any(node.op_type == "SkipGroupNorm" for node in all_nodes(copy)):
        fill_types(copy)  # which it is split by
    builder, known = Builder(copy), _Copy(copy)
    for node in list(all_nodes(copy)):
        if (node.domain, node.op_type) not in SPLITTERS:
            continue
        inputs, outputs = tuple(node.inputs), tuple(value.name or "" for value in node.outputs)
        call = builder.at(node)
        left = SPLITTERS[node.domain, node.op_type](call)
        if left is None and (node.domain, node.op_type) in kinds:
            yield _Split(known, node, inputs, outputs, tuple(call.nodes), call.results)


def _matches(split: _Split, part: ir.Value | None, value: ir.Value | None) -> bool:
    """Whether a value is computed in the same way as a part of the split."""
    if part is None or value is None:
        return part is value
    expected, node = part.producer(), value.producer()
    if expected is None or expected not in split.parts:
        return split.values.setdefault(part, value) is value
    if node is None:
        return split.copy.has(part, value)
    if split.nodes.setdefault(expected, node) is not node:
        return False
    same = (
        node.op_identifier() == expected.op_identifier()
        and len(node.inputs) == len(expected.inputs)
        and part.index() == value.index()
        and _settings_of(node) == _settings_of(expected)
    )
    return same and all(
        _matches(split, inner, operand)
        for inner, operand in zip(expected.inputs, node.inputs, strict=True)
    )


def _operand(
    split: _Split,
    value: ir.Value | None,
    values: Mapping[str | None, ir.Value],
) -> ir.Value | None:
    """Return the counterpart of a skip norm's operand in the result; None if it is gone.

    A constant comes back that only a part has read which is stored now.
    """
    if value is None:
        return None
    if value in split.values:
        return split.values[value]
    named, tensor = values.get(value.name), split.copy.constant(value)
    if tensor is None or (named is not None and split.copy.has(value, named)):
        return named
    return weight_value(value.name or "", tensor.numpy()) if named is None else None


def _settings_of(node: ir.Node) -> dict[str, object]:
    return {
        name: attribute.value.numpy().tolist()
        if attribute.type is ir.AttributeType.TENSOR
        else attribute.value
        for name, attribute in node.attributes.items()
    }


def _join(
    split: _Split,
    found: Mapping[int, ir.Value | None],
    values: Mapping[str | None, ir.Value],
) -> None:
    """Replace the parts by the skip norm; a part with another reader is kept."""
    results = {index: value for index, value in found.items() if value is not None}
    nodes = [split.nodes[part] for part in split.parts if part in split.nodes]
    made = {value.producer() for value in results.values()}
    place = next(node for node in nodes if node in made)
    inputs = [_operand(split, value, values) for value in split.inputs]
    gone = any(
        new is None and old is not None for old, new in zip(split.inputs, inputs, strict=True)
    )
    if gone or not ready(inputs, place) or not isinstance(place.graph, ir.Graph):
        return
    for value in inputs:
        if value is not None and value.const_value is not None and value.name not in values:
            add_constant(place.graph, value)
    node = ir.node(
        split.node.op_type,
        inputs,
        dict(split.node.attributes),
        domain=CONTRIB_DOMAIN,
        num_outputs=len(split.outputs),
        name=split.node.name,
        metadata_props=dict(split.node.metadata_props),
    )
    for name, value in zip(split.outputs, node.outputs, strict=True):
        value.name = name
    insert_before(place, node)
    for index, value in results.items():
        inherit(value, node.outputs[index])
        redirect(value, node.outputs[index], outputs=True)
    sweep(nodes)
