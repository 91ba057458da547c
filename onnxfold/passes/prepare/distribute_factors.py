"""A constant factor behind a product and a sum: (x * g + b) * k = x * (g k) + b k.

A norm that is spelled out, and scaled as a whole, then ends in one gamma and one beta.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import add_constant, drop_weight, set_input, sweep
from onnxfold.graph.operands import is_read_once, known_operand, producer_of
from onnxfold.graph.traversal import graph_values
from onnxfold.operators.new_nodes import weight_value
from onnxfold.passes.prepare.merge_constant_factors import product_of, weight_operand

_Step = tuple[ir.Node, int]  # a node, and which of its inputs is a weight


def distribute_factors(view: ModelInfo) -> int:
    """Distribute factors in a working copy with types; return how many."""
    chains = [chain for node in view.nodes() if (chain := _chain(view, node)) is not None]
    taken = {value.name for graph in view.graphs for value in graph_values(graph)} if chains else ()
    done = 0
    for chain in chains:
        name = chain[0][0].outputs[0].name
        free = f"{name}.factor" not in taken and f"{name}.addend" not in taken
        done += free and _distribute(view, *chain)
    return done


def _chain(view: ModelInfo, node: ir.Node) -> tuple[_Step, _Step, _Step] | None:
    """Return a product, the sum that it reads alone, and the product that this reads alone."""
    steps: list[_Step] = []
    for op_type in ("Mul", "Add", "Mul"):
        index = weight_operand(view, node, op_type)
        if index is None or node.graph is not (steps or [(node, 0)])[0][0].graph:
            return None
        steps.append((node, index))
        value = known_operand(node, 1 - index)
        maker = producer_of(value)
        if len(steps) < 3 and (maker is None or not is_read_once(value)):
            return None
        node = maker or node
    return steps[0], steps[1], steps[2]


def _distribute(view: ModelInfo, outer: _Step, addition: _Step, inner: _Step) -> bool:
    """Take the outer product's place with the sum: its result keeps its name."""
    node, place = outer
    factor, *old = (known_operand(*step) for step in (outer, addition, inner))
    rank = view.rank(inner[0].outputs[0]) or 0
    addend, gamma = (_scaled(view, value, factor, rank) for value in old)
    if addend is None or gamma is None or not isinstance(node.graph, ir.Graph):
        return False
    name = node.outputs[0].name
    new = weight_value(f"{name}.addend", addend), weight_value(f"{name}.factor", gamma)
    for weight in new:
        add_constant(node.graph, weight)
    set_input(*inner, new[1])
    node.op_type = "Add"
    set_input(node, place, new[0])
    set_input(node, 1 - place, inner[0].outputs[0])
    sweep([addition[0]])
    for value in (factor, *old):
        drop_weight(value)
    return True


def _scaled(view: ModelInfo, value: ir.Value, factor: ir.Value, rank: int) -> Array | None:
    """Return the product of two constants in the shape of the first, None where it is larger.

    ``rank`` is that of what the factor multiplies, which it does not raise.
    """
    first, second = view.array(value), view.array(factor)
    if first is None or second is None or first.dtype != second.dtype or second.ndim > rank:
        return None
    product = product_of(first, second)
    small = product is not None and product.size == first.size
    return product.reshape(first.shape) if product is not None and small else None
