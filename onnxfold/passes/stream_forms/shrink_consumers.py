"""Norms that write d - 1 channels, because only linear layers read all: (E w) A = w (E' A).

Walk from a norm's result to the linear layers that read it; every one must be found.

    (E w) A = w (E' A),   E' A = A[:-1] - A[-1]        for y = E w, a vector of sum 0
    y[:-1] B = y (B and a row of 0)                    for any y

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader, whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import Editor, redirect, sweep
from onnxfold.graph.operands import known_operand, known_producer
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.reactions import Passes, before_layout, react
from onnxfold.operators.families.transfer import Backward, refuse
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.functions import DOMAIN, SIGNATURES, Affine, Statistics, call, op_name
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.stream_forms import shapes
from onnxfold.passes.stream_forms.compress import plan_of, refuse_shapes, shorten_weight
from onnxfold.passes.stream_forms.decompress import lengthen_weight, sliced_from
from onnxfold.passes.stream_forms.plan import ReadersPlan, Shortened
from onnxfold.passes.stream_forms.stream import ResizingWalk
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS, ModelTransfers, Point
from onnxfold.target import Target
from onnxfold.weights.edited import unrounded
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
        if isinstance(reaction, (Passes, Refusal)) or not reaction:
            return super().read(point, reader)
        if len(reaction) > 1 or facets.same_shape(row_of(reader.node)):
            return refuse(
                RefusalCode.EXACT_READER, reader.node, "gives as many channels as it reads"
            )
        found = _layer(self.info, reader.node, reaction[0])
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
        return refuse(RefusalCode.FIBER_BROKEN, node, "has its channels in parts of an axis")
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


def decide(info: ModelInfo, settings: Settings) -> ReadersPlan:
    """Return the CRMSNorms that can write just the channels they read, and why others cannot."""
    del settings
    refusals: dict[str, Refusal] = {}
    starts: list[ir.Value] = []
    for node in info.nodes():
        if is_full(node):
            output = node.outputs[0]
            if _has_affine(info, node):
                sentence = (
                    f"norm '{node.name}' has a gamma or beta that no downstream layer absorbed"
                )
                why = Refusal(RefusalCode.AFFINE_NORM_OUTPUT, sentence, (node.name or "",))
                refusals[info.ref(output)] = why
            else:
                starts.append(output)
    return _plan(info, starts, refusals, more=-1)


def decide_back(info: ModelInfo, settings: Settings) -> ReadersPlan:
    """Return the values y[:-1] of norms for which linear layers can also read y."""
    sites = [site for site in NORMS.of(info) if site.kind is NormKind.RMS_NORM and site.size]
    kept = [site.output for site in sites if not settings.excludes(site.name)]
    starts = [
        reader.node.outputs[0]
        for output in dict.fromkeys(kept)
        for reader in info.readers(output)
        if _takes_last_away(info, reader)
    ]
    return _plan(info, starts, {}, more=1)


def is_full(node: ir.Node) -> bool:
    """Whether a node is a CRMSNorm that writes one channel more than it reads."""
    known = node.domain == DOMAIN and node.op_type in SIGNATURES
    return known and SIGNATURES[node.op_type].statistics is Statistics.CRMS_FULL


def _has_affine(info: ModelInfo, node: ir.Node) -> bool:
    """Whether a CRMSNorm multiplies by another scale than ones, or adds a bias."""
    parts = [info.array(operand) for operand in node.inputs[1:2]]
    return len(node.inputs) > 2 or not all(part is not None and np.all(part == 1) for part in parts)


def _takes_last_away(info: ModelInfo, reader: Reader) -> bool:
    point = _point(info, reader.node.outputs[0])
    return point is not None and sliced_from(info, point) is not None


def _point(info: ModelInfo, value: ir.Value) -> Point | None:
    shape = info.shape(value)
    fiber = whole_axes(shape, [len(shape) - 1]) if shape else None
    return None if fiber is None else Point(value, fiber)


def _plan(
    info: ModelInfo, starts: Iterable[ir.Value], refusals: dict[str, Refusal], *, more: int
) -> ReadersPlan:
    sites, wanted = NORMS.of(info), tuple(starts)
    norms: dict[ir.Node, NormSite | None] = {node: None for site in sites for node in site.nodes}
    for start in wanted:
        norms.pop(start.producer(), None)  # type: ignore[arg-type]
    transfers = TRANSFERS.of(info)
    walks: list[ReadersWalk] = []
    for start in wanted:
        point = _point(info, start)
        if point is None or any(start in walk.starts for walk in walks):
            continue
        walk = ReadersWalk(info, transfers, norms, wanted)
        why = walk.run(point) or refuse_shapes(info, walk.stream) or _refuse_shared(info, walk)
        if why is None:
            walks.append(walk)
        else:
            refusals[info.ref(start)] = why
    layers = [layer for walk in walks for layer in walk.layers]
    return ReadersPlan(
        tuple(info.ref(start) for walk in walks for start in walk.starts),
        tuple(refusals.items()),
        frozenset(info.ref(site.output) for site in sites),
        plan_of(info, [walk.stream for walk in walks], {}, sites),
        tuple(dict.fromkeys(Shortened(info.ref(x.root.value), x.axis) for x in layers)),
        tuple(dict.fromkeys(Shortened(info.ref(v), a) for x in layers for v, a in x.layouts)),
        more,
    )


def _refuse_shared(info: ModelInfo, walk: ReadersWalk) -> Refusal | None:
    """Name a weight that another node reads too, or that is read along two axes, or return None."""
    by_weight: dict[ir.Value, list[LinearReader]] = defaultdict(list)
    for layer in walk.layers:
        by_weight[layer.root.value].append(layer)
    own = {point.value for point in walk.stream.weights}
    for weight, layers in by_weight.items():
        readers = {(layer.root.reader.node, layer.root.reader.index) for layer in layers}
        others = [r for r in info.readers(weight) if (r.node, r.index) not in readers]
        if others or len({layer.axis for layer in layers}) > 1 or weight in own:
            name = weight.name or ""
            sentence = f"weight '{name}' has other readers that need all of its rows"
            return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (name,))
    return None


def apply(edit: Editor, plan: ReadersPlan, settings: Settings) -> None:
    """Make norms write, and linear layers read, one channel fewer, or again all."""
    values = edit.by_ref()
    shapes.change_shapes(edit, plan.between, plan.more)
    for layer in plan.layers:
        _change_layer(values[layer.value], layer.axis, plan.more)
    for weight in plan.between.weights:
        resize = shorten_weight if plan.more < 0 else lengthen_weight
        resize(values[weight.value], weight.axis)
    for stored in (*plan.between.values, *plan.layouts):
        shapes.declare(values[stored.value], stored.axis, plan.more)
    for start in plan.norms:
        if plan.more < 0:
            _shorten_norm(edit, values[start], settings.target)
        else:
            _read_all(values[start])


def _change_layer(value: ir.Value, axis: int, more: int) -> None:
    """Store E' A, computed in float64 and rounded once, or A and a row of 0."""

    def less(tensor: ir.TensorProtocol) -> Array:
        wide = unrounded(tensor).astype(np.float64)
        rest, last = np.split(wide, [wide.shape[axis] - 1], axis=axis)
        return np.asarray((rest - last).astype(tensor.dtype.numpy()))

    def padded(tensor: ir.TensorProtocol) -> Array:
        array = tensor.numpy()
        return np.concatenate([array, np.zeros_like(array.take([0], axis=axis))], axis=axis)

    shapes.resize_weight(value, axis, more, less if more < 0 else padded)


def _shorten_norm(edit: Editor, value: ir.Value, target: Target) -> None:
    """Make a CRMSNorm write only as many channels as it reads, as a call or by a Slice after it.

    ONNX Runtime fuses a spelled-out norm only if it writes all channels.
    """
    node = known_producer(value)
    x = known_operand(node, 0)
    epsilon, new = node.attributes.get_float("epsilon", 0.0), NewNodes(edit.info.opset)
    if target.traits.calls:
        name = op_name(statistics=Statistics.CRMS, affine=Affine.NONE)
        result = new.add(call(name, [x], epsilon=epsilon))
    else:
        full = new.add(ir.node(node.op_type, node.inputs, node.attributes, domain=node.domain))
        full.name, full.shape, full.type = f"{value.name}.all", value.shape, value.type
        result = shapes.slice_off_last(new, full, -1, f"{node.name}.short")
        new.nodes[-1].name = f"{node.name}.short"
    new.nodes[0].name = node.name
    axis = (len(value.shape) if value.shape is not None else 0) - 1
    edit.stand_in(Lowered.of(new, (value, result)), node, (node,))
    shapes.declare(result, axis, -1)


def _read_all(value: ir.Value) -> None:
    """Make all readers of y[:-1] read y."""
    node = known_producer(value)
    redirect(value, known_operand(node, 0))
    sweep([node])
