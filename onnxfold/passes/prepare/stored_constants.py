"""Constants of products and sums as one stored weight each, which can move and be proved.

    x * (1 + g) = x * g'        of the bits that IEEE 754 fixes, as every runtime computes them
    (x * g) * k = x * (g k)     rounded once; (-x) * k = x * -k
    h - c = h + (-c)            exactly: a layer without a bias of its own has it in an Add after it

A norm's gamma is then one operand, however many factors the model spells it with.

Parts of weights, and reshaped weights, stored separately.

dynamo leaves large weights as modules store them: the projection of a decoder's cross-attention is
a Split of one weight. Stored separately, each part is a weight into which gamma, beta and means can
move.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cache, partial
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import add_constant, drop_weight, redirect, set_input, sweep
from onnxfold.graph.operands import (
    is_read_once,
    known_operand,
    operand,
    operands,
    producer_of,
    weight_operand,
)
from onnxfold.graph.traversal import graph_values, reached
from onnxfold.operators import facets
from onnxfold.operators.families.cut_parts import cut_of
from onnxfold.operators.new_nodes import weight_value
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.targets.costs import elements

_READERS = ("Add", "Mul")
_LAYERS, _BIAS = ("Gemm", "Conv", "ConvTranspose"), 2
_Index: TypeAlias = tuple[slice | int, ...]


def _names(view: ModelInfo) -> frozenset[str | None]:
    return frozenset(value.name for graph in view.graphs for value in graph_values(graph))


def fold_constants(view: ModelInfo) -> int:
    """Store the expressions of a working copy with types; return how many."""
    found = dict.fromkeys(
        value
        for node in view.nodes()
        for value in _movable(view, node)
        if value is not None and _is_expression(view, value)
    )
    taken = _names(view) if found else ()
    return sum(f"{value.name}.folded" not in taken and _fold(view, value) for value in found)


def _movable(view: ModelInfo, node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the operands that a move may change: terms, factors, and a bias."""
    if operator(node) in _LAYERS:
        return [operand(node, _BIAS)]
    moves = operator(node) in _READERS and any(view.array(value) is None for value in node.inputs)
    return node.inputs if moves else ()


def _is_expression(view: ModelInfo, value: ir.Value) -> bool:
    node = producer_of(value)
    if node is None or node.op_type == "Constant" or view.tensor(value) is not None:
        return False
    return value.dtype in FLOATS and isinstance(node.graph, ir.Graph)


def _fold(view: ModelInfo, value: ir.Value) -> bool:
    array, node = view.array(value), producer_of(value)
    if array is None or node is None or not isinstance(node.graph, ir.Graph):
        return False
    before = reached([value], lambda each: operands(producer_of(each)))
    makers = [maker for each in before if (maker := producer_of(each)) is not None]
    if not all(facets.alike_everywhere(row_of(maker)) for maker in makers if maker.inputs):
        return False
    weight = weight_value(f"{value.name}.folded", np.array(array))
    add_constant(node.graph, weight)
    for use in list(value.uses()):
        set_input(use.node, use.idx, weight)
    sweep(reversed(makers))
    return True


def merge_constant_factors(view: ModelInfo) -> tuple[str, ...]:
    """Merge factors in a working copy with types; return the names of the products that changed."""
    taken = cache(partial(_names, view))
    merged = [node for node in view.nodes() if _merge(view, node, taken)]
    return tuple(node.outputs[0].name or "" for node in merged)


def _merge(view: ModelInfo, node: ir.Node, taken: Callable[[], Set[str | None]]) -> bool:
    outer = weight_operand(view, node, "Mul")
    merged = None if outer is None else view.array(node.inputs[outer])
    if outer is None or merged is None or not isinstance(node.graph, ir.Graph):
        return False
    old, start = node.inputs[outer], node.inputs[1 - outer]
    gone: list[ir.Node] = []
    while (step := _before(view, node.graph, start, merged)) is not None:
        inner, start, merged = step
        gone.append(inner)
    name = f"{node.outputs[0].name}.factor"
    if not gone or name in taken():
        return False
    value = weight_value(name, merged)
    add_constant(node.graph, value)
    set_input(node, outer, value)
    set_input(node, 1 - outer, start)
    sweep([*reversed(_makers_of_factors(view, gone)), *reversed(gone)])
    drop_weight(old)
    return True


def _makers_of_factors(view: ModelInfo, products: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes that compute the factors, as the root of a width from a shape."""

    def known(node: ir.Node | None) -> list[ir.Value]:
        return [value for value in operands(node) if view.array(value) is not None]

    starts = (value for product in products for value in known(product))
    factors = reached(starts, lambda value: known(producer_of(value)))
    return [maker for each in factors if (maker := producer_of(each)) is not None]


def _before(
    view: ModelInfo, graph: ir.Graph, product: ir.Value | None, second: Array
) -> tuple[ir.Node, ir.Value | None, Array] | None:
    """Return the node of a factor that a product by ``second`` can absorb, x, and the product."""
    node = producer_of(product)
    found = None if node is None else _factor(view, node)
    if node is None or product is None or found is None or node.graph is not graph:
        return None
    start, first = found
    if not is_read_once(product) or (first is not None and first.dtype != second.dtype):
        return None
    merged = np.negative(second) if first is None else product_of(first, second)
    return None if merged is None else (node, start, merged)


def _factor(view: ModelInfo, node: ir.Node) -> tuple[ir.Value | None, Array | None] | None:
    """Return x and g of x * g, x and None of -x, and None for any other node."""
    if operator(node) == "Neg":
        return node.inputs[0], None
    if operator(node) != "Mul":
        return None
    arrays = [view.array(value) for value in operands(node)]
    known = [index for index, array in enumerate(arrays) if array is not None]
    return (node.inputs[1 - known[0]], arrays[known[0]]) if len(known) == 1 else None


def product_of(first: Array, second: Array) -> Array | None:
    """Return the product of constants; None where it overflows or underflows, as x a b may not."""
    if ir.DataType.from_numpy(first.dtype) not in FLOATS:
        return np.asarray(np.multiply(first, second))
    with np.errstate(all="ignore"):
        wide = first.astype(np.float64) * second.astype(np.float64)
    limits = ml_dtypes.finfo(first.dtype)  # type: ignore[no-untyped-call]  # it has no types
    size, zero = np.abs(wide), (first == 0) | (second == 0)
    fits = zero | ((size >= float(limits.smallest_normal)) & (size <= float(limits.max)))
    return wide.astype(first.dtype) if bool(np.all(fits)) else None


def add_biases(view: ModelInfo) -> int:
    """Let layers of a working copy with types take biases; return how many are changed.

    Every Sub of a constant becomes an Add, and a Gemm without C has no factor of it.
    """
    subtractions = [node for node in view.nodes() if _takes_bias(view, node)]
    taken = _names(view)
    idle = [node for node in view.nodes() if _scales_nothing(node)]
    for node in idle:
        node.attributes.pop("beta")
    return sum(_add(view, node, taken) for node in subtractions) + len(idle)


def _scales_nothing(node: ir.Node) -> bool:
    """Whether a Gemm has a factor of a C that it has not, as jax2onnx writes layers of Equinox."""
    without = operator(node) == "Gemm" and operand(node, 2) is None
    return without and "beta" in node.attributes


def _takes_bias(view: ModelInfo, node: ir.Node) -> bool:
    if operator(node) != "Sub" or view.is_constant(known_operand(node, 0)):
        return False
    tensor = view.tensor(node.inputs[1])
    return tensor is not None and tensor.dtype in FLOATS


def _add(view: ModelInfo, node: ir.Node, taken: Set[str | None]) -> bool:
    bias = known_operand(node, 1)
    array, name = view.array(bias), f"{node.outputs[0].name}.bias"
    if array is None or name in taken or not isinstance(node.graph, ir.Graph):
        return False
    negated = weight_value(name, np.negative(array))
    add_constant(node.graph, negated)
    set_input(node, 1, negated)
    node.op_type = "Add"
    drop_weight(bias)
    return True


def store_parts(view: ModelInfo, shared: Set[str | None] = frozenset()) -> int:
    """Store the parts of weights in a typed working copy; return how many weights had parts.

    This includes parts of parts. A weight stays whole if something reads all of it, or if its parts
    overlap. Of ``shared`` ones, the parts are stored even so, and the whole for its other readers.
    """
    nodes = [node for node in view.nodes() if node.inputs]
    return sum(node.graph is not None and _store(view, node.inputs[0], shared) for node in nodes)


def weights_in_parts(view: ModelInfo) -> frozenset[str | None]:
    """Return the names of the weights that `store_parts` would store in parts."""
    weights = {node.inputs[0] for node in view.nodes() if node.inputs}
    return frozenset(
        each.name for each in weights if each is not None and _stored_parts(view, each)
    )


def _store(view: ModelInfo, weight: ir.Value | None, shared: Set[str | None]) -> bool:
    tensor = view.tensor(weight)
    parts = {} if weight is None else _stored_parts(view, weight, whole=weight.name in shared)
    if weight is None or tensor is None or not parts:
        return False
    nodes = dict.fromkeys(producer_of(part) for part in parts)
    for part, index in parts.items():
        stored = _stored(view, tensor, part, index)
        if part.uses() and isinstance(weight.graph, ir.Graph):
            add_constant(weight.graph, stored)
            redirect(part, stored)
    sweep(node for node in nodes if node is not None)
    return True


def _stored_parts(
    view: ModelInfo, weight: ir.Value, *, whole: bool = False
) -> dict[ir.Value, _Index]:
    """Return the parts of a weight to store in its place, or beside it if ``whole``."""
    tensor = view.tensor(weight)
    if tensor is None or tensor.dtype not in FLOATS or weight.is_graph_output():
        return {}
    parts = dict(_parts(view, weight))
    nodes = dict.fromkeys(use.node for use in weight.uses())
    cuts = [node for node in nodes if all(output in parts for output in node.outputs)]
    sizes = [elements(view.shape(part)) for node in cuts for part in node.outputs]
    if not (whole or len(cuts) == len(nodes)) or sum(sizes) > tensor.size:
        return {}
    return {part: parts[part] for node in cuts for part in node.outputs}


def _parts(view: ModelInfo, weight: ir.Value) -> Iterator[tuple[ir.Value, _Index]]:
    """Yield the parts and other shapes of a weight, and which of its elements each has."""
    for use in weight.uses():
        for value in use.node.outputs if use.idx == 0 else ():
            index = _index(view, use.node, value)
            local = use.node.graph is weight.graph and not value.is_graph_output()
            if index is not None and local and value.name:
                yield value, index


def _index(view: ModelInfo, node: ir.Node, value: ir.Value) -> _Index | None:
    shape = view.shape(value)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    if row_of(node).family is Family.RESHAPE and view.is_constant(node.inputs[-1]):
        return ()
    cut = cut_of(view, value)
    if cut is None:
        return None
    picks = row_of(node).family is Family.GATHER
    return (*cut.index[: cut.axis], cut.start) if picks else cut.index


def _stored(view: ModelInfo, tensor: ir.TensorProtocol, part: ir.Value, index: _Index) -> ir.Value:
    shape = ir.Shape(view.shape(part) or ())

    def taken() -> ir.TensorProtocol:
        elements = np.ascontiguousarray(tensor.numpy()[index]).reshape(shape.numpy())
        return ir.Tensor(elements, dtype=tensor.dtype, name=part.name)

    lazy = ir.LazyTensor(taken, dtype=tensor.dtype, shape=shape, name=part.name)
    return ir.Value(name=part.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=lazy)
