"""Constants behind a norm operator, merged into it: n(x; g, b) * k + c = n(x; g k, b k + c).

PyTorch's F.layer_norm without weights, times a parameter, plus another, is then one norm with
gamma and beta, which may move on.
"""

from collections.abc import Set

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo
from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import add_constant, drop_weight, redirect, set_input, sweep
from onnxfold.graph.operands import is_read_once, operand, producer_of
from onnxfold.graph.traversal import graph_values
from onnxfold.operators.new_nodes import weight_value
from onnxfold.passes.prepare.merge_constant_factors import product_of

_SCALE, _BIAS = 1, 2
_MERGED = {
    "LayerNormalization": ("Mul", "Add"),
    "RMSNormalization": ("Mul",),
    "SimplifiedLayerNormalization": ("Mul",),
}


def merge_affine_parts(view: ModelInfo) -> int:
    """Merge constants into norms of a working copy with types; return how many."""
    norms = [node for node in view.nodes() if not node.domain and node.op_type in _MERGED]
    if not norms:
        return 0
    taken = {value.name for graph in view.graphs for value in graph_values(graph)}
    return sum(_merge_all(view, norm, taken) for norm in norms)


def _merge_all(view: ModelInfo, norm: ir.Node, taken: Set[str | None]) -> int:
    merged = 0
    while (found := _next(view, norm)) is not None:
        node, array = found
        parts = _parts(view, norm, node.op_type, array)
        names = [f"{node.outputs[0].name}.{part}" for part in ("scale", "bias")]
        if parts is None or not taken.isdisjoint(names):
            break
        _merge(norm, node, dict(zip(names, parts, strict=True)))
        merged += 1
    return merged


def _next(view: ModelInfo, norm: ir.Node) -> tuple[ir.Node, Array] | None:
    """Return the Mul or Add that alone reads what a norm gives, and its constant."""
    result = norm.outputs[0]
    if not is_read_once(result):
        return None
    (use,) = result.uses()
    node = use.node
    if node.domain or node.op_type not in _MERGED[norm.op_type] or node.graph is not norm.graph:
        return None
    if node.outputs[0].is_graph_output() or not isinstance(node.graph, ir.Graph):
        return None
    array = view.array(node.inputs[1 - use.idx])
    return None if array is None else (node, array)


def _parts(
    view: ModelInfo, norm: ir.Node, op_type: str, array: Array
) -> tuple[Array, Array | None] | None:
    """Return the scale and bias with a constant in them, None where it does not fit."""
    scale, bias = (view.array(operand(norm, index)) for index in (_SCALE, _BIAS))
    if scale is None or (bias is None and operand(norm, _BIAS) is not None):
        return None
    fitted = _fitted(view, norm, scale, array)
    if fitted is None:
        return None
    if op_type == "Mul":
        gamma, beta = (None if part is None else product_of(part, fitted) for part in (scale, bias))
        return None if gamma is None or (beta is None) != (bias is None) else (gamma, beta)
    with np.errstate(all="ignore"):
        added = np.asarray(fitted if bias is None else np.add(fitted, bias))
    return (scale, added) if bool(np.isfinite(added.astype(np.float64)).all()) else None


def _fitted(view: ModelInfo, norm: ir.Node, scale: Array, array: Array) -> Array | None:
    """Return a constant in the shape of a scale that has all axes of the norm, else None."""
    x = norm.inputs[0]
    rank = view.rank(x)
    if x is None or not rank or array.ndim > rank or x.dtype not in FLOATS:
        return None
    axes = rank - norm.attributes.get_int("axis", -1) % rank
    if scale.ndim != axes or {scale.dtype, array.dtype} != {x.dtype.numpy()}:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    fits = all(a in (1, b) for a, b in zip(shape, (1,) * (rank - axes) + scale.shape, strict=True))
    return np.broadcast_to(array.reshape(shape[rank - axes :]), scale.shape) if fits else None


def _merge(norm: ir.Node, node: ir.Node, parts: dict[str, Array | None]) -> None:
    """Let a norm read its new parts, and the readers of ``node`` the norm, under its name."""
    for index, (name, array) in enumerate(parts.items(), start=_SCALE):
        if array is None or not isinstance(norm.graph, ir.Graph):
            continue
        old, value = operand(norm, index), weight_value(name, np.array(array))
        add_constant(norm.graph, value)
        set_input(norm, index, value)
        maker = producer_of(old)
        sweep([] if maker is None else [maker])
        drop_weight(old)
    start, end = norm.outputs[0], node.outputs[0]
    redirect(end, start)
    start.name, end.name = end.name, f"{end.name}.merged"
    sweep([node])
