"""The operators of deferral as calls: numbers of rows computed, multiplied, added under a root.

    RowScale      1 / sqrt(mean(x^2) + eps)                      its Add becomes AddRowScaleWithSum
    AddScaled..   a residual call whose X is a product with numbers of rows
    ScaleRows..   x s + bias, and an activation
    RMSNormRowEpsilon  u / sqrt(mean(u^2) + e), e a number of each row

Each is spelled as passes/deferral writes it, in FLOAT, over the last axis.  Returns edits, mutates
nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Shape, keeps_dims, operator
from onnxfold.graph.operands import computed_by, is_read_once, only_reader, producer_of
from onnxfold.norms import NORMS
from onnxfold.operators.functions import (
    DOMAIN,
    SIGNATURES,
    Activation,
    Affine,
    Output,
    Statistics,
    call,
    op_name,
)
from onnxfold.operators.new_nodes import Lowered
from onnxfold.passes.lower.residual import ready
from onnxfold.targets.norm_settings import NormSetting, of_one_setting

ROUNDS = 3  # roots, sums with their operands, remaining products


@dataclass(frozen=True, slots=True)
class RowFusion:
    """Nodes in graph order, and the call inserted before the last of them."""

    nodes: tuple[ir.Node, ...]
    name: str
    inputs: tuple[ir.Value, ...]
    results: tuple[ir.Value, ...]
    epsilon: float = 0.0

    @property
    def setting(self) -> NormSetting:
        """The setting of the call."""
        return SIGNATURES[self.name].statistics, 1, self.epsilon

    @property
    def place(self) -> ir.Node:
        """The node before which the call is inserted: a sum may be read before its norm."""
        return next(node for node in self.nodes if not set(node.outputs).isdisjoint(self.results))

    def lower(self) -> Lowered:
        """Return the call."""
        node = call(self.name, self.inputs, epsilon=self.epsilon)
        node.name = self.nodes[-1].name
        return Lowered((node,), tuple(zip(self.results, node.outputs, strict=True)))


def row_fusions(view: ModelInfo, number: int) -> tuple[RowFusion, ...]:
    """Return the fusions of one round; the next round searches the result."""
    match = (_root, _sum, _product)[number]
    taken: set[ir.Node] = set()
    found = []
    for node in view.nodes():
        for fusion in match(view, node):
            if taken.isdisjoint(fusion.nodes):
                taken.update(fusion.nodes)
                found.append(fusion)
    return of_one_setting(view, _without_norms(view, found) if match is _product else found)


def _without_norms(view: ModelInfo, found: Sequence[RowFusion]) -> list[RowFusion]:
    """Leave the products of norms in several operators, which would be norms no longer."""
    inside = {node for site in NORMS.of(view) for node in site.nodes} if found else ()
    return [fusion for fusion in found if fusion.nodes[0] not in inside]


def _before(node: ir.Node | None, op_type: str, index: int = 0) -> ir.Node | None:
    """Return the node of this type that computes an operand without other readers."""
    value = None if node is None else node.inputs[index]
    producer = computed_by(value, op_type)
    if node is None or value is None or producer is None:
        return None
    return producer if is_read_once(value) and producer.graph is node.graph else None


def _of_rows(view: ModelInfo, numbers: ir.Value | None, like: ir.Value | None) -> bool:
    """Whether a value has one number of FLOAT for each row of another one of FLOAT."""
    if numbers is None or like is None:
        return False
    shape, full = _shape(view, numbers), _shape(view, like)
    both = numbers.dtype is like.dtype is ir.DataType.FLOAT
    if full is None or not full or None in full:
        return False
    return both and shape == (*full[:-1], 1)


def _shape(view: ModelInfo, value: ir.Value | None) -> Shape | None:
    """Return the shape of a value; a call's result has the shape of its first operand."""
    known = None if value is None else view.shape(value)
    node = producer_of(value)
    is_call = node is not None and node.domain == DOMAIN and node.op_type in SIGNATURES
    if known is not None or node is None or not is_call:
        return known
    first = _shape(view, node.inputs[0])
    scales = SIGNATURES[node.op_type].output is Output.SCALE and value is node.outputs[0]
    return (*first[:-1], 1) if first and scales else first


def reduces_rows(view: ModelInfo, node: ir.Node, rank: int, axes: int = 1) -> bool:
    """Whether a reduction of a tensor of a rank is along its last axes, which are kept."""
    reduced = view.axes(node)
    if reduced is None or not keeps_dims(node):
        return False
    return sorted(axis % rank for axis in reduced) == list(range(rank - axes, rank))


def _mean_square(view: ModelInfo, mean: ir.Node | None) -> tuple[ir.Node, ir.Value] | None:
    """Match the mean of x * x over the last axis; return the product and x."""
    square = _before(mean, "Mul")
    if mean is None or square is None or square.inputs[0] is not square.inputs[1]:
        return None
    x = square.inputs[0]
    if x is None or x.dtype is not ir.DataType.FLOAT or not _of_rows(view, mean.outputs[0], x):
        return None
    return square, x


def _root(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    if operator(node) == "Reciprocal":
        yield from _row_scale(view, node)
    if operator(node) == "Mul":
        yield from _row_epsilon(view, node)


def _inverse_root(
    view: ModelInfo, inverse: ir.Node | None
) -> tuple[list[ir.Node], ir.Value, ir.Value | None] | None:
    """Match 1 / sqrt(mean(x * x) + e) at its Reciprocal; return the nodes, x and e."""
    root = _before(inverse, "Sqrt")
    shifted = _before(root, "Add")
    mean = _before(shifted, "ReduceMean")
    found = _mean_square(view, mean)
    if found is None or inverse is None or root is None or shifted is None or mean is None:
        return None
    return [found[0], mean, shifted, root, inverse], found[1], shifted.inputs[1]


def _row_scale(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    found = _inverse_root(view, node)
    epsilon = None if found is None else view.scalar(found[2])
    if found is None or epsilon is None or epsilon < 0 or float(np.float32(epsilon)) != epsilon:
        return
    nodes, x, _ = found
    scale = node.outputs[0]
    if any(x in use.node.inputs for use in scale.uses()):
        return  # a norm in several operators, not a scale of another's rows
    yield RowFusion(tuple(nodes), "RowScale", (x,), (scale,), epsilon)


def _row_epsilon(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    found = _inverse_root(view, _before(node, "Reciprocal"))
    if found is None:
        return
    nodes, x, rows = found
    if x is not node.inputs[1] or rows is None or not _of_rows(view, rows, x):
        return
    nodes, result, inputs, affine = [*nodes, node], node, [x, rows], Affine.NONE
    for op_type, kind in (("Mul", Affine.SCALE), ("Add", Affine.AFFINE)):
        follower, operand = _follower(view, result.outputs[0], op_type)
        if follower is None or operand is None or (kind is Affine.AFFINE and affine is Affine.NONE):
            break
        nodes.append(follower)
        inputs.append(operand)
        result, affine = follower, kind
    if not ready(inputs, nodes[-1]):
        return
    name = f"RMSNormRowEpsilon{affine}"
    yield RowFusion(tuple(nodes), name, tuple(inputs), (result.outputs[0],))


def _follower(
    view: ModelInfo, value: ir.Value, op_type: str
) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the only reader of a value that joins it with a constant vector of its last axis."""
    node, producer, width = only_reader(value), value.producer(), view.dim(value, -1)
    if node is None or producer is None or operator(node) != op_type:
        return None, None
    if producer.graph is not node.graph:
        return None, None
    others = [operand for operand in node.inputs if operand is not value]
    if len(others) != 1 or others[0] is None or view.tensor(others[0]) is None:
        return None, None
    fits = view.shape(others[0]) == (width,) and others[0].dtype is ir.DataType.FLOAT
    return (node, others[0]) if fits and isinstance(width, int) else (None, None)


def _scaled(view: ModelInfo, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Match x * s, s one number per row; return both."""
    if operator(node) != "Mul":
        return None
    for x, rows in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        if x is not None and rows is not None and _of_rows(view, rows, x):
            return x, rows
    return None


def _product(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    """Match x * s + bias and activations; a product alone is not worth a call."""
    found = _scaled(view, node)
    if found is None:
        return
    nodes, inputs, result, affine = [node], [*found], node, Affine.NONE
    follower, bias = _follower(view, node.outputs[0], "Add")
    if follower is not None and bias is not None:
        nodes, inputs, result, affine = [*nodes, follower], [*inputs, bias], follower, Affine.BIAS
    behind, activation = _activation(result.outputs[0])
    nodes += behind
    if len(nodes) == 1:
        return
    name = op_name(statistics=Statistics.ROW, row_scale=True, affine=affine, activation=activation)
    yield RowFusion(tuple(nodes), name, tuple(inputs), (nodes[-1].outputs[0],))


def _activation(value: ir.Value) -> tuple[list[ir.Node], Activation]:
    readers = [use.node for use in value.uses()]
    if value.is_graph_output():
        return [], Activation.NONE
    if len(readers) == 1:
        node = readers[0]
        if operator(node) == "Relu":
            return [node], Activation.RELU
        if operator(node) == "Gelu":
            tanh = node.attributes.get_string("approximate", "none") == "tanh"
            return [node], Activation.GELU_TANH if tanh else Activation.GELU
    sigmoid = next((node for node in readers if operator(node) == "Sigmoid"), None)
    product = next((node for node in readers if operator(node) == "Mul"), None)
    if len(readers) == 2 and sigmoid is not None and product is not None:
        gate = sigmoid.outputs[0]
        if set(product.inputs) == {value, gate} and only_reader(gate) is product:
            return [sigmoid, product], Activation.SILU
    return [], Activation.NONE


def _sum(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    if node.domain != DOMAIN or node.op_type not in SIGNATURES:
        return
    signature = SIGNATURES[node.op_type]
    if node.op_type == "RowScale":
        yield from _row_scale_of_sum(view, node)
    elif signature.residual and not signature.row_scale and f"{node.op_type}" in _TWINS:
        yield from _scaled_residual(view, node)


_TWINS = {
    name.replace("Scaled", "", 1): name
    for name in SIGNATURES
    if name.startswith(("AddScaled", "AddBiasScaled"))
}


def _row_scale_of_sum(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    total = node.inputs[0]
    addition = producer_of(total)
    if total is None or addition is None or operator(addition) != "Add":
        return
    x, residual = addition.inputs
    same = {_shape(view, value) for value in (x, residual, total) if value is not None}
    shape = _shape(view, total)
    if x is None or residual is None or same != {shape} or shape is None or None in shape:
        return
    if addition.graph is not node.graph:
        return
    products = [value.producer() for value in (x, residual)]
    inputs: tuple[ir.Value, ...] = (x, residual)
    name, nodes = "AddRowScaleWithSum", [addition, node]
    for product, other in zip(products, (residual, x), strict=True):
        found = None if product is None else _scaled(view, product)
        if found is not None and product is not None and is_read_once(product.outputs[0]):
            inputs, name = (found[0], other, found[1]), "AddScaledRowScaleWithSum"
            nodes = [product, addition, node]
            break
    epsilon = node.attributes.get_float("epsilon", 0.0)
    yield RowFusion(tuple(nodes), name, inputs, (node.outputs[0], total), epsilon)


def _scaled_residual(view: ModelInfo, node: ir.Node) -> Iterator[RowFusion]:
    """Match X of a residual call, or its residual if no bias is added to X."""
    signature = SIGNATURES[node.op_type]
    for index in (0,) if signature.linear_bias else (0, 1):
        product = _before(node, "Mul", index)
        found = None if product is None else _scaled(view, product)
        if product is None or found is None or len(node.outputs[0].uses()) == 0:
            continue
        rest = [value for value in node.inputs if value is not None]
        rest.pop(index)
        at = 2 if signature.linear_bias else 1  # row_scale comes after residual and linear_bias
        inputs = (found[0], *rest[:at], found[1], *rest[at:])
        epsilon = node.attributes.get_float("epsilon", 0.0)
        yield RowFusion((product, node), _TWINS[node.op_type], inputs, tuple(node.outputs), epsilon)
        return
