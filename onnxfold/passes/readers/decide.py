"""Deciding which norms give d - 1 channels: those of which only linear layers read all."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader, whole_axes
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.operators.functions import DOMAIN, SIGNATURES, Statistics
from onnxfold.passes.base import Settings
from onnxfold.passes.compression.decide import plan_of, refuse_shapes
from onnxfold.passes.compression.plan import Shortened
from onnxfold.passes.decompression.decide import sliced_from
from onnxfold.passes.readers.plan import ReadersPlan
from onnxfold.passes.readers.walk import LinearReader, ReadersWalk
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point


def decide(info: ModelInfo, settings: Settings) -> ReadersPlan:
    """Return the CRMSNorms that need give no more channels than they read, and why others must."""
    del settings
    refusals: dict[str, Refusal] = {}
    starts: list[ir.Value] = []
    for node in info.nodes():
        if is_full(node):
            output = node.outputs[0]
            if _has_affine(info, node):
                sentence = (
                    f"norm '{node.name}' has gamma or beta, which no layer behind it has taken"
                )
                why = Refusal(RefusalCode.AFFINE_NORM_OUTPUT, sentence, (node.name or "",))
                refusals[info.ref(output)] = why
            else:
                starts.append(output)
    return _plan(info, starts, refusals, more=-1)


def decide_back(info: ModelInfo, settings: Settings) -> ReadersPlan:
    """Return the values y[:-1] of norms for which linear layers can as well read y."""
    sites = [site for site in find_norms(info) if site.kind is NormKind.RMS_NORM and site.size]
    kept = [site.output for site in sites if not settings.excludes(site.name)]
    starts = [
        reader.node.outputs[0]
        for output in dict.fromkeys(kept)
        for reader in info.readers(output)
        if _takes_last_away(info, reader)
    ]
    return _plan(info, starts, {}, more=1)


def is_full(node: ir.Node) -> bool:
    """Whether a node is a CRMSNorm that gives a channel more than it reads."""
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
    sites, wanted = find_norms(info), tuple(starts)
    norms: dict[ir.Node, NormSite | None] = {node: None for site in sites for node in site.nodes}
    for start in wanted:
        norms.pop(start.producer(), None)  # type: ignore[arg-type]
    transfers = ModelTransfers(info, sites)
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
    """Say which weight something else reads too, or is read along two axes, or None."""
    by_weight: dict[ir.Value, list[LinearReader]] = defaultdict(list)
    for layer in walk.layers:
        by_weight[layer.root.value].append(layer)
    own = {point.value for point in walk.stream.weights}
    for weight, layers in by_weight.items():
        readers = {(layer.root.reader.node, layer.root.reader.index) for layer in layers}
        others = [r for r in info.readers(weight) if (r.node, r.index) not in readers]
        if others or len({layer.axis for layer in layers}) > 1 or weight in own:
            name = weight.name or ""
            sentence = f"weight '{name}' is read by others that need all of its rows"
            return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (name,))
    return None
