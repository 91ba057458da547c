"""Values of a model matched with values of a converted version, and where the two diverge.

Converters keep the names of most results. A result without a namesake is matched with the one that
the same operators compute from the same operands; among several, by order. Nodes that only change
how numbers are stored are ignored, and an operator on integers counts as the one that it replaces.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.check.criterion import rms
from onnxfold.check.reference import Array, Precision, is_wide_float, run, unit_roundoff
from onnxfold.check.runners import Feeds
from onnxfold.errors import OnnxfoldError
from onnxfold.graph.edit import splice_behind
from onnxfold.graph.traversal import reads
from onnxfold.shapes import fill_types

# They pass on the numbers of their first input.
_STORING = frozenset(
    {"Cast", "CastLike", "DequantizeLinear", "DynamicQuantizeLinear", "Identity", "QuantizeLinear"}
)
_STANDS_FOR = {
    "ConvInteger": "Conv",
    "DynamicQuantizeMatMul": "MatMul",
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "FusedMatMul": "MatMul",
    "MatMulBnb4": "MatMul",
    "MatMulInteger": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "MatMulNBits": "MatMul",
    "NhwcConv": "Conv",
    "QGemm": "Gemm",
}
_WEIGHT = "weight"
_MARK = "/shown"  # in the names of nodes that decode codes


@dataclass(frozen=True, slots=True)
class Common:
    """A value under its names in both models, and its type in the changed one."""

    name: str
    changed: str
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Between:
    """The nodes between a value and the nearest others that are common, which they read."""

    nodes: tuple[ir.Node, ...]
    reads: tuple[str, ...]


def common_values(original: ir.Model, changed: ir.Model) -> list[Common]:
    """Return results of nodes that both models compute, in the order of the changed one."""
    before, after = tensor_types(original), tensor_types(changed)
    named = before.keys() & after.keys()
    pairs = {name: name for name in named} | _by_structure(original, changed, named)
    return [
        Common(pairs[name], name, dtype)
        for name, dtype in after.items()
        if name in pairs and pairs[name] in before and before[pairs[name]].kind == dtype.kind
    ]


def tensor_types(model: ir.Model) -> dict[str, np.dtype[np.generic]]:
    """Return the types of the main graph's tensor results that a runtime can accept from numpy."""
    typed = model.clone()
    fill_types(typed)
    values = (value for node in typed.graph for value in node.outputs if value.name)
    return {str(v.name): dtype for v in values if (dtype := _dtype(v)) is not None}


def between(value: ir.Value, common: Collection[ir.Value]) -> Between:
    """Return the nodes that compute a value of the main graph from common values."""
    nodes: dict[ir.Node, None] = {}
    frontier: dict[str, None] = {}
    waiting = [value]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in nodes or node.graph is not value.graph:
            continue
        nodes[node] = None
        for operand in reads(node):
            if operand in common:
                frontier[str(operand.name)] = None
            else:
                waiting.append(operand)
    ordered = [node for node in value.graph or () if node in nodes] if len(nodes) > 1 else nodes
    return Between(tuple(ordered), tuple(frontier))


def stands_for(node: ir.Node) -> str | None:
    """Return the operator that a node computes, in any precision; None if it computes nothing."""
    if node.op_type in _STORING or node.op_type == "Constant":
        return None
    return _STANDS_FOR.get(node.op_type, node.op_type.removeprefix("QLinear"))


def _dtype(value: ir.Value) -> np.dtype[np.generic] | None:
    """Return the type of a tensor that a runtime can accept from numpy, otherwise None."""
    if value.dtype is None or not isinstance(value.type, ir.TensorType):
        return None
    if value.dtype is ir.DataType.STRING:
        return None
    dtype = np.dtype(value.dtype.numpy())
    return dtype if dtype.isbuiltin == 1 else None


def _by_structure(original: ir.Model, changed: ir.Model, named: Iterable[str]) -> dict[str, str]:
    """Map results with other names in the changed model to their names in the original."""
    matched = frozenset(named)
    identities: dict[object, int] = {}
    before, after = (_by_identity(model, matched, identities) for model in (original, changed))
    pairs: dict[str, str] = {}
    for identity, names in after.items():
        counterparts = before.get(identity, [])
        if len(counterparts) == len(names):
            pairs.update(zip(names, counterparts, strict=True))
    return pairs


def _by_identity(
    model: ir.Model, matched: frozenset[str], identities: dict[object, int]
) -> dict[int, list[str]]:
    """Return the names of unmatched results, keyed by operator and operands."""
    known: dict[ir.Value, int] = {}

    def identify(description: object) -> int:
        return identities.setdefault(description, len(identities))

    def identity(value: ir.Value | None) -> int:
        if value is None:
            return identify(_WEIGHT)
        if value not in known:
            known[value] = identify(("input", value.name) if value.is_graph_input() else _WEIGHT)
        return known[value]

    weight = identify(_WEIGHT)
    found: dict[int, list[str]] = {}
    for node in model.graph:
        kind = stands_for(node)
        operands = [identity(value) for value in node.inputs]
        for place, value in enumerate(node.outputs):
            if value.name in matched:
                known[value] = identify(("named", value.name))
            elif kind is None:
                known[value] = operands[0] if operands and place == 0 else weight
            else:
                # A converter may add weights, such as scales, and drop them.
                known[value] = identify((kind, place, *(o for o in operands if o != weight)))
                found.setdefault(known[value], []).append(str(value.name))
    return found


def show_codes(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a copy that computes values of these names, if the model stores their codes.

    ONNX Runtime's quantizers name the codes of a value NAME "NAME_quantized", with "NAME_scale" and
    "NAME_zero_point" to decode them. Dequantizing and quantizing again does not change them.
    """
    copy = model.clone()
    values = {str(v.name): v for node in copy.graph for v in node.outputs if v.name}
    weights = copy.graph.initializers
    for name in names:
        codes, scale = values.get(f"{name}_quantized"), weights.get(f"{name}_scale")
        zero = weights.get(f"{name}_zero_point")
        if name in values or codes is None or scale is None or zero is None:
            continue
        number = ir.node("DequantizeLinear", [codes, scale, zero], name=f"{name}{_MARK}")
        number.outputs[0].name = name
        number.outputs[0].type = ir.TensorType(scale.dtype or ir.DataType.FLOAT)
        again = ir.node("QuantizeLinear", [number.outputs[0], scale, zero], name=f"{name}{_MARK}/2")
        again.outputs[0].name = f"{name}{_MARK}"
        splice_behind(codes, [number, again])
    return copy


def is_of_file(node: ir.Node) -> bool:
    """Whether a node is in the model itself."""
    return _MARK not in str(node.name)


def stored_weights(
    model: ir.Model, original: ir.Model, node: ir.Node
) -> Iterator[tuple[Array, Array]]:
    """Yield weights of the original whose codes a node reads, and the decoded numbers."""
    weights = model.graph.initializers
    for codes in node.inputs:
        name = "" if codes is None else str(codes.name).removesuffix("_quantized")
        known = (
            original.graph.initializers.get(name),
            weights.get(f"{name}_quantized"),
            weights.get(f"{name}_scale"),
            weights.get(f"{name}_zero_point"),
        )
        arrays = [v.const_value.numpy() for v in known if v is not None and v.const_value]
        if len(arrays) == len(known) and arrays[2].size in (1, arrays[1].shape[-1]):
            right, stored, scale, zero = (np.asarray(a).astype(np.float64) for a in arrays)
            yield right, (stored - zero) * scale


# Weights of the rewritten model are rounded once more, so in exact arithmetic the two models differ
# by u per layer; a defect shows as many more of these.
_ROUNDINGS = 64.0
_KEPT_BYTES = 1 << 30


class _FoundError(OnnxfoldError):
    """Stops the run of the rewritten model at the node that was searched for."""

    def __init__(self, node: ir.Node | None) -> None:
        super().__init__("found")
        self.node = node


def locate(original: ir.Model, rewritten: ir.Model, feeds: Feeds) -> ir.Node | None:
    """Return the first node of the rewritten model with another float64 result than the original.

    Values are matched by name, and compared up to rounding of the weights and up to a shift that
    is the same along the features, as folding a centering produces it: the last axis, or axis 1 of
    images. None: no such node.
    """
    names = {v.name for node in rewritten.graph for v in node.outputs if v.name}
    kept: dict[str, Array] = {}
    room = [_KEPT_BYTES]

    def keep(value: ir.Value, array: Array) -> Array:
        ours = value.graph is original.graph and value.name in names
        if ours and is_wide_float(array.dtype) and array.nbytes <= room[0]:
            room[0] -= array.nbytes
            kept[str(value.name)] = array
        return array

    bound = _ROUNDINGS * _coarsest_roundoff(original)

    def compare(value: ir.Value, array: Array) -> Array:
        ours = value.graph is rewritten.graph and value.name in kept
        if ours and not _agree(kept[str(value.name)], array, bound):
            raise _FoundError(value.producer())
        return array

    run(original, feeds, precision=Precision.FLOAT64, observe=keep)
    try:
        run(rewritten, feeds, precision=Precision.FLOAT64, observe=compare)
    except _FoundError as found:
        return found.node
    return None


def _coarsest_roundoff(model: ir.Model) -> float:
    """Return the unit roundoff of the coarsest floating type among the weights, or float32's."""
    roundoffs = [
        unit_roundoff(v.dtype.numpy())
        for v in model.graph.initializers.values()
        if v.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
    ]
    return max(roundoffs, default=unit_roundoff(np.dtype(np.float32)))


def _agree(a: Array, b: Array, bound: float) -> bool:
    if a.shape != b.shape:
        return False
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    gap = np.where(both, a - np.where(both, b, 0.0), 0.0)
    size = max(rms(np.where(both, a, 0.0)), rms(np.where(both, b, 0.0)))
    allowed = bound * size
    if rms(gap) <= allowed:
        return True
    features = [axis for axis in (gap.ndim - 1, 1 if gap.ndim >= 4 else -1) if axis >= 0]
    return any(
        gap.shape[axis] > 1 and rms(gap - np.mean(gap, axis=axis, keepdims=True)) <= allowed
        for axis in features
    )
