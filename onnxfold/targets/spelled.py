"""The axes of norms as operators have them, and RMSNorms in several operators otherwise.

ONNX Runtime's TransposeOptimizer moves a Transpose towards a downstream one, through the operators
of a spelled-out RMS norm but not through a norm of one operator. The norm is then on another axis.
A session does not fuse that; the transformers optimizer does, over all axes from there on, which
silently changes the output. Source: onnx_transpose_optimization.cc.
"""

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.operands import known_producer, operands, producer_of
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.operators.functions import (
    DOMAIN,
    LAYER_NORMALIZATION_SINCE,
    SIGNATURES,
    Statistics,
)
from onnxfold.operators.new_nodes import NewNodes

_FUSED = frozenset({"Pow", "ReduceMean", "Add", "Sqrt", "Div"})
_ALSO_FUSED = frozenset({"Sub", "Mul", "Cast"})
_NEGATIVE_AXES_SINCE = 11


def is_fused_spelling(site: NormSite) -> bool:
    """Whether ONNX Runtime makes one operator of the operators of a norm.

    It recognizes x / sqrt(..), or x * (1 / sqrt(..)), of Pow(x, 2), followed by gamma or ones, and
    in a LayerNorm by beta; dynamo and deferral write x * Reciprocal(sqrt(..)), jax2onnx x * x, and
    Keras Min(., inf) and Max(., 0) in the root.
    """
    whole = not site.subtracts_mean or (site.gamma is not None and site.beta is not None)
    return whole and {node.op_type for node in site.nodes} - _ALSO_FUSED == _FUSED


def trailing_axes(view: ModelInfo, site: NormSite) -> int | None:
    """Return k if the fiber is the last k whole axes, otherwise None."""
    rank = view.rank(site.input)
    axes = site.fiber.axes
    if rank is None or not site.fiber.whole or not axes:
        return None
    shape = view.shape(site.input) or ()
    # Axes of size 1 are not in a fiber but may be between its axes.
    between = [axis for axis in range(axes[0], rank) if axis not in axes]
    return rank - axes[0] if all(shape[axis] == 1 for axis in between) else None


def adjacent_blocks(view: ModelInfo, site: NormSite) -> tuple[int, int] | None:
    """Return (blocks, size) if the fiber is blocks of adjacent elements on the last axis."""
    rank = view.rank(site.input)
    if rank is None or len(site.fiber.blocks) != 1:
        return None
    (block,) = site.fiber.blocks
    if block.axis != rank - 1 or block.inner != 1 or block.whole or block.outer is None:
        return None
    return block.outer, block.size


def wide_epsilon(site: NormSite) -> bool:
    """Whether epsilon, which may be a sum of two, is not representable as a float32 attribute."""
    rounded = float(np.float32(site.epsilon))
    return site.form is NormForm.DECOMPOSED and rounded != site.epsilon


def spells_axes(site: NormSite) -> bool:
    """Whether a norm in operators may lose its mean, along any whole axes.

    In float16 the squares would overflow.
    """
    spelled = site.form is NormForm.DECOMPOSED and site.affine_axis is None
    return (
        spelled and site.fiber.whole and site.input.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    )


def spelled_rms(new: NewNodes, site: NormSite, x: ir.Value) -> ir.Value:
    """Return x / sqrt(mean(x * x) + epsilon) along the norm's axes, in the type of x.

    The reciprocal comes first; otherwise ONNX Runtime's transformers optimizer raises TypeError.
    """
    dtype = np.float64 if x.dtype is ir.DataType.DOUBLE else np.float32
    epsilon = new.weight(f"{x.name}.epsilon", np.array(site.epsilon, dtype))
    first = len(new.nodes)
    square = new.op("Mul", x, x)
    axes = from_the_end(new, site.fiber.axes, len(site.input.shape or ()))
    mean = new.along("ReduceMean", square, axes, f"{x.name}.axes", keepdims=1)
    root = new.op("Sqrt", new.op("Add", mean, epsilon))
    inverse = new.op("Reciprocal", root)
    y = new.op("Mul", inverse, x)
    dims = enumerate(tuple(site.input.shape or ()))
    rows = [1 if axis in site.fiber.axes else dim for axis, dim in dims]
    for node in new.nodes[first:]:
        node.outputs[0].type = x.type
    for node in new.nodes[first + 1 : -1]:
        node.outputs[0].shape = ir.Shape(rows)
    return y


def from_the_end(new: NewNodes, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes that stay valid if others precede them, as far as operators support it."""
    return [axis - rank if new.opset >= _NEGATIVE_AXES_SINCE else axis for axis in axes]


def reads_only_centred(site: NormSite) -> bool:
    """Whether the norm reads x only through x - mean(x), so that without it no mean is left.

    A variance E[x^2] - E[x]^2 would stay as it is.
    """
    own = set(site.nodes)
    before = {known_producer(value) for value in site.centred}
    waiting = [operand for node in before for operand in node.inputs]
    values = {site.input}
    while waiting:
        value = waiting.pop()
        node = producer_of(value)
        if value is not None and node in own and node not in before:
            before.add(node)
            values.add(value)
            waiting += node.inputs
    return all(use.node in before for value in values for use in value.uses() if use.node in own)


_ALL_OPERANDS = frozenset(
    "Add And BitShift Concat Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul"
    " Or PRelu Pow Sub Sum Where Xor".split()
)
_FIRST_OPERAND = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear"
    " Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Log"
    " LogSoftmax Neg Not Pad QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum"
    " ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu"
    " Resize Round Selu Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Split Sqrt"
    " Squeeze Tan Tanh ThresholdedRelu Tile Unsqueeze".split()
)


def turned_norms(info: ModelInfo, outputs: Collection[ir.Value]) -> frozenset[ir.Value]:
    """Return the norms, by output, that must stay one operator.

    ``outputs`` belong to norms that are now one operator and would be spelled out. A norm that
    stays blocks a Transpose, so that the norms after it need not.
    """
    _, stopping = _between(info, outputs)
    return frozenset(stopping)


def turned_values(info: ModelInfo) -> frozenset[ir.Value]:
    """Return the results of operators through which Transposes are moved, in the current model."""
    turned, _ = _between(info, ())
    return frozenset(turned)


def _between(info: ModelInfo, outputs: Collection[ir.Value]) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return the values transposed on the way to a Transpose, and the ``outputs`` that block it."""
    nodes = list(info.nodes())
    leading = _leading(info, nodes, outputs)
    turned: set[ir.Value] = set()
    stopping: set[ir.Value] = set()
    for node in nodes:
        if node.op_type == "Transpose":
            turned.update(node.outputs)
        elif _is_moved(info, _moved_through(info, node, outputs), turned):
            stops = leading & set(outputs) & set(node.outputs)
            stopping |= stops
            turned |= set(node.outputs) - stops
    return turned & leading, stopping


def _leading(info: ModelInfo, nodes: list[ir.Node], outputs: Collection[ir.Value]) -> set[ir.Value]:
    """Return the values that a Transpose follows."""
    leading: set[ir.Value] = set()
    for node in reversed(nodes):
        if node.op_type == "Transpose":
            leading.update(value for value in node.inputs[:1] if value is not None)
        elif leading & set(node.outputs):
            leading.update(_moved_through(info, node, outputs))
    return leading


def _moved_through(info: ModelInfo, node: ir.Node, outputs: Collection[ir.Value]) -> list[ir.Value]:
    """Return the inputs whose Transposes can move past a node."""
    norm = any(output in outputs for output in node.outputs)
    spelled = SIGNATURES.get(node.op_type) if node.domain == DOMAIN else None
    if spelled is not None and _is_spelled(spelled.statistics, info.opset):
        return [value for value in node.inputs[: 1 + spelled.residual] if value is not None]
    if node.domain not in ("", "ai.onnx") and not norm:
        return []
    if norm or node.op_type in _FIRST_OPERAND:
        return [value for value in node.inputs[:1] if value is not None]
    if node.op_type in _ALL_OPERANDS:
        return operands(node)
    return []


def _is_spelled(statistics: Statistics, opset: int) -> bool:
    """Whether the body of a call is several operators, unless that was requested."""
    return statistics is not Statistics.LAYER or opset < LAYER_NORMALIZATION_SINCE


def _is_moved(info: ModelInfo, operands: list[ir.Value], turned: set[ir.Value]) -> bool:
    """Whether fewer axes are transposed if Transposes are removed from ``operands``, not added."""
    if turned.isdisjoint(operands):
        return False
    cost = 0
    for value in operands:
        if info.tensor(value) is None:
            rank = info.rank(value) or 0  # an unknown rank blocks no Transpose
            cost += -max(rank, 1) if value in turned else rank
    return cost < 0
