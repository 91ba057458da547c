"""Streams that get their last channel back: those upstream of E v = Concat(v, -sum(v)).

    A u + b becomes x = E v with E A and E b, whose last row is minus the sum of the others

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader, operator, whole_axes
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import Editor, redirect, sweep
from onnxfold.graph.operands import producer_of
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.norms.completed import completed_part
from onnxfold.operators.families.transfer import Backward
from onnxfold.passes.base import Settings, named_sites
from onnxfold.passes.stream_forms.compress import plan_of, refuse_shapes
from onnxfold.passes.stream_forms.plan import CompressionPlan
from onnxfold.passes.stream_forms.shapes import change_shapes, declare, resize_weight
from onnxfold.passes.stream_forms.stream import ResizingWalk
from onnxfold.refusal import Refusal
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.streams.stream_walk import Stream, StreamWalk


def decide(info: ModelInfo, settings: Settings) -> CompressionPlan:
    """Return the streams of CRMSNorms that can have all channels, and why others cannot."""
    sites = NORMS.of(info)
    joined: dict[ir.Node, NormSite | None] = {}
    starts: list[tuple[NormSite, Point]] = []
    for site in sites:
        start = _start(info, site)
        if start is not None and not settings.excludes(site.name):
            starts.append((site, start))
            joined |= {reader.node: site for reader in _completing(info, site, start)}
    transfers = TRANSFERS.of(info)
    streams: list[Stream] = []
    refusals: dict[str, Refusal] = {}
    for site, start in starts:
        if any(site.output in stream.norms for stream in streams):
            continue
        walk = _LengtheningWalk(info, transfers, joined)
        why = walk.run(start) or refuse_shapes(info, walk.stream)
        if why is None:
            streams.append(walk.stream)
        else:
            refusals[info.ref(site.output)] = why
    return plan_of(info, streams, refusals, sites)


def _start(info: ModelInfo, site: NormSite) -> Point | None:
    """Return v of a norm of E v, and its channels."""
    if site.kind is not NormKind.RMS_NORM or site.refusal is not None:
        return None
    v = completed_part(info, site.input, site.fiber)
    shape = None if v is None else info.shape(v)
    fiber = None if shape is None else whole_axes(shape, site.fiber.axes)
    return None if v is None or fiber is None else Point(v, fiber)


def _completing(info: ModelInfo, site: NormSite, start: Point) -> list[Reader]:
    """Return the readers of v that compute E v: the Concat and the sum."""
    joined = site.input.producer()
    negated = None if joined is None else producer_of(joined.inputs[1])
    nodes = {joined, None if negated is None else producer_of(negated.inputs[0])}
    return [reader for reader in info.readers(start.value) if reader.node in nodes]


class _LengtheningWalk(ResizingWalk):
    """The walk in the other direction: weights become longer, whatever they hold."""

    refuse_weight = StreamWalk.refuse_weight

    def enters(self, point: Point, origin: Backward) -> bool:
        """Whether a Slice removes the last channel of a value that still has all of them."""
        del origin
        return sliced_from(self.info, point) is not None

    def ends(self, point: Point, site: NormSite) -> bool:
        return completed_part(self.info, site.input, site.fiber) is point.value


def sliced_from(info: ModelInfo, point: Point) -> ir.Value | None:
    """Return x of a value x[:-1] along the one axis of its fiber, or None."""
    node = point.value.producer()
    if node is None or operator(node) != "Slice" or len(node.inputs) != 4:
        return None
    start, end, axis = (info.scalar(operand) for operand in node.inputs[1:])
    rank = info.rank(point.value)
    if rank is None or start != 0 or end != -1 or axis is None:
        return None
    return node.inputs[0] if (int(axis) % rank,) == point.fiber.axes else None


def apply(edit: Editor, plan: CompressionPlan, settings: Settings) -> None:
    """Restore the last channel of every named stream; E v, which norms read, is then v."""
    del settings
    values, sites = edit.by_ref(), named_sites(edit, plan)
    change_shapes(edit, plan, 1)
    for weight in plan.weights:
        lengthen_weight(values[weight.value], weight.axis)
    for stored in plan.values:
        declare(values[stored.value], stored.axis, 1)
    for entry in plan.entries:
        _replace(values[entry.value])
    for site in sites:
        _replace(site.input)


def lengthen_weight(value: ir.Value, axis: int) -> None:
    """Append minus the sum, computed in float64 and rounded once."""

    def completed(tensor: ir.TensorProtocol) -> Array:
        array = tensor.numpy()
        last = -array.sum(axis=axis, keepdims=True, dtype=np.float64)
        return np.concatenate([array, last.astype(array.dtype)], axis=axis)

    resize_weight(value, axis, 1, completed)


def _replace(value: ir.Value) -> None:
    """Make all readers of x[:-1], or of E v, read x, or v, and remove unused nodes."""
    node = value.producer()
    operand = None if node is None else node.inputs[0]
    if node is None or operand is None:
        return  # already replaced for another norm
    redirect(value, operand)
    sweep([*_behind(node), node])


def _behind(node: ir.Node) -> list[ir.Node]:
    """Return sum(v) and -sum(v) of E v, in order."""
    found: list[ir.Node] = []
    last = node.inputs[1] if node.op_type == "Concat" else None
    while last is not None and (maker := last.producer()) is not None and len(found) < 2:
        found.insert(0, maker)
        last = maker.inputs[0]
    return found
