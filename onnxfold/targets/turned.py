"""Norms through which ONNX Runtime moves Transposes if they are spelled out.

Its TransposeOptimizer moves a Transpose towards a downstream one, through the operators of a
spelled-out RMS norm but not through a norm of one operator. The norm is then on another axis. A
session does not fuse that; the transformers optimizer does, over all axes from there on, which
silently changes the output. Source: onnx_transpose_optimization.cc.
"""

from collections.abc import Collection

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.operands import operands
from onnxfold.operators.functions import (
    DOMAIN,
    LAYER_NORMALIZATION_SINCE,
    SIGNATURES,
    Statistics,
)

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
