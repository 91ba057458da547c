"""Where the regions of a proof start."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxfold.proof.cone import Unprovable, cone_of
from onnxfold.shapes import infer

# Keras counts negative indices from the end, and tf2onnx spells the Where as two products.
WRAPPED = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[B, 3] ids) => (float[B, 12] y)
<float[5, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5},
 int64 zero = {0}, int64 rows = {5}, int64[1] last = {-1}> {
    negative = Less (ids, zero)  positive = Not (negative)  chosen = Cast <to = 7> (negative)
    other = Cast <to = 7> (positive)  behind = Add (ids, rows)  first = Mul (chosen, behind)
    second = Mul (other, ids)  index = Add (first, second)  x = Gather (table, index)
    sizes = Shape <start = 0, end = 1> (ids)  shape = Concat <axis = 0> (sizes, last)
    y = Reshape (x, shape)
}
"""


@pytest.mark.parametrize("batch", ["B", "2"])
def test_sizes_are_followed_to_where_they_come_from_and_indices_are_not(batch: str) -> None:
    """Masks are drawn: with one that is not the other's negation, indices would leave the table.

    Those of a batch of two have the shape of pairs.
    """
    text = WRAPPED.replace("[B,", f"[{batch},")
    view = infer(ir.from_proto(parser.parse_model(text)))
    order = {node: number for number, node in enumerate(view.nodes())}
    (end,) = view.model.graph.outputs
    cone = cone_of(view, order, end, lambda _, depth: depth > 1)
    assert [node.op_type for node in cone.nodes] == ["Gather", "Shape", "Concat", "Reshape"]
    assert {leaf.name for leaf in cone.leaves} == {"table", "index", "ids", "last"}


# As PyTorch turns the amounts of a Pad round.
PAIRS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[B, 12] x) => (int64[2, 2] y) <int64[4] none = {0, 0, 0, 0}, int64[2] two = {2, 2}> {
    sizes = Shape (x)  both = Concat <axis = 0> (sizes, sizes)  amounts = Add (both, none)
    pairs = Reshape (amounts, two)  y = Transpose <perm = [1, 0]> (pairs)
}
"""


def test_pairs_of_sizes_are_followed() -> None:
    view = infer(ir.from_proto(parser.parse_model(PAIRS)))
    order = {node: number for number, node in enumerate(view.nodes())}
    (end,) = view.model.graph.outputs
    cone = cone_of(view, order, end, lambda _, depth: depth > 0)
    assert [node.op_type for node in cone.nodes] == [node.op_type for node in view.nodes()]


def _ends(nodes: int) -> int:
    """How many nodes a cone has that would reach through so many."""
    steps = " ".join(f"a{n + 1} = Mul (a{n}, a{n})" for n in range(nodes))
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[B, 3] a0) => (float[B, 3] y) '
    view = infer(ir.from_proto(parser.parse_model(f"{text} {{ {steps} y = Neg (a{nodes}) }}")))
    order = {node: number for number, node in enumerate(view.nodes())}
    (end,) = view.model.graph.outputs
    return len(cone_of(view, order, end, lambda *_: False).nodes)


def test_a_region_of_too_many_nodes_is_not_tested() -> None:
    assert _ends(50) == 51
    with pytest.raises(Unprovable, match="cannot be tested"):
        _ends(200)
