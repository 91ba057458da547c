"""New nodes, each reading others' results, the weights that they read, and what they replace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

AttributeValue: TypeAlias = ir.Attr | ir.TensorProtocol | int | float | Sequence[int]

# The opset from which on an operator reads its axes, which are an attribute before.
_AXES_ARE_INPUTS_SINCE = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
_OTHERS_SINCE = 18


class NewNodes:
    """Nodes in order, in no graph yet, spelled for one opset; ``weights`` are new constants."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue) -> ir.Value:
        """Add a node of a standard operator, and return its output."""
        return self.add(ir.node(op_type, inputs, attributes))

    def add(self, node: ir.Node) -> ir.Value:
        """Add a node, and return its first output."""
        self.nodes.append(node)
        return node.outputs[0]

    def weight(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        """Add a weight."""
        self.weights.append(weight_value(name, array))
        return self.weights[-1]

    def integers(self, name: str, numbers: Sequence[int]) -> ir.Value:
        """Add a vector of axes, sizes or positions."""
        return self.weight(name, np.array(numbers, np.int64))

    def cast(self, x: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Return x in a type, possibly its own."""
        if dtype is None or x.dtype == dtype:
            return x
        result = self.op("Cast", x, to=dtype.value)
        result.type, result.shape = ir.TensorType(dtype), x.shape
        return result

    def along(
        self,
        op_type: str,
        x: ir.Value,
        axes: Sequence[int],
        name: str,
        **attributes: AttributeValue,
    ) -> ir.Value:
        """Add an operator along axes of x; ``name`` names the weight with the axes."""
        if self.opset < _AXES_ARE_INPUTS_SINCE.get(op_type, _OTHERS_SINCE):
            return self.op(op_type, x, axes=list(axes), **attributes)
        return self.op(op_type, x, self.integers(name, axes), **attributes)


def weight_value(name: str, array: npt.NDArray[np.generic]) -> ir.Value:
    """Return a new initializer that is not yet in a graph."""
    tensor = ir.Tensor(array, name=name)
    return ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )


@dataclass(frozen=True, slots=True)
class Lowered:
    """New nodes in order, and the value that each of their results replaces."""

    nodes: tuple[ir.Node, ...]
    stands_for: tuple[tuple[ir.Value, ir.Value], ...]  # (old, new)
    initializers: tuple[ir.Value, ...] = ()

    @staticmethod
    def of(new: NewNodes, *stands_for: tuple[ir.Value, ir.Value]) -> "Lowered":
        """Return a replacement by nodes with all their weights."""
        return Lowered(tuple(new.nodes), stands_for, tuple(new.weights))
