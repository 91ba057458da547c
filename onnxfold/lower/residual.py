"""Residual fusion: Add + norm, or Add(bias) + Add + norm, as one call with one pass of memory.

    Y, Sum = norm(X [+ linear_bias] + residual), Sum only where something else reads it

Only additions of tensors of one shape are fused (a broadcast one is not a residual), in every
operand order, for folded and unfolded norms, before and after the block.  Returns edits, mutates
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import GraphView
from onnxfold.lower.functions import DOMAIN, SIGNATURES, Signature, call, function, op_name
from onnxfold.rewrite.apply import Lowered

__all__ = ["ResidualFusion", "residual_fusions"]


@dataclass(frozen=True, slots=True)
class ResidualFusion:
    """A norm, the additions that it swallows (in graph order), and the call that replaces them.

    ``operands`` are X, residual and, with two additions, the linear bias, as the model has them
    before any fusion.
    """

    norm: ir.Node
    additions: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]
    name: str
    body: ir.Function

    def lower(self) -> Lowered:
        """Return the call."""
        inputs = [*self.operands, *self.norm.inputs[1:]]
        axes = self.norm.attributes.get_ints("axes", (-1,))
        node = call(
            self.name,
            [value for value in inputs if value is not None],
            axes=len(axes),
            epsilon=self.norm.attributes.get_float("epsilon", 0.0),
        )
        node.name = self.norm.name
        stands_for = [(self.norm.outputs[0], node.outputs[0])]
        if SIGNATURES[self.name].with_sum:
            stands_for.append((self.additions[-1].outputs[0], node.outputs[1]))
        return Lowered((node,), tuple(stands_for), (), (self.body,))


def residual_fusions(view: GraphView) -> tuple[ResidualFusion, ...]:
    """Return every fusion in a lowered model; no addition takes part in two."""
    taken: set[ir.Node] = set()
    bodies = _Bodies(view.opset)
    fusions = []
    for node in view.nodes():
        signature = SIGNATURES.get(node.op_type) if node.domain == DOMAIN else None
        if signature is None or node.overload or not _plain(signature):
            continue
        fusion = _fusion(view, node, signature, taken, bodies)
        if fusion is not None:
            taken.update(fusion.additions)
            fusions.append(fusion)
    return tuple(fusions)


def _plain(signature: Signature) -> bool:
    """Whether the op has a twin with a residual and does not add one itself."""
    return not signature.residual and f"Add{signature.name}" in SIGNATURES


def _fusion(
    view: GraphView, norm: ir.Node, signature: Signature, taken: set[ir.Node], bodies: _Bodies
) -> ResidualFusion | None:
    total = norm.inputs[0]
    addition = None if total is None else total.producer()
    if total is None or addition is None or addition in taken or not _is_add(addition, norm):
        return None
    dtype = norm.outputs[0].dtype
    if dtype is None or not _same_shape(view, addition) or not _ready(norm, addition):
        return None
    additions, operands = _operands(view, norm, addition, taken)
    name = op_name(
        statistics=signature.statistics,
        residual=True,
        linear_bias=len(additions) > 1,
        affine=signature.affine,
        with_sum=len(total.uses()) > 1 or total.is_graph_output(),
    )
    return ResidualFusion(norm, additions, operands, name, bodies.of(name, dtype))


class _Bodies:
    """Each function body, made once."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._made: dict[tuple[str, ir.DataType], ir.Function] = {}

    def of(self, name: str, dtype: ir.DataType) -> ir.Function:
        if (name, dtype) not in self._made:
            self._made[name, dtype] = function(name, self._opset, dtype)
        return self._made[name, dtype]


def _operands(
    view: GraphView, norm: ir.Node, addition: ir.Node, taken: set[ir.Node]
) -> tuple[tuple[ir.Node, ...], tuple[ir.Value, ...]]:
    """Return the additions to swallow, and X, residual and the bias of the last linear layer."""
    first, second = (value for value in addition.inputs if value is not None)
    # A bias vector runs along the last axis only, so a norm over several axes cannot take one.
    if len(norm.attributes.get_ints("axes", (-1,))) == 1:
        for linear, residual in ((first, second), (second, first)):
            found = _biased(view, linear, addition, taken)
            if found is not None:
                inner, x, bias = found
                return (inner, addition), (x, residual, bias)
    return (addition,), (first, second)


def _is_add(node: ir.Node, norm: ir.Node) -> bool:
    same_graph = node.graph is norm.graph
    return node.op_type == "Add" and node.domain == "" and same_graph and None not in node.inputs


def _same_shape(view: GraphView, addition: ir.Node) -> bool:
    shapes = [view.shape(operand) for operand in (*addition.inputs, addition.outputs[0])]
    known = shapes[0]
    return known is not None and None not in known and all(shape == known for shape in shapes)


def _ready(norm: ir.Node, addition: ir.Node) -> bool:
    """Whether the norm's scale and bias exist before the addition, where the call will stand."""
    others = norm.inputs[1:]
    if all(value is None or value.producer() is None for value in others):
        return True
    graph = addition.graph
    if not isinstance(graph, ir.Graph):
        return False
    seen: set[ir.Node] = set()
    for node in graph:
        if node is addition:
            break
        seen.add(node)
    return all(value is None or value.producer() in seen | {None} for value in others)


def _biased(
    view: GraphView, linear: ir.Value, addition: ir.Node, taken: set[ir.Node]
) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """Return the addition of a bias vector that alone feeds ``linear``, its X and its bias."""
    inner = linear.producer()
    if inner is None or inner in taken or not _is_add(inner, addition):
        return None
    if len(linear.uses()) != 1 or linear.is_graph_output():
        return None
    width = view.dim(linear, -1)
    for x, bias in (tuple(inner.inputs), tuple(inner.inputs)[::-1]):
        if x is None or bias is None or view.tensor(bias) is None:
            continue
        same = view.shape(x) is not None and view.shape(x) == view.shape(linear)
        if same and view.shape(bias) == (width,) and isinstance(width, int):
            return inner, x, bias
    return None
