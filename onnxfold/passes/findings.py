"""What the passes decided about a model, as the reports show it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.float_types import HALVES
from onnxfold.graph.operands import only_reader
from onnxfold.norms import NormSite, streams
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.basis.plan import RotationPlan, ScalePlan
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.passes.deferral.undefer import FoundDeferred
from onnxfold.passes.plan import Plan
from onnxfold.passes.ranges import RangeWarning
from onnxfold.passes.scales.writer import channel_op
from onnxfold.refusal import Refusal
from onnxfold.targets.fusions import spanned_norm

_BATCHED = 3  # batch, rows, channels


@dataclass(frozen=True, slots=True)
class Description:
    """A prepared model before any pass: its size, and a report row for each norm.

    ``attentions`` are the norms, by reference, between which attention stands, of which ONNX
    Runtime's transformers optimizer makes one operator only while both are LayerNormalization.
    ``half_sums`` are the norms of sums in 16 bits, which it joins at ``opt_level`` 0 while they are
    LayerNormalization: it knows no RMSNorm that Casts are a part of.
    ``behind``: norms by what they give once they have taken what stands behind them.
    ``merged``: norms by what several compute together, which is all of them once they have given
    their gammas and betas away.
    ``halves`` are the norms in 16 bits.
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


@dataclass(frozen=True, slots=True)
class Sums:
    """Additions that a session no longer joins with the norms behind them, and what that saves."""

    count: int = 0
    saved_ps: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """The norms of a model, what happens to each, and the counts of the paper.

    ``refusals`` holds, by reference of the norm's output, why a norm is not folded,
    ``affine_refusals`` why its gamma or beta stays.  ``algorithm1`` counts the norms that fold
    under the rules of the paper's Algorithm 1 (outputs of norms count as centred, embeddings as
    opaque), ``algorithm1_embed_centred`` the same with a centring behind every embedding.
    ``remaining`` are the norms that are still norms when folds are decided, ``in_place`` those of
    them that stay and become one operator, ``left`` those that could fold and are better left as
    they are.  ``ranges`` names the weights whose range grows much,
    ``deferral_refusals`` why an RMS norm, made or found, is computed where it stands.
    ``restored`` are the RMSNorms that become LayerNorms, None where that was not asked.
    ``compressed`` likewise are the norms that become CRMSNorms, ``decompressed`` those that were.
    ``without_last`` are those of them that give no more channels than they read, None where that
    was not asked, and ``reader_refusals`` say why others give all.  ``scale_refusals`` say which
    operators stay though a linear layer could take them, by reference of their results.
    ``deferred_before`` are the norms that the model came with deferred, none of ``description``.
    ``scaled_streams``: what was decided of their scales, None where that was not asked; and
    ``rotated_streams`` and ``rotated_heads`` of their rotations, ``split_gammas`` of their gammas.
    """

    description: Description
    plan: Plan
    refusals: dict[str, Refusal] = field(default_factory=dict)
    affine_refusals: dict[str, Refusal] = field(default_factory=dict)
    algorithm1: int = 0
    algorithm1_embed_centred: int = 0
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
    rotated_streams: RotationPlan | None = None
    rotated_heads: RotationPlan | None = None
    split_gammas: SplitPlan | None = None

    @property
    def feels_rows(self) -> bool:
        """Whether something changed that constant, shifted or zero rows may hurt.

        Scales that moved, norms that wait or no longer do, and what reads a sum for a last channel.
        """
        reinstated = any(norm.reinstated for norm in self.deferred_before)
        converted = self.compressed or self.decompressed or self.restored
        return bool(self.plan.scales or self.plan.deferred or reinstated or converted)

    @property
    def new_biases(self) -> int:
        """How many Adds take a beta behind a linear layer that has no bias."""
        readers = [reader for fusion in self.plan.fusions for reader in fusion.readers]
        return sum(reader.bias is not None and reader.bias.behind for reader in readers)


class DescribedNorms:
    """Which norms of a described model an operator of a later version is a part of."""

    def __init__(self, info: ModelInfo, found: Description):
        self._info, self._values = info, info.by_ref()
        norms: dict[str, str] = {row["ref"]: row["ref"] for row in found.norms}
        self._known = {**found.behind, **norms}
        self._merged = found.merged

    def of(self, ref: str) -> tuple[str, ...]:
        """Return the norms by their references: one, or those that a tool has merged.

        One that was spelled for a target in the meantime has its gamma or beta behind it; one that
        took what stands behind it gives what that gave.
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
    )


def _merged(info: ModelInfo, sites: Sequence[NormSite]) -> dict[str, tuple[str, ...]]:
    """Return the norms that share each node, by what it computes."""
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
    """Yield what constants and Reshapes behind a norm make of its result, read by nothing else."""
    node = only_reader(site.output)
    while node is not None and (channel_op(info, node) or facets.reshapes(row_of(node))):
        yield info.ref(node.outputs[0])
        node = only_reader(node.outputs[0])


def _row(info: ModelInfo, site: NormSite, stream: int) -> dict[str, Any]:
    parts = (("gamma", site.gamma), ("beta", site.beta))
    return {
        "ref": info.ref(site.output),
        "name": site.name,
        "module": _module(parts),
        "kind": site.kind.value,
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
    """Return the module that gamma or beta is a parameter of, by its name; None without one."""
    names = (value.name or "" for _, value in parts if isinstance(value, ir.Value))
    return next((name.rpartition(".")[0] for name in names if "." in name), None)
