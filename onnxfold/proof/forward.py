"""The forward walk of a proof: every value of the original and what stands for it.

What a rewriting may do to a node is told by a subclass; here is what all have in common: values
by name, constants by their numbers, nodes by operator and attributes, and that an output of a
graph must end equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.graph.channels import Channels
from onnxfold.graph.compare import pairs, same_attributes, same_default, same_tensor
from onnxfold.passes.affine.transfer import Passes

__all__ = ["Failed", "ForwardChecker", "Image", "vector_over"]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """The value that stands for u: equal where ``channels`` is None, else u = r * v + s.

    ``weight``: a changed constant or a layout of one; only a linear reader may read it.
    """

    value: ir.Value
    channels: Channels | None = None
    r: Float64 | None = None
    s: Float64 | None = None
    weight: bool = False

    @property
    def equal(self) -> bool:
        return self.channels is None and not self.weight


class Failed(Exception):  # noqa: N818  # ends the check of one node
    """Why a node's output cannot be related."""


class ForwardChecker:
    """Relates the values of two models; ``_alias`` names what stands for a value that is gone."""

    def __init__(self, before: ModelInfo, after: ModelInfo):
        self._before, self._after = before, after
        self._new = after.by_ref()
        self._images: dict[ir.Value, Image] = {}
        self._alias: dict[ir.Value, str] = {}
        self._gone: set[ir.Node] = set()
        self.failures: list[str] = []

    def _relate_special(self, node: ir.Node, twin: ir.Node) -> bool:
        """Relate a node that the rewriting has changed by itself; False: it has not."""
        return False

    def _relate_removed(self, node: ir.Node) -> None:
        """Relate a node that has no twin, or raise Failed."""
        raise Failed("is gone or is another operator")

    def _relate_changed(self, node: ir.Node, twin: ir.Node) -> None:
        """Relate a node that reads changed constants or values, or raise Failed."""
        raise Failed("reads what has changed")

    def walk(self) -> None:
        """Relate every value of the original, then judge the outputs of all graphs."""
        for graph in self._before.graphs:
            for value in (*graph.inputs, *graph.initializers.values()):
                self._relate_source(value)
            for node in graph:
                try:
                    self._relate(node)
                except Failed as failed:
                    self.failures.append(f"node '{node_label(node)}': {failed}")
                    return  # everything behind it would fail as well
            for output in graph.outputs:
                image = self._images.get(output)
                twin = self._new.get(self._before.ref(output))
                if image is None or not image.equal or image.value is not twin:
                    self.failures.append(f"output '{output.name}' is not what it was")
        if len(self._before.model.graph.outputs) != len(self._after.model.graph.outputs):
            self.failures.append("the number of outputs has changed")

    def _relate_source(self, value: ir.Value) -> None:
        twin = self._new.get(self._before.ref(value))
        if twin is None:
            return  # a constant that nothing reads any more; else its reader fails
        self._images[value] = self._image_of_constant(value, twin)

    def _image_of_constant(self, old: ir.Value, new: ir.Value) -> Image:
        first, second = self._before.tensor(old), self._after.tensor(new)
        if (first is None) != (second is None):
            raise Failed(f"'{old.name}' is a constant in one model only")
        if old.is_graph_input() and not same_default(old, new):
            self.failures.append(f"input '{old.name}' has another default than before")
        if first is None or second is None or first is second or same_tensor(first, second):
            return Image(new)
        return Image(new, weight=True)

    def _relate(self, node: ir.Node) -> None:
        twin = self._twin(node)
        if twin is None:
            self._relate_removed(node)
            return
        if node.op_type == "Constant" and node.domain == "":
            self._images[node.outputs[0]] = self._image_of_constant(
                node.outputs[0], twin.outputs[0]
            )
            return
        if not same_attributes(node, twin):
            raise Failed("has other attributes")
        if self._relate_special(node, twin):
            return
        if all(self._unchanged(*pair) for pair in pairs(node, twin)):
            for old, new in zip(node.outputs, twin.outputs, strict=True):
                self._images[old] = Image(new)
        elif self._is_layout_of_weight(node, twin):
            self._images[node.outputs[0]] = Image(twin.outputs[0], weight=True)
        else:
            self._relate_changed(node, twin)

    def _twin(self, node: ir.Node) -> ir.Node | None:
        """Return the node of the rewritten model that does the same, by what it computes."""
        if node in self._gone:
            return None
        output = node.outputs[0]
        new = self._new.get(self._alias.get(output, self._before.ref(output)))
        producer = None if new is None else new.producer()
        if producer is None or producer.op_identifier() != node.op_identifier():
            return None
        aliased = output in self._alias
        return None if not aliased and self._is_alias(producer.outputs[0], node) else producer

    def _is_alias(self, new: ir.Value, node: ir.Node) -> bool:
        ref = self._after.ref(new)
        return any(ref == name and old is not node.outputs[0] for old, name in self._alias.items())

    def _unchanged(self, old: ir.Value | None, new: ir.Value | None) -> bool:
        if old is None or new is None:
            return old is new
        image = self._images.get(old)
        if image is not None and image.equal and image.value is new:
            return True
        first, second = self._before.tensor(old), self._after.tensor(new)
        return first is not None and second is not None and same_tensor(first, second)

    def _copied(self, old: ir.Value | None, new: ir.Value | None) -> bool:
        """Whether both are constants: what became of a copied one is checked where it is read."""
        return self._before.tensor(old) is not None and self._after.tensor(new) is not None

    def _is_layout_of_weight(self, node: ir.Node, twin: ir.Node) -> bool:
        """Whether only the first input is a changed constant, and the rest is unchanged."""
        first, *rest = pairs(node, twin)
        image = None if first[0] is None else self._images.get(first[0])
        return (
            image is not None
            and ((image.weight and image.value is first[1]) or self._copied(*first))
            and len(node.outputs) == 1
            and all(self._unchanged(*pair) for pair in rest)
        )

    def _numbers(self, image: Image, channels: Channels) -> tuple[Float64, Float64]:
        if image.channels is None or image.r is None or image.s is None:
            return np.ones(channels.size), np.zeros(channels.size)
        if image.channels != channels:
            raise Failed("works along other channels than the change before it")
        return image.r, image.s

    def _pass_on(
        self,
        node: ir.Node,
        twin: ir.Node,
        related: dict[int, Image],
        image: Image,
        passes: Passes,
    ) -> None:
        if set(passes.jointly) != set(related):
            raise Failed("joins a changed value with others")
        for other in related.values():
            if other.channels != image.channels or not _equal(other, image):
                raise Failed("joins values that changed in different ways")
        if passes.shift_refusal is not None and image.s is not None and np.any(image.s):
            raise Failed(f"sees a shift: {passes.shift_refusal.sentence}")
        for index, pair in enumerate(pairs(node, twin)):
            if index not in related and not self._unchanged(*pair):
                raise Failed("reads a constant that has changed")
        for position, channels in passes.outputs:
            new = twin.outputs[position]
            self._images[node.outputs[position]] = Image(new, channels, image.r, image.s)


def vector_over(array: Array, channels: Channels, rank: int) -> Float64:
    """Return a constant that broadcasts against a tensor as a vector over its channels."""
    aligned = array.reshape((1,) * (rank - array.ndim) + array.shape)
    axes = {digit.axis: digit.size for digit in channels.digits}
    sizes = tuple(axes.get(axis, 1) for axis in range(rank))
    if not all(digit.whole for digit in channels.digits) or any(
        dim not in (1, size) for dim, size in zip(aligned.shape, sizes, strict=True)
    ):
        raise Failed("has a constant that varies along other axes than the change")
    order = channels.spread(np.arange(channels.size, dtype=np.float64), sizes).astype(np.int64)
    result = np.empty(channels.size)
    result[order.reshape(-1)] = np.broadcast_to(aligned, sizes).astype(np.float64).reshape(-1)
    return result


def _equal(a: Image, b: Image) -> bool:
    if a.r is None or a.s is None or b.r is None or b.s is None:
        return False
    return np.array_equal(a.r, b.r) and np.array_equal(a.s, b.s)
