"""The parts of a stream x R, R orthogonal: weights that absorb R, and carriers.

    RMS(x R) = RMS(x) R        f(x1 R, x2 R) = f(x1, x2) R        (x R) (R' A) = x A

f treats all channels equally (a carrier). A sum over the channels of a product sees nothing of R
where both factors are times R: for weights after a norm, R' A is A with R along the summed axis,
and for queries and keys (q R) (k R)' = q k'.

Source: Ashkboos et al., "SliceGPT", 2024, section 3.1; "QuaRot", 2024, for heads.
"""

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.families.rules import keeps_order
from onnxfold.operators.families.transfer import Backward, ZeroMean, refuse
from onnxfold.operators.table import row_of
from onnxfold.passes.basis.basis_walk import BasisWalk
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.streams.stream_walk import broken_at


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
        return self._refuse_norm(site, point) or self.visit(Point(site.input, site.fiber))

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
            why = (
                "keeps a gamma or beta, which no linear layer has taken; --fuse-affine always and "
                "--allow-split move more"
            )
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
