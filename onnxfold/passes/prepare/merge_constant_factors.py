"""Products of constants in a row, merged: (x * g) * k = x * (g k), rounded once; (-x) * k = x * -k.

A norm's gamma is then one operand, whatever the number of factors in the model.
"""

from collections.abc import Callable, Set
from functools import cache

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import add_constant, drop_weight, set_input, sweep
from onnxfold.graph.operands import is_read_once, producer_of, weight_operand
from onnxfold.graph.traversal import graph_values
from onnxfold.operators.new_nodes import weight_value


def merge_constant_factors(view: ModelInfo) -> tuple[str, ...]:
    """Merge factors in a working copy with types; return the names of the products that changed."""

    @cache
    def taken() -> frozenset[str | None]:
        return frozenset(value.name for graph in view.graphs for value in graph_values(graph))

    merged = [node for node in view.nodes() if _merge(view, node, taken)]
    return tuple(node.outputs[0].name or "" for node in merged)


def _merge(view: ModelInfo, node: ir.Node, taken: Callable[[], Set[str | None]]) -> bool:
    outer = weight_operand(view, node, "Mul")
    product = None if outer is None else node.inputs[1 - outer]
    inner_node = producer_of(product)
    if outer is None or product is None or inner_node is None:
        return False
    found = _factor(view, inner_node)
    if found is None or not is_read_once(product):
        return False
    if inner_node.graph is not node.graph or not isinstance(node.graph, ir.Graph):
        return False
    start, first = found
    second = view.array(node.inputs[outer])
    if second is None or (first is not None and first.dtype != second.dtype):
        return False
    merged = np.negative(second) if first is None else product_of(first, second)
    name = f"{node.outputs[0].name}.factor"
    if merged is None or name in taken():
        return False
    value = weight_value(name, merged)
    old = node.inputs[outer]
    add_constant(node.graph, value)
    set_input(node, outer, value)
    set_input(node, 1 - outer, start)
    sweep([inner_node])
    drop_weight(old)
    return True


def _factor(view: ModelInfo, node: ir.Node) -> tuple[ir.Value | None, Array | None] | None:
    """Return x and g of x * g, x and None of -x, and None for any other node."""
    if operator(node) == "Neg":
        return node.inputs[0], None
    index = weight_operand(view, node, "Mul")
    array = None if index is None else view.array(node.inputs[index])
    return None if index is None or array is None else (node.inputs[1 - index], array)


def product_of(first: Array, second: Array) -> Array | None:
    """Return the product of constants; None if it over- or underflows, as x a b may not."""
    if ir.DataType.from_numpy(first.dtype) not in FLOATS:
        return np.asarray(np.multiply(first, second))
    with np.errstate(all="ignore"):
        wide = first.astype(np.float64) * second.astype(np.float64)
    limits = ml_dtypes.finfo(first.dtype)  # type: ignore[no-untyped-call]  # it has no types
    size, zero = np.abs(wide), (first == 0) | (second == 0)
    fits = zero | ((size >= float(limits.smallest_normal)) & (size <= float(limits.max)))
    return wide.astype(first.dtype) if bool(np.all(fits)) else None
