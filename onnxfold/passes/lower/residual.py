"""Residual fusion: Add + norm, or Add(bias) + Add + norm, as one node with one pass over memory.

    Y, Sum = norm(X [+ linear_bias] + residual), Sum only if something else reads it

The node is a call of ours, or SkipSimplifiedLayerNormalization of com.microsoft, for CUDA without
our library: its sessions create SkipLayerNormalization themselves, but not this one.

Only additions of tensors of one shape are fused (a broadcast one is not a residual), in every
operand order, for folded and unfolded norms, before and after the block. A Reshape between the sum
and the norm that keeps the norm's axes (exporters flatten to 2-D before an MLP) is exchanged with
the norm: norm(reshape(v)) = reshape(norm(v)), since each row stays a row. Returns edits, mutates
nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.operands import is_read_once, producer_of
from onnxfold.operators.functions import DOMAIN, SIGNATURES, axes_of, call, op_name
from onnxfold.operators.new_nodes import Lowered
from onnxfold.targets.norm_settings import NormSetting, of_one_setting, setting_of_call

CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_NORM = "SimplifiedLayerNormalization"
_CONTRIB_EPSILON = 1e-5  # if the attribute is missing
_CONTRIB_RANKS = (2, 3)


@dataclass(frozen=True, slots=True)
class ResidualFusion:
    """A norm, the additions that it absorbs (in graph order), and the node that replaces them.

    ``operands`` are X, residual and, with two additions, the linear bias, as in the model before
    any fusion. ``reshape`` is between the last addition and the norm.
    """

    norm: ir.Node
    additions: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]
    with_sum: bool
    reshape: ir.Node | None = None

    @property
    def name(self) -> str:
        """The name of our op."""
        signature = SIGNATURES[self.norm.op_type]
        return op_name(
            statistics=signature.statistics,
            residual=True,
            linear_bias=len(self.additions) > 1,
            affine=signature.affine,
            with_sum=self.with_sum,
        )

    @property
    def setting(self) -> NormSetting:
        """The setting of the call."""
        return setting_of_call(self.norm)

    @property
    def place(self) -> ir.Node:
        """The node before which the call is inserted."""
        return _place(self.additions[-1], self.reshape)

    @property
    def replaced(self) -> tuple[ir.Node, ...]:
        """The nodes that must have no other readers, in graph order."""
        reshape = () if self.reshape is None else (self.reshape,)
        return (*self.additions, *reshape, self.norm)

    def lower(self) -> Lowered:
        """Return the new node, and the Reshape that now follows it."""
        node, total = self._call() if self.norm.domain == DOMAIN else self._contrib()
        node.name = self.norm.name
        nodes, result, summed = [node], node.outputs[0], self.additions[-1].outputs[0]
        if self.reshape is not None:
            result.name = f"{self.norm.outputs[0].name}.unshaped"
            result.shape, result.type = summed.shape, self.norm.outputs[0].type
            nodes.append(_reshaped(self.reshape, result, f"{self.norm.name}.reshape"))
            result = nodes[-1].outputs[0]
        stands_for = [(self.norm.outputs[0], result)]
        if total is not None:
            stands_for.append((summed, total))
        return Lowered(tuple(nodes), tuple(stands_for))

    def _call(self) -> tuple[ir.Node, ir.Value | None]:
        """Return a call of ours, and its sum."""
        inputs = [*self.operands, *self.norm.inputs[1:]]
        node = call(
            self.name,
            [value for value in inputs if value is not None],
            axes=axes_of(self.norm),
            epsilon=self.norm.attributes.get_float("epsilon", 0.0),
        )
        return node, node.outputs[1] if self.with_sum else None

    def _contrib(self) -> tuple[ir.Node, ir.Value | None]:
        """Return SkipSimplifiedLayerNormalization, whose last output is the sum, and the sum."""
        x, residual, *bias = self.operands
        epsilon = self.norm.attributes.get_float("epsilon", _CONTRIB_EPSILON)
        node = ir.node(
            f"Skip{_CONTRIB_NORM}",
            [x, residual, self.norm.inputs[1], *bias],
            {"epsilon": epsilon},
            domain=CONTRIB_DOMAIN,
            num_outputs=4 if self.with_sum else 1,
        )
        for statistic in node.outputs[1:3]:
            statistic.name = ""  # omitted
        return node, node.outputs[3] if self.with_sum else None


def _place(addition: ir.Node, reshape: ir.Node | None) -> ir.Node:
    """The target of a Reshape may be computed after the addition, so the later one."""
    return addition if reshape is None or _read_elsewhere(reshape.inputs[0]) else reshape


def _reshaped(reshape: ir.Node, value: ir.Value, name: str) -> ir.Node:
    inputs = (value, *reshape.inputs[1:])
    return ir.node("Reshape", inputs, dict(reshape.attributes), name=name)


def residual_fusions(view: ModelInfo) -> tuple[ResidualFusion, ...]:
    """Return the fusions of a lowered model, of one setting for each name of a call."""
    norms = [node for node in view.nodes() if _adds_no_residual(node)]
    return of_one_setting(view, _possible_fusions(view, norms))


def contrib_fusions(view: ModelInfo, types: Collection[ir.DataType]) -> tuple[ResidualFusion, ...]:
    """Return the fusions of RMSNorms, of these types, for which ONNX Runtime has an operator."""
    norms = [node for node in view.nodes() if _has_contrib(view, node, types)]
    return tuple(_possible_fusions(view, norms))


def _has_contrib(view: ModelInfo, norm: ir.Node, types: Collection[ir.DataType]) -> bool:
    """Whether SkipSimplifiedLayerNormalization supports a norm: of one type, over the last axis."""
    if (norm.domain, norm.op_type, len(norm.inputs)) != ("", _CONTRIB_NORM, 2):
        return False
    x, gamma = norm.inputs
    if x is None or gamma is None or norm.outputs[0].dtype not in types:
        return False
    width, rank = view.dim(x, -1), view.rank(x)
    return (
        x.dtype == gamma.dtype == norm.outputs[0].dtype
        and rank is not None
        and norm.attributes.get_int("axis", -1) in (-1, rank - 1)
        and norm.attributes.get_int("stash_type", ir.DataType.FLOAT.value) == ir.DataType.FLOAT
        and len(norm.outputs) == 1
        and isinstance(width, int)
        and view.shape(gamma) == (width,)
    )


def _axes(norm: ir.Node) -> int:
    return axes_of(norm) if norm.domain == DOMAIN else 1


def _possible_fusions(view: ModelInfo, norms: Sequence[ir.Node]) -> list[ResidualFusion]:
    """Return every fusion; an addition may be in only one."""
    taken: set[ir.Node] = set()
    fusions = []
    for node in norms:
        fusion = _fusion(view, node, taken)
        if fusion is not None:
            taken.update(fusion.additions)
            fusions.append(fusion)
    return fusions


def _adds_no_residual(node: ir.Node) -> bool:
    """Whether a node is a call without a residual for which a variant with one exists."""
    signature = SIGNATURES.get(node.op_type) if node.domain == DOMAIN else None
    return signature is not None and not signature.residual and f"Add{node.op_type}" in SIGNATURES


def _fusion(view: ModelInfo, norm: ir.Node, taken: set[ir.Node]) -> ResidualFusion | None:
    reshape = _reshape_before(view, norm)
    total = (norm if reshape is None else reshape).inputs[0]
    addition = producer_of(total)
    if total is None or addition is None or addition in taken or not _is_add(addition, norm):
        return None
    if norm.domain != DOMAIN and view.rank(total) not in _CONTRIB_RANKS:
        return None
    dtype = norm.outputs[0].dtype
    others = (*norm.inputs[1:], *(reshape.inputs[1:] if reshape is not None else ()))
    place = _place(addition, reshape)
    if (
        dtype in (None, ir.DataType.DOUBLE)
        or not _same_shape(view, addition)
        or not ready(others, place)
    ):
        return None
    additions, operands = _operands(view, norm, addition, taken)
    stays = reshape is not None and _read_elsewhere(norm.inputs[0])
    return ResidualFusion(norm, additions, operands, stays or _read_elsewhere(total), reshape)


def _read_elsewhere(value: ir.Value | None) -> bool:
    """Whether a value has another reader than the one known."""
    return value is not None and (len(value.uses()) > 1 or value.is_graph_output())


def _reshape_before(view: ModelInfo, norm: ir.Node) -> ir.Node | None:
    """Return the Reshape that a norm reads, if it keeps the axes of the norm."""
    reshape = producer_of(norm.inputs[0])
    if reshape is None or operator(reshape) != "Reshape":
        return None
    keeps = reshape.graph is norm.graph and _keeps_rows(view, reshape, _axes(norm))
    return reshape if keeps else None


def _keeps_rows(view: ModelInfo, reshape: ir.Node, axes: int) -> bool:
    """Whether the last ``axes`` axes have the same, known sizes before and after a Reshape."""
    value = reshape.inputs[0]
    before = None if value is None else view.shape(value)
    after = view.shape(reshape.outputs[0])
    if before is None or after is None or min(len(before), len(after)) < axes:
        return False
    row = before[-axes:]
    return row == after[-axes:] and all(isinstance(size, int) for size in row)


def _operands(
    view: ModelInfo, norm: ir.Node, addition: ir.Node, taken: set[ir.Node]
) -> tuple[tuple[ir.Node, ...], tuple[ir.Value, ...]]:
    """Return the additions to absorb, and X, residual and the bias of the last linear layer."""
    first, second = (value for value in addition.inputs if value is not None)
    # A bias vector runs along the last axis only, so a norm over several axes cannot absorb it.
    if _axes(norm) == 1:
        for linear, residual in ((first, second), (second, first)):
            found = _biased(view, linear, addition, taken)
            if found is not None:
                inner, x, bias = found
                return (inner, addition), (x, residual, bias)
    return (addition,), (first, second)


def _is_add(node: ir.Node, norm: ir.Node) -> bool:
    return operator(node) == "Add" and node.graph is norm.graph and None not in node.inputs


def _same_shape(view: ModelInfo, addition: ir.Node) -> bool:
    shapes = [view.shape(operand) for operand in (*addition.inputs, addition.outputs[0])]
    known = shapes[0]
    return known is not None and None not in known and all(shape == known for shape in shapes)


def ready(others: Sequence[ir.Value | None], place: ir.Node) -> bool:
    """Whether the other operands are computed before the place of the call."""
    if all(value is None or value.producer() is None for value in others):
        return True
    graph = place.graph
    if not isinstance(graph, ir.Graph):
        return False
    before = set(takewhile(lambda node: node is not place, graph))
    return all(value is None or value.producer() in before | {None} for value in others)


def _biased(
    view: ModelInfo, linear: ir.Value, addition: ir.Node, taken: set[ir.Node]
) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """Return the addition of a bias vector whose only reader is ``linear``, its X and its bias."""
    inner = linear.producer()
    if inner is None or inner in taken or not _is_add(inner, addition):
        return None
    if not is_read_once(linear):
        return None
    width = view.dim(linear, -1)
    for x, bias in (tuple(inner.inputs), tuple(inner.inputs)[::-1]):
        if x is None or bias is None or view.tensor(bias) is None:
            continue
        same = view.shape(x) == view.shape(linear)
        if same and view.shape(bias) == (width,) and isinstance(width, int):
            return inner, x, bias
    return None
