"""The decisions of the passes on a model, for the reports.

Algorithm 1 marks forward: the output of a LayerNorm counts as centred, whatever its gamma and beta
are, an embedding as not centred or as followed by a centring, and nobody asks who else reads what
is centred.  Criterion D.2 asks the readers too.

Source: CBWC ("Enjoy your Layer Normalization ..."), Algorithm 1, Table 3 and appendix D.2.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import HALVES
from onnxfold.norms import NORMS, BareCentring, NormKind, NormSite
from onnxfold.norms.completed import reported_kind
from onnxfold.operators import facets
from onnxfold.operators.families.cut_parts import element_readers
from onnxfold.operators.table import row_of
from onnxfold.passes.basis.plan import RotationPlan, ScalePlan
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.passes.centring.network import solve
from onnxfold.passes.deferral.undefer import FoundDeferred
from onnxfold.passes.plan import Plan
from onnxfold.passes.ranges import RangeWarning
from onnxfold.passes.scales.writer import channel_op
from onnxfold.recognition import find_centrings, streams
from onnxfold.refusal import Refusal
from onnxfold.streams.dataflow import PointFacts, walk_back
from onnxfold.streams.model_transfers import (
    TRANSFERS,
    Assumptions,
    Embeddings,
    ModelTransfers,
    Point,
)
from onnxfold.targets.fusions import spanned_norm

_MARKING = Assumptions(norm_output_centred=True, embeddings=Embeddings.OPAQUE, asks_readers=False)
_EMBED_CENTRED = Assumptions(
    norm_output_centred=True, embeddings=Embeddings.CENTRED, asks_readers=False
)
_D2 = Assumptions(norm_output_centred=True, embeddings=Embeddings.CENTRED)


@dataclass(frozen=True, slots=True)
class PaperCounts:
    """The LayerNorms by each rule: ``d2`` with a centring after every embedding, too."""

    algorithm1: int
    algorithm1_embed_centred: int
    d2: int


def paper_counts(info: ModelInfo) -> PaperCounts:
    """Count by each rule; whole weights are centred, and ones with other readers are split."""
    transfers = TRANSFERS.of(info)
    layer_norms = [site for site in NORMS.of(info) if site.kind is NormKind.LAYER_NORM]
    return PaperCounts(
        *(_counted(transfers, layer_norms, rule) for rule in (_MARKING, _EMBED_CENTRED, _D2))
    )


def _counted(transfers: ModelTransfers, sites: Sequence[NormSite], assumptions: Assumptions) -> int:
    asked = [Point(site.input, site.fiber) for site in sites]
    graph = walk_back(transfers, sites, assumptions)
    cut = solve(graph, ((point, 1) for point in asked), _free_splits)
    return sum(point in cut.at_hand for point in asked)


def _free_splits(_: Point, facts: PointFacts) -> int | None:
    return 0 if facts.constant else None


_BATCHED = 3  # batch, rows, channels


@dataclass(frozen=True, slots=True)
class Description:
    """A prepared model before any pass: its size, and a report row for each norm.

    ``attentions`` are the norms, by reference, with attention between them, which ONNX Runtime's
    transformers optimizer fuses only while both are LayerNormalization. ``half_sums`` are the norms
    of sums in 16 bits, which it fuses at ``opt_level`` 0 while they are LayerNormalization: it does
    not recognize an RMSNorm that contains Casts. ``behind``: norms by their results after absorbing
    the nodes after them. ``merged``: norms by nodes that several share, which are all of their
    nodes once they have lost their gammas and betas. ``halves`` are the norms in 16 bits.
    ``centrings``: a row for each subtraction of a mean outside of norms.
    """

    opset: int
    nodes: int
    parameters: int
    norms: tuple[dict[str, Any], ...]
    attentions: tuple[tuple[str, str], ...] = ()
    half_sums: tuple[str, ...] = ()
    behind: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    halves: frozenset[str] = frozenset()
    centrings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Sums:
    """Additions that a session no longer fuses with the norms after them, and the savings."""

    count: int = 0
    saved_ps: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """The norms of a model, what happens to each, and what a paper's rules count, if asked.

    ``refusals`` has, by reference of the norm's output, why a norm is not folded,
    ``affine_refusals`` why its gamma or beta stays. ``remaining`` are the norms that are still
    norms when folds are decided, ``in_place`` those that stay and become one operator, ``left``
    those that could fold but should not. ``ranges`` names the weights whose range grows much,
    ``deferral_refusals`` why an RMS norm, made or found, is computed in place. ``restored`` are the
    RMSNorms that become LayerNorms, or None if not requested. ``compressed`` likewise are the norms
    that become CRMSNorms, ``decompressed`` those that were. ``without_last`` are those that write
    only as many channels as they read, or None if not requested, and ``reader_refusals`` why others
    write all. ``scale_refusals`` explain which operators stay though a linear layer could absorb
    them, by reference of their results. ``deferred_before`` are the norms that were deferred in the
    original model, none of ``description``. ``scaled_streams``, ``rotated_streams``,
    ``rotated_heads`` and ``split_gammas``: the decisions about bases, or None if not requested.
    """

    description: Description
    plan: Plan
    refusals: dict[str, Refusal] = field(default_factory=dict)
    affine_refusals: dict[str, Refusal] = field(default_factory=dict)
    remaining: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    ranges: tuple[RangeWarning, ...] = ()
    restored: frozenset[str] | None = None
    compressed: frozenset[str] | None = None
    decompressed: frozenset[str] = frozenset()
    deferral_refusals: dict[str, Refusal] = field(default_factory=dict)
    deferred_before: tuple[FoundDeferred, ...] = ()
    without_last: frozenset[str] | None = None
    reader_refusals: dict[str, Refusal] = field(default_factory=dict)
    scale_refusals: tuple[tuple[str, Refusal], ...] = ()
    sums: Sums = field(default_factory=Sums)
    scaled_streams: ScalePlan | None = None
    paper: PaperCounts | None = None
    rotated_streams: RotationPlan | None = None
    rotated_heads: RotationPlan | None = None
    split_gammas: SplitPlan | None = None

    @property
    def feels_rows(self) -> bool:
        """Whether a change is sensitive to constant, shifted or zero rows.

        These are moved scales, norms newly deferred or undeferred, and readers that use a sum as
        last channel.
        """
        reinstated = any(norm.reinstated for norm in self.deferred_before)
        converted = self.compressed or self.decompressed or self.restored
        moved = self.plan.scales or self.plan.batch_norms or self.plan.deferred
        return bool(moved or reinstated or converted)

    @property
    def new_biases(self) -> int:
        """Return how many Adds apply a beta after a linear layer without a bias."""
        readers = [reader for fusion in self.plan.fusions for reader in fusion.readers]
        return sum(reader.bias is not None and reader.bias.behind for reader in readers)


class DescribedNorms:
    """The norms and centrings of a described model that an operator of a later version is of."""

    def __init__(self, info: ModelInfo, found: Description):
        self._info, self._values = info, info.by_ref()
        rows = (*found.centrings, *found.norms)  # a reason of the former is not one of the latter
        self._known = {**found.behind, **{row["ref"]: row["ref"] for row in rows}}
        self._merged = found.merged

    def of(self, ref: str) -> tuple[str, ...]:
        """Return the norms by their references: one, or several merged by a tool.

        A norm spelled for a target in the meantime is followed by its gamma or beta; one that
        absorbed the nodes after it has their result.
        """
        value = None if ref in self._known else self._values.get(ref)
        while value is not None and self._info.ref(value) not in self._known:
            readers = list(value.consumers())
            value = readers[0].outputs[0] if len(readers) == 1 else None
        own = self._known.get(ref if value is None else self._info.ref(value), ref)
        return self._merged.get(own, (own,))


def describe(info: ModelInfo, sites: Sequence[NormSite]) -> Description:
    """Return the size and the norms of a prepared model."""
    tensors = {
        id(tensor): tensor
        for graph in info.graphs
        for value in graph.initializers.values()
        if (tensor := info.tensor(value)) is not None
    }
    return Description(
        info.opset,
        sum(1 for _ in info.nodes()),
        sum(prod(tensor.shape.numpy()) for tensor in tensors.values()),
        tuple(
            _row(info, site, stream)
            for site, stream in zip(sites, streams(info, sites), strict=True)
        ),
        tuple(
            (info.ref(first), info.ref(site.output))
            for site in sites
            if site.nodes[-1].op_type == "LayerNormalization"
            and (first := spanned_norm(site)) is not None
        ),
        tuple(info.ref(site.output) for site in sites if _is_of_half_sum(info, site)),
        {behind: info.ref(site.output) for site in sites for behind in _behind(info, site)},
        _merged(info, sites),
        frozenset(info.ref(site.output) for site in sites if site.input.dtype in HALVES),
        tuple(_centring(info, each) for each in find_centrings(info)),
    )


def _centring(info: ModelInfo, bare: BareCentring) -> dict[str, Any]:
    return {
        "ref": info.ref(bare.output),
        "name": bare.name,
        "input": bare.input.name,
        "output": bare.output.name,
        "axes": list(bare.fiber.axes),
        "size": bare.size,
    }


def _merged(info: ModelInfo, sites: Sequence[NormSite]) -> dict[str, tuple[str, ...]]:
    """Return the norms that share each node, by its result."""
    owners: dict[ir.Node, list[str]] = defaultdict(list)
    for site in sites:
        for node in site.nodes:
            owners[node].append(info.ref(site.output))
    return {
        info.ref(node.outputs[0]): tuple(refs) for node, refs in owners.items() if len(refs) > 1
    }


def _is_of_half_sum(info: ModelInfo, site: NormSite) -> bool:
    """Whether a LayerNormalization reads a sum of two computed values of three axes in 16 bits."""
    total = site.input
    node = total.producer()
    if node is None or node.op_type != "Add" or site.nodes[-1].op_type != "LayerNormalization":
        return False
    computed = all(info.tensor(value) is None for value in node.inputs)
    return computed and info.rank(total) == _BATCHED and total.dtype in HALVES


def _behind(info: ModelInfo, site: NormSite) -> Iterator[str]:
    """Yield the results of constants and Reshapes after a norm that alone read its elements."""
    value = site.output
    while not value.is_graph_output() and len(readers := set(element_readers(value))) == 1:
        node = readers.pop()
        if channel_op(info, node) is None and not facets.reshapes(row_of(node)):
            return
        value = node.outputs[0]
        yield info.ref(value)


def _row(info: ModelInfo, site: NormSite, stream: int) -> dict[str, Any]:
    parts = (("gamma", site.gamma), ("beta", site.beta))
    return {
        "ref": info.ref(site.output),
        "name": site.name,
        "module": _module(parts),
        "kind": reported_kind(info, site),
        "form": site.form.value,
        "stream": stream,
        "input": site.input.name,
        "output": site.output.name,
        "axes": list(site.fiber.axes),
        "size": site.size,
        "epsilon": site.epsilon,
        "moves_by_rounding": site.moves_by_rounding,
        "affine": [part for part, value in parts if value is not None],
    }


def _module(parts: Iterable[tuple[str, object]]) -> str | None:
    """Return the module of the parameter that is gamma or beta, by its name, or None."""
    names = (value.name or "" for _, value in parts if isinstance(value, ir.Value))
    return next((name.rpartition(".")[0] for name in names if "." in name), None)
