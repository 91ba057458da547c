"""Streams stored without their last channel: their selection, weights, shapes and CRMSNorms."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import Editor, set_input
from onnxfold.graph.model_info import SIZES
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.options import WrittenForm
from onnxfold.passes.base import Settings, named_sites
from onnxfold.passes.places import ReaderRef
from onnxfold.passes.stream_forms import shapes
from onnxfold.passes.stream_forms.plan import CompressionPlan, Shortened
from onnxfold.passes.stream_forms.shapes import names_size, refuse_shape, takes_shape
from onnxfold.passes.stream_forms.stream import follows, stream_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.streams.stream_walk import Stream
from onnxfold.targets.norm_settings import NORM_FORMS, NormForms
from onnxfold.weights.edited import unrounded
from onnxfold.weights.means import rounded_to_sum


def decide(info: ModelInfo, settings: Settings) -> CompressionPlan:
    """Return the streams in which every part can omit a channel, and why others cannot."""
    sites = NORMS.of(info)
    forms = NORM_FORMS.of(info)(settings.target, WrittenForm.AUTO)
    refusals: dict[str, Refusal] = {}
    asked: list[NormSite] = []
    for site in sites:
        if site.kind is NormKind.LAYER_NORM:
            continue  # the reason why it did not fold is known
        why = _refuse_early(site, forms, settings)
        if why is None:
            asked.append(site)
        else:
            refusals[info.ref(site.output)] = why
    transfers = TRANSFERS.of(info)
    norms: dict[ir.Node, NormSite | None] = {node: None for site in sites for node in site.nodes}
    norms |= {node: site for site in asked for node in site.nodes}
    streams: list[Stream] = []
    for site in asked:
        if any(site.output in stream.norms for stream in streams):
            continue
        found = stream_of(info, transfers, Point(site.input, site.fiber), norms)
        if isinstance(found, Stream):
            found = _refuse_unaligned(site, settings) or refuse_shapes(info, found) or found
        if isinstance(found, Refusal):
            refusals[info.ref(site.output)] = found
        else:
            streams.append(found)
    return plan_of(info, streams, refusals, sites)


def _refuse_early(site: NormSite, forms: NormForms, settings: Settings) -> Refusal | None:
    if site.refusal is not None:
        return site.refusal
    if site.kind is not NormKind.RMS_NORM:
        return Refusal(RefusalCode.NOT_CENTRED_NORM, f"{site.kind.value} is no RMSNorm")
    if settings.excludes(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by name")
    return forms.refuse_compressed(site)


def _refuse_unaligned(site: NormSite, settings: Settings) -> Refusal | None:
    """Refuse d - 1 channels that N does not divide: padding to a multiple of N saves nothing."""
    wanted, left = settings.multiple_of, site.fiber.blocks[0].size - 1
    if left % wanted == 0:
        return None
    sentence = f"{left} is not a multiple of {wanted}; padding would restore the original count"
    return Refusal(RefusalCode.UNALIGNED, sentence, (site.input.name or "",))


def _shaped(info: ModelInfo, stream: Stream) -> list[tuple[ir.Node, int]]:
    """Return (node, axis) of nodes that set the stream's shape and name its size."""
    found, channels = [], stream.channels
    for point in stream.values:
        node, (block,) = point.value.producer(), point.fiber.blocks
        if node is None or _follows(info, node, block.axis, channels):
            continue
        if names_size(info, node, block.axis, block.size):
            found.append((node, block.axis))
    return found


def _follows(info: ModelInfo, node: ir.Node, axis: int, channels: Mapping[ir.Value, int]) -> bool:
    """Whether the shape passed to a node has the stream's own number of channels."""
    if not takes_shape(node) or len(node.inputs) < 2:
        return False
    rank, length = info.rank(node.outputs[0]), info.dim(node.inputs[1], 0)
    if rank is None or not isinstance(length, int):
        return False
    position = axis - (rank - length)
    told = SIZES.of(info)(node.inputs[1]) if node.op_type == "Expand" else None
    if told is not None and len(told) == length and position >= 0 and told[position] == 1:
        return True  # as many as its operand
    return follows(info, node.inputs[1], position, channels)


def refuse_shapes(info: ModelInfo, stream: Stream) -> Refusal | None:
    """Return why the shapes passed to a stream cannot follow its size, or None."""
    refusals = (refuse_shape(info, *shaped) for shaped in _shaped(info, stream))
    return next((why for why in refusals if why is not None), None)


def plan_of(
    info: ModelInfo,
    streams: list[Stream],
    refusals: dict[str, Refusal],
    sites: tuple[NormSite, ...],
) -> CompressionPlan:
    """Return the streams as a plan."""

    def shortened(points: list[Point]) -> list[Shortened]:
        return [Shortened(info.ref(p.value), p.fiber.blocks[0].axis) for p in points]

    def ref(node: ir.Node) -> str:
        return info.ref(next(output for output in node.outputs if output.name))

    every = [point for stream in streams for point in stream.entries]
    entering = {
        ReaderRef(ref(reader.node), reader.index)
        for stream in streams
        for point in stream.entries
        for reader in stream.readers.get(point, ())
    }
    compressed = {value for stream in streams for value in stream.norms}
    return CompressionPlan(
        tuple(info.ref(site.output) for site in sites if site.output in compressed),
        tuple(refusals.items()),
        frozenset(info.ref(site.output) for site in sites),
        tuple(shortened([p for stream in streams for p in stream.weights])),
        tuple(shortened([p for stream in streams for p in stream.values])),
        tuple(shortened(every)),
        tuple(sorted(entering)),
        tuple(
            Shortened(ref(node), axis) for stream in streams for node, axis in _shaped(info, stream)
        ),
    )


def apply(edit: Editor, plan: CompressionPlan, settings: Settings) -> None:
    """Remove the last channel of every named stream; norms restore it."""
    values = edit.by_ref()
    sites = named_sites(edit, plan)
    forms = NORM_FORMS.of(edit.info)(settings.target, WrittenForm.AUTO)
    shapes.change_shapes(edit, plan, -1)
    for weight in plan.weights:
        shorten_weight(values[weight.value], weight.axis)
    for stored in plan.values:
        shapes.declare(values[stored.value], stored.axis, -1)
    entries = {
        values[entry.value]: _enter(edit, values[entry.value], entry) for entry in plan.entries
    }
    for reader in plan.entering:
        node = known_producer(values[reader.node])
        operand = node.inputs[reader.index]
        if operand in entries:
            set_input(node, reader.index, entries[operand])
    for site in sites:
        x = entries.get(site.input, site.input)
        edit.stand_in(forms.compressed(site, x), site.last, site.nodes)


def shorten_weight(value: ir.Value, axis: int) -> None:
    """Remove the last element along an axis, which is minus the sum of the others."""

    def kept(tensor: ir.TensorProtocol) -> Array:
        channels = range(tensor.shape.numpy()[axis] - 1)
        if tensor.dtype is ir.DataType.DOUBLE:
            return np.ascontiguousarray(tensor.numpy().take(channels, axis=axis))
        whole = unrounded(tensor).astype(np.float64)
        rest = whole.take(channels, axis=axis)
        rest -= whole.mean(axis=axis, keepdims=True)  # which its roundings have left
        return rounded_to_sum(rest, tensor.dtype.numpy(), axis)

    shapes.resize_weight(value, axis, -1, kept)


def _enter(edit: Editor, value: ir.Value, entry: Shortened) -> ir.Value:
    """Return a value without its last channel, by a Slice after it."""
    name = f"{value.name}.compressed"
    new = NewNodes(edit.info.opset)
    output = shapes.slice_off_last(new, value, entry.axis, name)
    output.name, output.type, new.nodes[0].name = name, value.type, name
    output.shape = None if value.shape is None else value.shape.copy()
    shapes.declare(output, entry.axis, -1)
    edit.insert_behind(value, Lowered.of(new))
    return output
