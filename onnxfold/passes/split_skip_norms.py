"""Operators that fuse additions with a norm, each split into its nodes.

Sources: ONNX Runtime's ContribOperators.md and CPU kernels for com.microsoft; the signatures of
domain onnxfold. A rounding of the sum that a fused kernel omits is the only difference.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import node_label
from onnxfold.graph.edit import replace_node
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.norms.site import EMBEDDED
from onnxfold.operators.functions import DOMAIN, SIGNATURES, Output, Signature, op_name

SPLIT = "onnxfold.split"  # the same on an RMS norm of ONNX Runtime that the model lacks
_SKIP_EPSILON = 1e-12
_LAST_RANK = 4  # channels last: N, H, W, C
# The opsets from which on Slice reads its bounds, and ReduceSum its axes, as inputs.
_SLICES_BY_INPUTS, _SUMS_BY_INPUTS = 10, 13


class Builder:
    """Creates nodes and values with names that the model does not use yet."""

    def __init__(self, model: ir.Model):
        self._model = model
        self.opset = model.graph.opset_imports.get("", 1)

    @cached_property
    def _used(self) -> set[str]:
        used: set[str] = set()
        for graph in all_graphs(self._model):
            used.update(value.name or "" for value in graph.inputs)
            used.update(graph.initializers)
            for node in graph:
                used.add(node.name or "")
                used.update(value.name or "" for value in node.outputs)
        return used

    def at(self, node: ir.Node) -> "SkipNormCall":
        """Start the replacement of a node."""
        return SkipNormCall(self, node)

    def unique(self, name: str) -> str:
        """Return the name, with a number where it is taken."""
        candidate, number = name, 1
        while candidate in self._used:
            number += 1
            candidate = f"{name}_{number}"
        self._used.add(candidate)
        return candidate


class SkipNormCall:
    """A node that is being replaced: its operands, the new nodes so far, and their results."""

    def __init__(self, builder: Builder, node: ir.Node):
        self.builder = builder
        self.node = node
        self.nodes: list[ir.Node] = []
        self.results: dict[int, ir.Value] = {}
        self._stem = node.name or node.outputs[0].name or node.op_type

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.builder.opset

    def operand(self, index: int) -> ir.Value | None:
        """Return an optional input."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int) -> ir.Value:
        """Return an input that the operator requires; raises ModelError if it is missing."""
        value = self.operand(index)
        if value is None:
            label = node_label(self.node)
            raise ModelError(f"node '{label}' ({self.node.op_type}) has no input {index}")
        return value

    def wants(self, index: int) -> bool:
        """Whether something reads an optional output."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.uses()) or value.is_graph_output()

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        domain: str = "",
        outputs: int = 1,
        **attributes: int | float | Sequence[int] | ir.TensorProtocol,
    ) -> tuple[ir.Value, ...]:
        """Append a node and return its outputs."""
        node = ir.node(
            op_type,
            inputs,
            attributes,
            domain=domain,
            num_outputs=outputs,
            name=self.builder.unique(f"{self._stem}/{op_type}"),
            metadata_props=dict(self.node.metadata_props),
        )
        for index, value in enumerate(node.outputs):
            value.name = self.builder.unique(f"{self._stem}/{op_type}_output_{index}")
        self.nodes.append(node)
        return tuple(node.outputs)

    def add(self, *values: ir.Value | None) -> ir.Value:
        """Return the sum of the present operands, from the left."""
        present = [value for value in values if value is not None]
        total = present[0]
        for value in present[1:]:
            (total,) = self.emit("Add", (total, value))
        return total

    def integers(self, *numbers: int) -> ir.Value:
        """Return a constant vector."""
        tensor = ir.tensor(np.asarray(numbers, dtype=np.int64))
        return self.emit("Constant", (), value=tensor)[0]

    def finish(self, results: dict[int, ir.Value]) -> None:
        """Replace the old node by the new ones; ``results`` by output index."""
        self.results = results
        replace_node(self.node, self.nodes, results)


def _layer_norm(
    call: SkipNormCall, total: ir.Value, gamma: ir.Value, beta: ir.Value | None, outputs: int = 1
) -> tuple[ir.Value, ...]:
    inputs = (total, gamma) if beta is None else (total, gamma, beta)
    epsilon = call.node.attributes.get_float("epsilon", _SKIP_EPSILON)
    return call.emit("LayerNormalization", inputs, outputs=outputs, axis=-1, epsilon=epsilon)


def _statistics(call: SkipNormCall) -> int:
    """Return how many outputs the norm needs for the statistics that something reads."""
    return 3 if call.wants(2) else 2 if call.wants(1) else 1


def is_split(node: ir.Node) -> bool:
    """Whether a node is an RMS norm that a skip norm was split into."""
    return bool(node.meta.get(SPLIT))


def _results(
    call: SkipNormCall, normed: tuple[ir.Value, ...], total: ir.Value
) -> dict[int, ir.Value]:
    found = {index: value for index, value in enumerate(normed) if index == 0 or call.wants(index)}
    return {**found, 3: total} if call.wants(3) else found


def _skip_layer_norm(call: SkipNormCall) -> str | None:
    """Split SkipLayerNormalization(input, skip, gamma[, beta, bias]) -> y, mean, inv_std, sum."""
    total = call.add(call.required(0), call.operand(4), call.required(1))
    normed = _layer_norm(call, total, call.required(2), call.operand(3), _statistics(call))
    call.finish(_results(call, normed, total))
    return None


def _skip_rms_norm(call: SkipNormCall) -> str | None:
    """Split SkipSimplifiedLayerNormalization(input, skip, gamma[, bias]), outputs as above."""
    if call.wants(1):
        return "something reads its mean"
    if call.wants(2):
        return "something reads its inverse standard deviation"
    total = call.add(call.required(0), call.operand(3), call.required(1))
    epsilon = call.node.attributes.get_float("epsilon", _SKIP_EPSILON)
    normed = call.emit(
        "SimplifiedLayerNormalization",
        (total, call.required(2)),
        axis=-1,
        epsilon=epsilon,
        stash_type=ir.DataType.FLOAT.value,
    )
    call.nodes[-1].meta[SPLIT] = True
    call.finish(_results(call, normed, total))
    return None


def _embed_layer_norm(call: SkipNormCall) -> str | None:
    """Split EmbedLayerNormalization(ids, segment_ids, word, position, segment, gamma, beta, ..).

    The mask index is the number of ones in each row of the mask.
    """
    ids, mask, position_ids = call.required(0), call.operand(7), call.operand(8)
    if call.wants(1) and mask is None:
        return "something reads its mask index, and there is no mask"
    if call.opset < _SLICES_BY_INPUTS:
        return f"its parts need opset {_SLICES_BY_INPUTS}"
    words = call.emit("Gather", (call.required(2), ids), axis=0)[0]
    position = call.required(3)
    if position_ids is not None:
        places = call.emit("Gather", (position, position_ids), axis=0)[0]
    else:
        shape = call.emit("Shape", (ids,))[0]
        zero, one, two = call.integers(0), call.integers(1), call.integers(2)
        length = call.emit("Slice", (shape, one, two, zero))[0]
        places = call.emit("Slice", (position, zero, length, zero))[0]
    segment_ids, segment = call.operand(1), call.operand(4)
    segments = None
    if segment_ids is not None and segment is not None:
        segments = call.emit("Gather", (segment, segment_ids), axis=0)[0]
    total = call.add(words, places, segments)
    results = {0: _layer_norm(call, total, call.required(5), call.operand(6))[0]}
    call.nodes[-1].meta[EMBEDDED] = True
    if call.wants(1) and mask is not None:
        unit = call.emit("Constant", (), value=ir.tensor(np.asarray(1, dtype=np.int32)))[0]
        ones = call.emit("Equal", (mask, unit))[0]
        counted = call.emit("Cast", (ones,), to=ir.DataType.INT32.value)[0]
        results[1] = _row_sums(call, counted)
    if call.wants(2):
        results[2] = total
    call.finish(results)
    return None


def _row_sums(call: SkipNormCall, rows: ir.Value) -> ir.Value:
    if call.opset < _SUMS_BY_INPUTS:
        return call.emit("ReduceSum", (rows,), axes=[1], keepdims=0)[0]
    return call.emit("ReduceSum", (rows, call.integers(1)), keepdims=0)[0]


def _skip_group_norm(call: SkipNormCall) -> str | None:
    """Split SkipGroupNorm(X, gamma, beta, skip[, bias]) -> Y, S with channels last."""
    skip = call.required(3)
    if skip.shape is None or len(skip.shape) != _LAST_RANK:
        return "the rank of its skip input is not 4"
    if call.node.attributes.get_int("channels_last", 1) != 1:
        return "its channels are not last"
    total = call.add(call.required(0), call.operand(4), skip)
    kept = {
        key: call.node.attributes[key].value
        for key in ("activation", "channels_last", "epsilon", "groups")
        if key in call.node.attributes
    }
    normed = call.emit(
        "GroupNorm", (total, call.required(1), call.required(2)), domain="com.microsoft", **kept
    )
    call.finish({0: normed[0], 1: total} if call.wants(1) else {0: normed[0]})
    return None


def _own(call: SkipNormCall) -> str | None:
    """Split onnxfold's Add[Bias]Norm[WithSum](X, residual[, linear_bias][, scale[, bias]])."""
    fused = SIGNATURES[call.node.op_type]
    name = op_name(statistics=fused.statistics, affine=fused.affine)
    bias = call.required(2) if fused.linear_bias else None
    total = call.add(call.required(0), bias, call.required(1))
    attributes = {key: attribute.value for key, attribute in call.node.attributes.items()}
    affine = call.node.inputs[3 if fused.linear_bias else 2 :]
    normed = call.emit(name, (total, *affine), domain=DOMAIN, **attributes)
    normed[0].type, normed[0].shape = call.node.outputs[0].type, call.node.outputs[0].shape
    call.finish({0: normed[0], 1: total} if fused.with_sum else {0: normed[0]})
    return None


def _splits(row: Signature) -> bool:
    """Whether an operator of ours is an addition and a norm that has its own operator."""
    return row.residual and row.output is Output.NORM and not row.row_scale


Splitter = Callable[[SkipNormCall], str | None]

SPLITTERS: MappingProxyType[tuple[str, str], Splitter] = MappingProxyType(
    {
        ("com.microsoft", "EmbedLayerNormalization"): _embed_layer_norm,
        ("com.microsoft", "SkipGroupNorm"): _skip_group_norm,
        ("com.microsoft", "SkipLayerNormalization"): _skip_layer_norm,
        ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_rms_norm,
        **{(DOMAIN, name): _own for name, row in SIGNATURES.items() if _splits(row)},
    }
)


def residual_calls(model: ir.Model) -> int:
    """Count the calls of ours that are split into an addition and a norm."""
    calls = (node.op_type for node in all_nodes(model) if node.domain == DOMAIN)
    return sum((DOMAIN, name) in SPLITTERS for name in calls)
