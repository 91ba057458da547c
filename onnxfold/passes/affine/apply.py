"""Apply affine fusions: norms lose gamma and beta, and linear layers take them.

Ensures: every norm in a fusion has lost what moved (its operands are ones or absent, its Mul and
Add are gone), the downstream linear layers have absorbed it, and the norm's result keeps its name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, node_label
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import HALVES, Float64
from onnxfold.graph.edit import Editor, redirect, set_input, sweep
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NORMS
from onnxfold.passes.affine.absorptions import absorb
from onnxfold.passes.affine.plan import AffineFusion, AffinePlan
from onnxfold.passes.affine.source import AffineSource, scale_source, source_of
from onnxfold.passes.base import Settings
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import Place, ReaderRef
from onnxfold.refusal import Refusal, RefusalCode

_GAMMA, _BETA = 1, 2
_SUMS = ("Add", "Sub")
_NAMES = {0.0: "zeros", 0.5: "halves", 1.0: "ones", 2.0: "twos"}


def apply(edit: Editor, plan: AffinePlan, settings: Settings) -> None:
    """Apply the fusions of a plan."""
    del settings  # the moves are already decided
    by_output = {edit.info.ref(site.output): site for site in NORMS.of(edit.info)}
    sources: list[tuple[AffineFusion, AffineSource]] = []
    for fusion in plan.fusions:
        site = by_output[fusion.output]
        bare = fusion.scales and not fusion.gamma
        # A spelled-out norm may multiply by ones, which are not the site's gamma.
        scale = scale_source(edit.info, site) if bare else None
        source = scale or source_of(edit.info, site)
        if not isinstance(source, AffineSource):
            raise InvariantError(f"norm '{fusion.norm}' has no gamma or beta that can move")
        sources.append((fusion, source_within(edit, source)))
    places = PlaceEditor(edit)
    for fusion, source in sources:
        gamma = source.gamma if fusion.scales else None
        gamma = None if gamma is None else gamma / fusion.left
        for reader in fusion.readers:
            absorb(places, reader, gamma, source.beta)
    norms = Norms(edit)
    for fusion, source in sources:
        norms.take_away(fusion, source)


def source_within(edit: Editor, source: AffineSource) -> AffineSource:
    """Return the affine part of the same norm in the edited model."""
    return replace(
        source,
        site=source.site.within(edit),
        value=edit.value(source.value),
        nodes=tuple(edit.node(node) for node in source.nodes),
    )


class Norms:
    """Removal of gammas and betas from norms."""

    def __init__(self, edit: Editor):
        self._edit = edit
        self._view = edit.info
        self._fills: dict[tuple[ir.DataType, tuple[int, ...], float], ir.Value] = {}

    def take_away(self, fusion: AffineFusion, source: AffineSource) -> None:
        """Remove from the norm what its readers have absorbed."""
        if source.inside:
            self._take_inside(fusion, source)
        elif source.nodes:
            self._take_nodes(fusion, source)
        else:
            self._take_operands(fusion, source)

    def _take_operands(self, fusion: AffineFusion, source: AffineSource) -> None:
        node = source.site.nodes[-1]
        gamma, beta = ([*node.inputs, None, None][index] for index in (_GAMMA, _BETA))
        if fusion.scales and gamma is not None:
            set_input(node, _GAMMA, self._filled(gamma, fusion.left))
        if fusion.beta and beta is not None:
            # ONNX Runtime's optimizer reads the B of every LayerNormalization without a check.
            set_input(node, _BETA, self._filled(beta, 0.0))
        for operand in (gamma, beta):
            self._edit.drop_if_unread(operand)

    def _take_nodes(self, fusion: AffineFusion, source: AffineSource) -> None:
        """Make the readers of gamma * x + beta read x, or x + beta / gamma."""
        add, mul = _parts(source)
        start = _data_input(self._view, (mul or add or source.nodes[-1]))
        if add is not None and not fusion.beta:  # gamma is removed, the Add stays with the rest
            index = list(add.inputs).index(start if mul is None else mul.outputs[0])
            constant = add.inputs[1 - index]
            set_input(add, index, start)
            if constant is not None and source.beta is not None and source.gamma is not None:
                left = source.beta / source.gamma
                set_input(add, 1 - index, self._constant(constant, source, left))
            sweep([node for node in (mul,) if node is not None])
            return
        if mul is not None and fusion.left != 1.0:
            self._refill(mul, fusion.left)
        if (not fusion.gamma or fusion.left != 1.0) and mul is not None:  # only beta is removed
            start, nodes = mul.outputs[0], [node for node in source.nodes if node is not mul]
        else:
            nodes = list(source.nodes)
        if nodes:
            self._bypass(source, start, nodes)

    def _take_inside(self, fusion: AffineFusion, source: AffineSource) -> None:
        """Make the Mul and the Add read ones and zeros, so that the norm keeps its form."""
        for node in source.nodes:
            adds = node.op_type in _SUMS
            if fusion.beta if adds else fusion.gamma:
                self._refill(node, 0.0 if adds else fusion.left)

    def _refill(self, node: ir.Node, number: float) -> None:
        """Make a Mul or Add read one number instead of its constant."""
        index = 1 - list(node.inputs).index(_data_input(self._view, node))
        constant = node.inputs[index]
        if constant is not None:
            set_input(node, index, self._filled(constant, number))
            self._edit.drop_if_unread(constant)

    def _bypass(self, source: AffineSource, start: ir.Value, nodes: list[ir.Node]) -> None:
        """Remove the nodes, of which the first reads ``start``, and keep the names.

        A value that another norm reads too, because tools have merged the rest with this one, keeps
        its name.
        """
        end = source.value
        shared = any(use.node not in nodes for use in start.uses())
        redirect(end, start)
        producer, last = known_producer(start), known_producer(end)
        operands = [operand for node in nodes for operand in node.inputs]
        sweep(list(reversed(nodes)))
        for operand in operands:
            self._edit.drop_if_unread(operand)
        if shared:
            return
        name, end.name = end.name, f"{end.name}.fused"
        start.name, producer.name = name, last.name
        if source.site.output is end:
            start.metadata_props.update(end.metadata_props)

    def _filled(self, like: ir.Value, number: float) -> ir.Value:
        """Return a shared constant of one number, in the type and shape of another value.

        In half precision each reader has its own: a session on a CPU casts a constant of several
        readers to float in every run.
        """
        shape = tuple(int(dim) for dim in (self._view.shape(like) or ()) if isinstance(dim, int))
        dtype = like.dtype or ir.DataType.FLOAT
        key = (dtype, shape, number)
        if key not in self._fills or dtype in HALVES:
            name = f"{_NAMES[number]}.{'x'.join(map(str, shape))}"
            tensor = ir.Tensor(np.full(shape, number, dtype.numpy()), dtype=dtype)
            near = next(iter(self._edit.model.graph)).outputs[0]
            self._fills[key] = self._edit.new_constant(near, tensor, name)
        return self._fills[key]

    def _constant(self, like: ir.Value, source: AffineSource, vector: Float64) -> ir.Value:
        """Return a vector as a constant that broadcasts as the norm's parameter did."""
        dtype = like.dtype or ir.DataType.FLOAT
        sizes = {digit.axis: digit.size for digit in source.channels.digits}
        shape = tuple(sizes.get(axis, 1) for axis in range(self._view.rank(source.value) or 0))
        array = source.channels.spread(vector, shape)
        tensor = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype)
        return self._edit.new_constant(like, tensor, f"{like.name}.left")


def _parts(source: AffineSource) -> tuple[ir.Node | None, ir.Node | None]:
    """Return the nodes that add beta and multiply by gamma."""
    adds = [node for node in source.nodes if node.op_type in _SUMS]
    scales = [node for node in source.nodes if node not in adds]
    return next(iter(adds), None), next(iter(scales), None)


def _data_input(view: ModelInfo, node: ir.Node) -> ir.Value:
    """Return the operand of a Mul or Add that is not a constant."""
    for operand in node.inputs:
        if operand is not None and view.array(operand) is None:
            return operand
    raise InvariantError(f"'{node.name}' reads constants only")


@dataclass(frozen=True, slots=True)
class FusionCandidate:
    """A fusion, and keys that distinguish its edits of gamma and beta from other norms' edits.

    ``refusal``: why a part stays.
    """

    fusion: AffineFusion
    marks: tuple[bytes, bytes]
    refusal: Refusal | None = None


# Gamma or beta with its weight, the channels and where it begins in them, which numbers.
_Edit = tuple[str, Channels, int | None, bytes]
_Wanted = dict[tuple[ReaderRef, int | None], _Edit]


def settle(
    view: ModelInfo, candidates: Sequence[FusionCandidate], limit: int
) -> tuple[list[AffineFusion], dict[str, Refusal]]:
    """Change constants in place if all readers agree, copy small ones, refuse the rest.

    A refused norm leaves its weights unchanged, so the others must be asked again.
    """
    refused: dict[str, Refusal] = {}
    waiting = list(candidates)
    values = view.by_ref()
    while True:
        wanted = _wanted(waiting)
        settled: list[AffineFusion] = []
        rest: list[FusionCandidate] = []
        for candidate in waiting:
            obstacle = None
            for place in candidate.fusion.places:
                if not place.value or place.nbytes <= limit:
                    continue
                if not _agreed(values[place.value], wanted[place.value]):
                    obstacle = _shared(values[place.value], place)
                    break
            if obstacle is None:
                rest.append(candidate)
                settled.append(_with_copies(candidate.fusion, values, wanted))
            else:
                refused[candidate.fusion.output] = obstacle
        if len(rest) == len(waiting):
            return settled, refused
        waiting = rest


def _wanted(candidates: Iterable[FusionCandidate]) -> dict[str, _Wanted]:
    """Return for every constant the edit that each reader wants."""
    wanted: dict[str, _Wanted] = defaultdict(dict)
    for candidate in candidates:
        gamma, beta = candidate.marks
        for reader in candidate.fusion.readers:
            if candidate.fusion.scales:
                place = reader.weight
                edit = "", place.channels, reader.start, gamma
                wanted[place.value][place.reader, reader.start] = edit
            for place in reader.biases:
                if not place.value:
                    continue
                weight = reader.weight
                holder = f"{weight.value} {weight.reader.node if weight.fixed else ''}"
                of = f"{holder} {reader.factor} {weight.channels}"
                source = f"{of} {reader.outer} {place.start}"
                edit = source, place.channels, reader.start, beta
                wanted[place.value][place.reader, reader.start] = edit
    return wanted


def _agreed(value: ir.Value, wanted: _Wanted) -> bool:
    """Whether all readers of a constant want the same edit, or one wants any edits of parts."""
    readers = len(value.uses()) + value.is_graph_output()
    if any(start is not None for _, start in wanted):
        return readers == 1
    return readers == len(wanted) and len(set(wanted.values())) == 1


def _with_copies(
    fusion: AffineFusion, values: Mapping[str, ir.Value], wanted: dict[str, _Wanted]
) -> AffineFusion:
    def settled(place: Place | None) -> Place | None:
        if place is None or not place.value:
            return place
        return replace(place, copy=not _agreed(values[place.value], wanted[place.value]))

    readers = tuple(
        replace(
            reader,
            weight=(settled(reader.weight) if fusion.scales else None) or reader.weight,
            bias=settled(reader.bias),
            parts=tuple(place for part in reader.parts if (place := settled(part)) is not None),
        )
        for reader in fusion.readers
    )
    return replace(fusion, readers=readers)


def _shared(value: ir.Value, place: Place) -> Refusal:
    readers = tuple(node_label(use.node) for use in value.uses())
    sentence = (
        f"weight '{value.name}' of {place.nbytes:,} bytes has {len(readers)} readers that do not "
        f"all follow this norm, and is too large to store twice; --allow-split {place.nbytes} "
        "allows it"
    )
    return Refusal(RefusalCode.SHARED_WEIGHT, sentence, readers)
