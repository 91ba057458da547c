"""Which streams and heads are rotated: those whose every part can absorb the matrix."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.graph.operands import known_tensor
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import RotatedStream, RotatedWeight, RotationPlan
from onnxfold.passes.basis.rotation_walk import RotationWalk
from onnxfold.refusal import Refusal
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.weights.edited import RotatedTensor
from onnxfold.weights.rotations import RotationKind, has_hadamard

# Attributes of the number of heads of values, after which the results of attention are as many.
_HEADS = ("q_num_heads", "num_heads")


def decide_streams(info: ModelInfo, settings: Settings) -> RotationPlan:
    """Return the residual streams that can be rotated, and why the others cannot."""
    sites = NORMS.of(info)
    reads = [site for site in sites if site.kind is not NormKind.DYT and site.size]
    starts = ((info.ref(site.output), Point(site.input, site.fiber)) for site in reads)
    return _decided(info, sites, starts, settings)


def decide_heads(info: ModelInfo, settings: Settings) -> RotationPlan:
    """Return the heads that can be rotated between their values and what reads their result."""
    sites = NORMS.of(info)
    plan = _decided(info, sites, _heads(info), settings)
    return RotationPlan(plan.streams)  # most products are none of attention: no refusals


def _heads(info: ModelInfo) -> Iterator[tuple[str, Point]]:
    """Yield what products of two values give, and operators of attention."""
    for node in info.nodes():
        value, shape = node.outputs[0], info.shape(node.outputs[0])
        if not shape or info.is_dead(node):
            continue
        if _is_product(info, node) and not any(map(info.is_constant, node.inputs[:2])):
            fiber = whole_axes(shape, [len(shape) - 1])
        else:
            fiber = _of_attention(node, len(shape), shape[-1])
        if fiber is not None and fiber.size > 1:
            yield info.ref(value), Point(value, fiber)


def _is_product(info: ModelInfo, node: ir.Node) -> bool:
    """Whether an operator sums products of two values."""
    known = map_of(info, node)
    if not isinstance(known, IndexMap) or len(known.factors) != 2:
        return False
    kept = {label.removesuffix("?") for axis in known.output for label in axis}
    return any(label not in kept for axis in known.factors[0] for label in axis)


def _of_attention(node: ir.Node, rank: int, size: object) -> Fiber | None:
    """Return the channels of a head in what an operator of attention gives."""
    families = (Family.ATTENTION, Family.MULTI_HEAD_ATTENTION, Family.GROUP_QUERY_ATTENTION)
    if row_of(node).family not in families or not isinstance(size, int):
        return None
    heads = next((n for name in _HEADS if (n := node.attributes.get_int(name, 0))), 0)
    if rank == 4 or not heads:
        return Fiber((AxisBlock(rank - 1, 1, size, 1),)) if rank == 4 else None
    return None if size % heads else Fiber((AxisBlock(rank - 1, 1, size // heads, heads),))


def _decided(
    info: ModelInfo,
    sites: tuple[NormSite, ...],
    starts: Iterable[tuple[str, Point]],
    settings: Settings,
) -> RotationPlan:
    if settings.rotate == "off":
        return RotationPlan()
    transfers = TRANSFERS.of(info)
    kind, found = RotationKind(settings.rotate), list[RotatedStream]()
    walks: list[RotationWalk] = []
    refusals: dict[str, Refusal] = {}
    for ref, start in starts:
        if info.is_constant(start.value) or any(walk.holds(start.value) for walk in walks):
            continue
        walk = RotationWalk(info, transfers, sites)
        why = settings.refuse_unproved(ref) or walk.run(start)
        if why is not None:
            refusals[ref] = why
            continue
        walks.append(walk)
        if walk.stream.weights:
            found.append(_stream(info, walk, (ref, start), kind, settings.rotation_seed))
    return RotationPlan(tuple(found), tuple(refusals.items()))


def _stream(
    info: ModelInfo, walk: RotationWalk, start: tuple[str, Point], kind: RotationKind, seed: int
) -> RotatedStream:
    size = start[1].fiber.size
    return RotatedStream(
        start[0],
        size,
        kind,
        seed,
        tuple(RotatedWeight(info.ref(p.value), p.fiber) for p in walk.stream.weights),
        tuple(sorted(map(info.ref, walk.stream.norms))),
        len(walk.stream.values),
        kind is RotationKind.HADAMARD and not has_hadamard(size),
    )


def apply(edit: Editor, plan: RotationPlan, settings: Settings) -> None:
    """Multiply the weights of every stream that is named by its matrix."""
    del settings
    values = edit.by_ref()
    for stream in plan.streams:
        matrix = stream.matrix()
        for weight in stream.weights:
            value = values[weight.value]
            tensor = known_tensor(value)
            name = tensor.name or weight.value
            change_constant(value, RotatedTensor(tensor, weight.fiber, matrix, name))
