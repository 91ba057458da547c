"""Which streams and heads are rotated: those whose every part can absorb the matrix.

The parts of a stream x R, R orthogonal: weights that absorb R, and carriers.

    RMS(x R) = RMS(x) R        f(x1 R, x2 R) = f(x1, x2) R        (x R) (R' A) = x A

f treats all channels equally (a carrier). A sum over the channels of a product sees nothing of R
where both factors are times R: for weights after a norm, R' A is A with R along the summed axis,
and for queries and keys (q R) (k R)' = q k'.

Source: Ashkboos et al., "SliceGPT", 2024, section 3.1; "QuaRot", 2024, for heads.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, Reader, whole_axes
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.graph.operands import known_producer, known_tensor
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.families.rules import keeps_order
from onnxfold.operators.families.transfer import Backward, ZeroMean, refuse
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import RotatedStream, RotationPlan
from onnxfold.passes.places import ChangedWeight
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS, ModelTransfers, Point
from onnxfold.streams.stream_walk import BasisWalk, broken_at
from onnxfold.weights.rotations import RotatedTensor, RotationKind, has_hadamard

# Attributes of the number of heads of values, after which the results of attention are as many.
_HEADS = ("q_num_heads", "num_heads")


class RotationWalk(BasisWalk):
    """Finds all points that are times R when one is; the weights of it take R."""

    change = "that is rotated"

    def __init__(self, info: ModelInfo, transfers: ModelTransfers, sites: Iterable[NormSite]):
        every = tuple(sites)
        super().__init__(info, transfers, every)
        self._site_of = {site.output: site for site in every}

    def refuse_place(self, point: Point) -> Refusal | None:
        """Take one digit of one axis."""
        blocks = point.fiber.blocks
        if len(blocks) != 1 or point.fiber.part is not None:
            return broken_at(point.value, f"has its channels along {point.fiber}, not one axis")
        return None

    def backward(self, point: Point) -> Refusal | None:
        """Map a norm's result to its input; otherwise as any stream."""
        site = self._site_of.get(point.value)
        if site is None or self.info.tensor(point.value) is not None:
            return super().backward(point)
        self.stream.values.append(point)
        return self.visit(Point(site.input, site.fiber))

    def refuse_origin(self, point: Point, origin: Backward) -> Refusal:
        """Say what makes a value that no weight before it can turn."""
        if isinstance(origin, ZeroMean):
            node = known_producer(point.value)
            return refuse(RefusalCode.EXACT_READER, node, "subtracts a mean, which is turned too")
        return super().refuse_origin(point, origin)

    def _refuse_norm(self, site: NormSite, point: Point) -> Refusal | None:
        """Say why a norm does not pass a rotation on."""
        if site.kind not in (NormKind.RMS_NORM, NormKind.L2_NORM):
            code, why = RefusalCode.EXACT_READER, "subtracts the mean: it does not fold to RMSNorm"
        elif site.fiber != point.fiber:
            code, why = RefusalCode.FIBER_BROKEN, f"normalizes {site.fiber}, not {point.fiber}"
        elif not self.transfers.keeps_zero_mean(site):
            code = RefusalCode.AFFINE_NORM_OUTPUT
            why = "keeps a gamma or beta, which no linear layer has taken"
        elif site.escaping or not site.size:
            code, why = RefusalCode.STATISTICS_READ, "gives inner values to others"
        else:
            return None
        return Refusal(code, f"norm '{site.name}' {why}", (site.name,))

    def refuse_carrier(self, node: ir.Node, point: Point) -> Refusal | None:
        """Return why a channel of the result depends on others, or changes its place, or None."""
        apart = facets.keeps_channels_apart(row_of(node)) or row_of(node).family is None
        if node.domain or not apart or not keeps_order(self.info, node, point.fiber):
            return self.unknown(node)
        return None

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Take norms and sums over the channels into the stream, or say what sees the rotation."""
        node, row = reader.node, row_of(reader.node)
        if self.info.is_dead(node) or not facets.reads_elements(row):
            return None
        sites = self.norms_of(point.value, node)
        if sites:
            refusals = (self._through_norm(point, site) for site in sites)
            return next((why for why in refusals if why is not None), None)
        if node in self.norms:
            return self.unknown(node)
        other = self._summed_with(node, reader.index, point.fiber)
        return super().read(point, reader) if other is None else self.visit(other)

    def _through_norm(self, point: Point, site: NormSite) -> Refusal | None:
        why = self._refuse_norm(site, point) or self.visit(Point(site.output, site.fiber))
        if why is None:
            self.stream.norms.add(site.output)
        return why

    def _summed_with(self, node: ir.Node, index: int, fiber: Fiber) -> Point | None:
        """Return the channels of the other factor of a product that is summed over these."""
        known = map_of(self.info, node)
        if not isinstance(known, IndexMap) or len(known.factors) != 2 or index > 1:
            return None
        labels = known.labels(fiber.blocks, known.factors[index])
        kept = {label for axis in known.output for label in axis}
        if not labels or labels & {label.removesuffix("?") for label in kept}:
            return None
        placed = known.image(fiber, known.factors[index], known.factors[1 - index])
        value = node.inputs[1 - index]
        if placed is None or value is None or placed.size != fiber.size:
            return None
        return Point(value, placed)


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
        tuple(ChangedWeight(info.ref(p.value), p.fiber) for p in walk.stream.weights),
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
