"""What elementwise operators do that their maps do not say: convert, draw, multiply by zeros."""

from itertools import islice

import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, ModelInfo
from onnxfold.graph.operands import operands
from onnxfold.graph.traversal import reached
from onnxfold.operators.families.transfer import ZeroMean, refuse, unknown_shape
from onnxfold.operators.row import Shapes
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_MOST_OF_A_FUNCTION = 12  # values; a GELU spelled with tanh has nine


def refuse_conversion(view: ModelInfo, node: ir.Node, output: int) -> Refusal | None:
    """Say why a Cast is not followed; between floats, P commutes up to the model's own rounding."""
    del view, output
    source = node.inputs[0]
    if source is None or source.dtype not in FLOATS:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts from a non-floating type")
    if not between_floats(node):
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts to a non-floating type")
    return None


def _target(node: ir.Node) -> ir.DataType | None:
    to = node.attributes.get("to")
    if to is not None and not to.is_ref():
        return ir.DataType(to.as_int())
    like = node.inputs[1] if len(node.inputs) > 1 else None
    return None if like is None else like.dtype


def between_floats(node: ir.Node) -> bool:
    """Whether a Cast or CastLike converts one floating type to another."""
    source, target = node.inputs[0], node.outputs[0]
    known = source is not None and source.dtype in FLOATS
    return known and (_target(node) in FLOATS or target.dtype in FLOATS)


def refuse_training(view: ModelInfo, node: ir.Node, output: int) -> Refusal | None:
    """Say why a Dropout, the identity at inference, is not followed."""
    if output != 0 or trains(view, node):
        return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
    return None


def trains(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Dropout may run in training mode."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is not None and view.scalar(training) != 0.0


def nothing_of(view: ModelInfo, node: ir.Node, output: int) -> ZeroMean | None:
    """Return that 0 * x is 0 whatever x is: zeros of its shape, as graph networks add to."""
    del output
    arrays = (view.array(factor) for factor in node.inputs)
    zeros = any(array is not None and array.size > 0 and not array.any() for array in arrays)
    return ZeroMean() if zeros else None


def refuse_factors(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    """Say why a product or quotient does not carry a fiber."""
    del fiber
    if None in map(view.shape, node.inputs):
        return unknown_shape(node)
    shared = _shared_source(view, node)
    if shared is not None:
        sentence = f"joins two functions of '{shared.name}', which is not linear"
        return refuse(RefusalCode.ACTIVATION, node, sentence)
    sentence = "multiplies or divides by values that vary along the normalized elements"
    return refuse(RefusalCode.VARIES_ALONG_FIBER, node, sentence)


def _shared_source(view: ModelInfo, node: ir.Node) -> ir.Value | None:
    """Return the value from which both operands are computed elementwise, as in a GELU."""
    first, second = (_sources(view, operand) for operand in node.inputs)
    return next((value for value in first if value in second), None)


def _sources(view: ModelInfo, value: ir.Value | None) -> dict[ir.Value, None]:
    """Return a value and the values a few operators upstream that keep or broadcast shapes."""

    def onward(computed: ir.Value) -> list[ir.Value]:
        maker = computed.producer()
        spreads = maker is not None and row_of(maker).shape in (Shapes.SAME, Shapes.BROADCAST)
        return [each for each in operands(maker) if view.tensor(each) is None] if spreads else []

    starts = [] if value is None or view.tensor(value) is not None else [value]
    return dict.fromkeys(islice(reached(starts, onward), _MOST_OF_A_FUNCTION))
