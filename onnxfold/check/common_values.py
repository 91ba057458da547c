"""Match values of a model with values of a converted version of it.

Converters keep the names of most results. A result without a namesake is matched with the one that
the same operators compute from the same operands; among several, by order. Nodes that only change
how numbers are stored are ignored, and an operator on integers counts as the one that it replaces.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Array
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
