"""Walk from a norm's result to the linear layers that read it; every one must be found.

    (E w) A = w (E' A),   E' A = A[:-1] - A[-1]        for y = E w, a vector of sum 0
    y[:-1] B = y (B and a row of 0)                    for any y

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader, node_label, operator
from onnxfold.graph.channels import Channels
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.reactions import Absorbs, before_layout, react
from onnxfold.operators.families.transfer import Backward, refuse
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.table import row_of
from onnxfold.passes.stream_forms.stream import ResizingWalk
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.weights.narrow import refuse_narrow


@dataclass(frozen=True, slots=True)
class LinearReader:
    """A weight, the axis over which it is multiplied, and layouts of it with theirs."""

    root: EditPlace
    axis: int
    layouts: tuple[tuple[ir.Value, int], ...]


class ReadersWalk(ResizingWalk):
    """Walk over the nodes between norms and linear layers; norms compute ``starts``."""

    def __init__(
        self,
        info: ModelInfo,
        transfers: ModelTransfers,
        norms: Mapping[ir.Node, NormSite | None],
        starts: Collection[ir.Value],
    ):
        super().__init__(info, transfers, norms)
        self._allowed = starts
        self.layers: list[LinearReader] = []

    @property
    def starts(self) -> list[ir.Value]:
        """Return the results of norms."""
        return [point.value for point in self.stream.starts]

    def backward(self, point: Point) -> Refusal | None:
        """End at the result of a norm."""
        if point.value not in self._allowed:
            return super().backward(point)
        self.stream.starts.append(point)
        return None

    def enters(self, point: Point, origin: Backward) -> bool:
        """Whether another value may enter: no, it would need a separate operator."""
        del point, origin
        return False

    def ends(self, point: Point, site: NormSite) -> bool:
        """Whether a norm ends the walk: no, none reads fewer than all channels of another."""
        del point, site
        return False

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Accept a linear layer, or an operator that passes its channels on."""
        producer = point.value.producer()
        if producer is not None and reader.node.graph is not producer.graph:
            return refuse(RefusalCode.BODY_BORDER, reader.node, "reads it from inside a body")
        (block,) = point.fiber.blocks
        channels = Channels.along([(block.axis, block.size)])
        reaction = react(self.info, reader.node, reader.index, channels)
        if not isinstance(reaction, Absorbs):
            return super().read(point, reader)
        if len(reaction.layers) > 1 or facets.same_shape(row_of(reader.node)):
            return refuse(
                RefusalCode.EXACT_READER, reader.node, "gives as many channels as it reads"
            )
        found = _layer(self.info, reader.node, reaction.layers[0])
        if isinstance(found, Refusal):
            return found
        self.layers.append(found)
        return None


def _layer(info: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer) -> LinearReader | Refusal:
    """Return the weight of a linear layer, or why it cannot have another number of rows."""
    root = root_of(info, Reader(node, absorbs.weight), absorbs.channels, absorbs.outer)
    if isinstance(root, Refusal):
        return root
    axis = _own_axis(root.channels)
    layouts = _layouts(info, node.inputs[absorbs.weight], absorbs.channels)
    if axis is None or layouts is None:
        sentence = f"{operator(node)} '{node_label(node)}' has its channels in parts of an axis"
        return Refusal(RefusalCode.FIBER_BROKEN, sentence, (node_label(node),))
    if root.value.is_graph_output():
        sentence = f"weight '{root.value.name}' is an output"
        return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (root.value.name or "",))
    return refuse_narrow(info, root.value) or LinearReader(root, axis, layouts)


def _own_axis(channels: Channels) -> int | None:
    digits = channels.digits
    return digits[0].axis if len(digits) == 1 and digits[0].whole else None


def _layouts(
    info: ModelInfo, value: ir.Value | None, channels: Channels
) -> tuple[tuple[ir.Value, int], ...] | None:
    """Return the values between a weight and its reader; None if one of their shapes is fixed."""
    found: list[tuple[ir.Value, int]] = []
    while value is not None and info.tensor(value) is None:
        node, axis = value.producer(), _own_axis(channels)
        back = before_layout(info, value, channels)
        if node is None or back is None or axis is None or facets.reshapes(row_of(node)):
            return None
        found.append((value, axis))
        value, channels = back
    return tuple(found)
