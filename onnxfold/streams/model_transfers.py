"""The dependencies of a value along a fiber, and the response of each reader to a shift.

Two questions are asked by the backward walk (planning) and by the forward proof:

* ``backward``: which inputs must be centered so that this value is centered;
* ``forward``: the response of a reader when the value moves by something constant along the fiber.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader, whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array
from onnxfold.graph.model_info import Fact
from onnxfold.norms import NORMS
from onnxfold.norms.site import AffinePart, NormForm, NormSite, mean_subtracted_by
from onnxfold.operators import facets
from onnxfold.operators.families.reduce import Centring
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.families.transfer import (
    IGNORED,
    Backward,
    Carried,
    ZeroMean,
    refuse,
    refuse_value,
)
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode, refuse_overridable
from onnxfold.streams import fiber_parts
from onnxfold.streams.obstacles import (
    refuse_affine_output,
    refuse_dequantised,
    refuse_exact,
    refuse_foreign,
    refuse_unknown,
)


@dataclass(frozen=True, slots=True)
class Point:
    """A value and a fiber in its coordinates: the unit of the analysis."""

    value: ir.Value
    fiber: Fiber

    def __hash__(self) -> int:
        # Hash only the value: few values have two fibers, and hashing a fiber is slow.
        return hash(self.value)


class Embeddings(StrEnum):
    """How a Gather from a constant table counts."""

    LINEAR = "linear"
    OPAQUE = "opaque"
    CENTRED = "centred"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The exact analysis by default; otherwise the counting rules of the paper's Algorithm 1.

    ``asks_readers``: whether other readers of a value count; Algorithm 1 marks forward alone.
    """

    norm_output_centred: bool = False
    embeddings: Embeddings = Embeddings.LINEAR
    asks_readers: bool = True


EXACT = Assumptions()


ShiftResponse = tuple[Point, ...] | Refusal
"""f(x + s) = f(x) + s': the outputs that s becomes a shift of, along fibers; () where s' = 0."""


class ModelTransfers:
    """The transfer functions of one model, from the law table and the recognized norms.

    ``of_parts``: a value cut from a product depends on a part of the weight; otherwise on all of
    it. Answers are remembered, so that several walks of one model cost little more than one.
    """

    def __init__(self, view: ModelInfo, sites: Iterable[NormSite], *, of_parts: bool = False):
        self.view, self._of_parts, self._found_parts = view, of_parts, False
        self._sites = tuple(sites)
        self.walks: dict[object, Any] = {}  # onnxfold.streams.dataflow
        self._origins: dict[Point, Backward] = {}
        self._responses: dict[tuple[Point, Reader], ShiftResponse] = {}
        self._owners: dict[ir.Node, list[NormSite]] = defaultdict(list)
        self._site_of_output: dict[ir.Value, NormSite] = {}
        self._site_of_centred: dict[ir.Value, NormSite] = {}
        for site in self._sites:
            if not site.size:
                continue  # a norm of unknown size is an operator without a law
            self._site_of_output[site.output] = site
            self._site_of_centred.update(dict.fromkeys(site.centred, site))
            for node in site.nodes:
                self._owners[node].append(site)
        self._leaking = {
            id(site): leak
            for site in self._site_of_output.values()
            if (leak := self._harmful_leak(site)) is not None
        }

    def backward(self, point: Point, assumptions: Assumptions = EXACT) -> Backward:
        """Return the dependencies of ``point``, whose value is not a constant."""
        value, fiber = point.value, point.fiber
        node = value.producer()
        if node is None:
            return self._source(value)
        by_norm = self._backward_through_norm(value, node, fiber, assumptions)
        if by_norm is not None:
            return by_norm
        if facets.is_embedding(row_of(node)) and self.view.tensor(node.inputs[0]) is not None:
            if assumptions.embeddings is Embeddings.OPAQUE:
                return refuse(RefusalCode.ACTIVATION, node, "is an embedding, counted as opaque")
            if assumptions.embeddings is Embeddings.CENTRED:
                return ZeroMean()
        return self._backward_by_law(node, point)

    def _source(self, value: ir.Value) -> Refusal:
        if value.is_initializer():
            return refuse_overridable((value.name or "",))
        code = RefusalCode.GRAPH_INPUT
        if value.graph is not self.view.model.graph:
            code = RefusalCode.BODY_BORDER
        return refuse_value(code, value, "is an input of its graph")

    def _backward_through_norm(
        self, value: ir.Value, node: ir.Node, fiber: Fiber, assumptions: Assumptions
    ) -> Backward | None:
        centring = self._site_of_centred.get(value)
        if centring is not None and fiber.covers(centring.fiber):
            return ZeroMean()
        site = self._site_of_output.get(value)
        if site is None:
            return None
        if not fiber.covers(site.fiber):
            # Gamma and beta belong to the norm: centering one would change the norm.
            return None if site.gamma is None and site.beta is None else refuse_affine_output(node)
        if assumptions.norm_output_centred and site.subtracts_mean:
            return ZeroMean()
        if site.subtracts_mean and self.keeps_zero_mean(site):
            return ZeroMean()
        if site.subtracts_mean:
            return refuse_affine_output(node)
        return refuse(RefusalCode.NOT_CENTRED_NORM, node, "is a norm that keeps the mean")

    def keeps_zero_mean(self, site: NormSite) -> bool:
        """Whether gamma is one number and beta is 0, which preserves mean 0."""
        gamma, beta = (self._numbers(part) for part in (site.gamma, site.beta))
        if gamma is None or beta is None:
            return False
        uniform = gamma.size == 0 or bool(np.all(gamma == gamma.flat[0]))
        return uniform and not np.any(beta)

    def _numbers(self, part: AffinePart) -> Array | None:
        """Return an affine part as an array, empty if absent, None if not constant."""
        if part is None:
            return np.zeros(0)
        return part if isinstance(part, np.ndarray) else self.view.array(part)

    def _backward_by_law(self, node: ir.Node, point: Point) -> Backward:
        if point not in self._origins:
            output = point.value.index() or 0
            self._origins[point] = self._find_origin(node, output, point.fiber)
        return self._origins[point]

    def _find_origin(self, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        transfer = transfer_of(node)
        if transfer is None:
            return refuse_unknown(node)
        mean_of = self.centring_fiber(node)
        if mean_of is not None and fiber.covers(mean_of):
            return ZeroMean()
        source = self._part_before(node, output, fiber)
        if source is not None:
            return Carried(((0, source),), alone=True)
        origin = fiber_parts.backward(self.view, transfer, node, output, fiber)
        if isinstance(origin, Refusal):
            return refuse_dequantised(node) or origin
        if isinstance(origin, Carried):
            for index, _ in origin.inputs:
                foreign = refuse_foreign(self.view, node, node.inputs[index])
                if foreign is not None:
                    return foreign
        return origin

    def _part_before(self, node: ir.Node, output: int, fiber: Fiber) -> Fiber | None:
        """Return the part of the sets that a cut keeps, if it depends on parts of weights."""
        source = node.inputs[0] if self._of_parts and node.inputs else None
        within = (
            None
            if source is None
            else fiber_parts.before_cut(self.view, node.outputs[output], fiber)
        )
        if source is None or within is None or self.view.tensor(source) is not None:
            return None
        waiting = [Point(source, within)]
        seen = set(waiting)
        while waiting:
            point = waiting.pop()
            if self.view.tensor(point.value) is None:
                origin = self.backward(point)
                if isinstance(origin, Refusal):
                    return None
                new = _operands(point, origin) - seen
                seen |= new
                waiting += new
        self._found_parts = True
        return within

    def without_parts(self) -> "ModelTransfers":
        """Return transfers in which no part of a weight is centered alone."""
        return ModelTransfers(self.view, self._sites) if self._found_parts else self

    def centring_fiber(self, node: ir.Node) -> Fiber | None:
        """Return the fiber of ``x - mean(x)``, spelled as Sub and ReduceMean or as a call."""
        transfer = transfer_of(node)
        if isinstance(transfer, Centring):
            return transfer.fiber(self.view, node)
        found = mean_subtracted_by(self.view, node)
        return None if found is None else found[1]

    def forward(self, point: Point, reader: Reader) -> ShiftResponse:
        """Return the response of ``reader`` to a shift of ``point``, constant along its fiber."""
        key = (point, reader)
        if key not in self._responses:
            self._responses[key] = self._find_response(point, reader)
        return self._responses[key]

    def _find_response(self, point: Point, reader: Reader) -> ShiftResponse:
        node = reader.node
        if self.view.is_dead(node):
            return ()  # its results are not used
        for site in self._owners.get(node, ()):
            if site.input is point.value:
                if any(part is point.value for part in (site.gamma, site.beta)):
                    return refuse_exact(node)  # it is scaled or shifted by its own normalized value
                return self._response_of_norm(site, point.fiber, node)
        if self._reads_only_centred(node, point):
            return ()
        transfer = transfer_of(node)
        if transfer is None:
            return refuse_exact(node)
        if refuse_foreign(self.view, node, point.value) is not None:
            return refuse(RefusalCode.BODY_BORDER, node, "reads the value from inside a body")
        outputs = fiber_parts.forward(self.view, transfer, node, reader.index, point.fiber)
        if outputs is None:
            return refuse_exact(node)
        return self._confirmed(node, reader.index, point.fiber, outputs)

    def _confirmed(
        self, node: ir.Node, index: int, fiber: Fiber, outputs: tuple[tuple[int, Fiber], ...]
    ) -> ShiftResponse:
        points = []
        for output, outer in outputs:
            point = Point(node.outputs[output], outer)
            origin = self._backward_by_law(node, point)
            carried = origin.inputs if isinstance(origin, Carried) else ()
            # With a part of its sets, if an operator uses no others.
            if not any(i == index and fiber.joined(inner) == fiber for i, inner in carried):
                return refuse_exact(node)
            points.append(point)
        return tuple(points)

    def _response_of_norm(self, site: NormSite, fiber: Fiber, node: ir.Node) -> ShiftResponse:
        if not site.subtracts_mean:
            return refuse(
                RefusalCode.NOT_CENTRED_NORM, node, f"belongs to {site.kind.value} '{site.name}', "
                "which depends on the mean",
            )  # fmt: skip
        if not fiber.covers(site.fiber):
            return refuse(
                RefusalCode.EXACT_READER,
                node,
                f"normalizes {site.fiber}, which depends on a shift that is constant along {fiber}",
            )
        leak = self._leaking.get(id(site))
        if leak is not None:
            return refuse(
                RefusalCode.STATISTICS_READ, node, f"passes the mean '{leak.name}' to other nodes"
            )
        return ()

    def _reads_only_centred(self, node: ir.Node, point: Point) -> bool:
        """Whether the node is part of x - mean(x) without other readers inside."""
        subtractions = [node]
        if node.op_type == "ReduceMean" and not node.domain and node.outputs[0].uses():
            if node.outputs[0].is_graph_output():
                return False
            subtractions = [use.node for use in node.outputs[0].uses()]
        fibers = [
            self.centring_fiber(user) if user.inputs[0] is point.value else None
            for user in subtractions
        ]
        return all(fiber is not None and point.fiber.covers(fiber) for fiber in fibers)

    def _harmful_leak(self, site: NormSite) -> ir.Value | None:
        """Return a value inside the norm that depends on the mean and that others read."""
        if not site.subtracts_mean:
            return None
        harmless: set[ir.Value] = set()
        for node in site.nodes:
            after = any(operand in harmless for operand in node.inputs)
            for output in node.outputs:
                if output in site.centred or after or output is site.output:
                    harmless.add(output)
        if site.form is not NormForm.DECOMPOSED:
            harmless |= set(site.nodes[-1].outputs[2:])  # the inverse deviation
        for leak in site.escaping:
            if leak not in harmless:
                return leak
        return None

    def ignores(self, value: ir.Value, channels: Channels) -> bool:
        """Whether no result depends on a shift of a value that varies along channels alone."""
        shape = self.view.shape(value) or ()
        others = (axis for axis in range(len(shape)) if axis not in channels.axes)
        fibers = (whole_axes(shape, (axis,)) for axis in others)
        return any(fiber is not None and self._is_lost(Point(value, fiber)) for fiber in fibers)

    def _is_lost(self, start: Point) -> bool:
        """Whether no output depends on a shift of a point that is constant along its fiber."""
        waiting, seen = [start], {start}
        while waiting:
            point = waiting.pop()
            if self.view.is_output(point.value):
                return False
            for reader in self.view.readers(point.value):
                moved = self.forward(point, reader)
                if isinstance(moved, Refusal):
                    return False
                waiting += (each for each in moved if each not in seen)
                seen.update(moved)
        return True


def _operands(point: Point, origin: Backward) -> set[Point]:
    """Return the points on which one depends."""
    node = point.value.producer()
    if node is None or not isinstance(origin, Carried):
        return set()
    operands = ((node.inputs[index], inner) for index, inner in origin.inputs)
    return {Point(value, inner) for value, inner in operands if value is not None}


TRANSFERS: Fact[ModelTransfers] = Fact("transfer functions")
TRANSFERS_OF_PARTS: Fact[ModelTransfers] = Fact("transfer functions of parts")


@TRANSFERS.found_by
def _transfers(info: ModelInfo) -> ModelTransfers:
    return ModelTransfers(info, NORMS.of(info))


@TRANSFERS_OF_PARTS.found_by
def _transfers_of_parts(info: ModelInfo) -> ModelTransfers:
    return ModelTransfers(info, NORMS.of(info), of_parts=True)


@IGNORED.found_by
def _ignored(info: ModelInfo) -> Callable[[ir.Value, Channels], bool]:
    return TRANSFERS.of(info).ignores
