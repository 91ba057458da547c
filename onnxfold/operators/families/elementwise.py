"""Elementwise operators: sums, scalings by factors constant along the fiber, and masks."""

from dataclasses import dataclass
from itertools import islice

import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, ModelInfo, whole_axes
from onnxfold.graph.operands import operands
from onnxfold.graph.reached import reached
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    ZeroMean,
    along_broadcast,
    broken,
    constant_along,
    refuse,
    unknown_shape,
)
from onnxfold.operators.row import Shapes
from onnxfold.operators.table import row_of
from onnxfold.refusal import RefusalCode

_MOST_OF_A_FUNCTION = 12  # values; a GELU spelled with tanh has nine


def _carry(
    view: ModelInfo, node: ir.Node, output: int, fiber: Fiber, indices: tuple[int, ...]
) -> Backward:
    """Carry the fiber into each operand of an operator that broadcasts."""
    result = view.shape(node.outputs[output])
    carried = []
    for index in indices:
        operand = view.shape(node.inputs[index])
        if result is None or operand is None:
            return unknown_shape(node)
        inner = along_broadcast(fiber, result, operand)
        if inner is None:
            return unknown_shape(node)
        carried.append((index, inner))
    return Carried(tuple(carried))


def _broadcast_forward(view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
    result, operand = view.shape(node.outputs[0]), view.shape(node.inputs[index])
    if result is None or operand is None:
        return None
    offset = len(result) - len(operand)
    if fiber.blocks:
        return ((0, fiber.shifted(offset)),)
    # A set of one element: any change is constant along every axis that broadcasting adds.
    added = [
        axis
        for axis, dim in enumerate(result)
        if isinstance(dim, int) and (axis < offset or operand[axis - offset] == 1)
    ]
    everywhere = whole_axes(result, added)
    return None if everywhere is None else ((0, everywhere),)


@dataclass(frozen=True, slots=True)
class Additive:
    """Sums with fixed signs: P(a + b) = P a + P b."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return _carry(view, node, output, fiber, tuple(range(len(node.inputs))))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return _broadcast_forward(view, node, index, fiber)


@dataclass(frozen=True, slots=True)
class Cast:
    """A change of the floating type: commutes with P up to the model's rounding."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        source, target = node.inputs[0], node.outputs[0]
        if source is None or source.dtype not in FLOATS:
            return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts from a non-floating type")
        if _target(node) not in FLOATS and target.dtype not in FLOATS:
            return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts to a non-floating type")
        return Carried(((0, fiber),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),) if index == 0 else ()  # CastLike reads only the type of its second


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


@dataclass(frozen=True, slots=True)
class Dropout:
    """The identity at inference; in training mode nothing is known."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if output != 0 or trains(view, node):
            return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
        return Carried(((0, fiber),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),) if index == 0 else None


def trains(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Dropout may run in training mode."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is not None and view.scalar(training) != 0.0


@dataclass(frozen=True, slots=True)
class Scaled:
    """Products or quotients with a factor s constant along the fiber: P(s * x) = s * P x.

    0 * x is 0 whatever x is: zeros of its shape, to which graph networks add.
    """

    division: bool = False

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        result = view.shape(node.outputs[output])
        shapes = [view.shape(operand) for operand in node.inputs]
        if result is None or len(shapes) != 2 or None in shapes:
            return unknown_shape(node)
        for index in (0,) if self.division else (0, 1):
            other = shapes[1 - index]
            if self._is_nothing(view, node, index):
                return ZeroMean()
            if other is not None and constant_along(fiber, result, other):
                return _carry(view, node, output, fiber, (index,))
        shared = _shared_source(view, node)
        if shared is not None:
            sentence = f"joins two functions of '{shared.name}', which is not linear"
            return refuse(RefusalCode.ACTIVATION, node, sentence)
        return refuse(
            RefusalCode.VARIES_ALONG_FIBER,
            node,
            "multiplies or divides by values that vary along the normalized elements",
        )

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if self._is_nothing(view, node, index):
            return ()
        return _broadcast_forward(view, node, index, fiber)

    def _is_nothing(self, view: ModelInfo, node: ir.Node, index: int) -> bool:
        """Whether a factor is multiplied by zeros."""
        zeros = None if self.division else view.array(node.inputs[1 - index])
        return zeros is not None and zeros.size > 0 and not zeros.any()


def factors_behind(view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Fiber | None:
    """Return the fiber of an operand in the product, if no element of it is broadcast."""
    result, operand = view.shape(node.outputs[0]), view.shape(node.inputs[index])
    if result is None or operand is None:
        return None
    outer = fiber.shifted(len(result) - len(operand))
    return outer if along_broadcast(outer, result, operand) == fiber else None


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


@dataclass(frozen=True, slots=True)
class Masked:
    """Where with a mask constant along the fiber: P where(m, a, b) = where(m, P a, P b)."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        result, mask = view.shape(node.outputs[output]), view.shape(node.inputs[0])
        if result is None or mask is None:
            return unknown_shape(node)
        if not constant_along(fiber, result, mask):
            return broken(node, fiber)
        return _carry(view, node, output, fiber, (1, 2))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return None if index == 0 else _broadcast_forward(view, node, index, fiber)
