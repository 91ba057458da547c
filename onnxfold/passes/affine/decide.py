"""Deciding which gammas and betas move into the linear layers behind their norms.

gamma moves when every reader of the norm is linear with a constant weight that no other reader
needs unchanged (or that is small enough to store twice).  beta moves with it when no zero padding
stands between and every reader has a bias, can have one for free (Gemm, Conv, Attention), or gets
an Add behind it that costs less than the norm saves without beta.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.operators.families.transfer import refuse
from onnxfold.options import Folding
from onnxfold.passes.affine.absorb import AbsorbingLayer
from onnxfold.passes.affine.affine_walk import EditPlace, ReachedLayer, follow, root_of
from onnxfold.passes.affine.plan import Absorption, AffineFusion, AffinePlan
from onnxfold.passes.affine.reactions import adds_bias, behind_layout
from onnxfold.passes.affine.sharing import FusionCandidate, settle
from onnxfold.passes.affine.source import AffineSource, source_of
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.decide import folds_without_betas
from onnxfold.passes.costs import Work, costs_of, elements, work, work_beside
from onnxfold.passes.deferral.flow import may_wait
from onnxfold.passes.deferral.measured import is_wanted
from onnxfold.passes.lower.targets import TargetLowering
from onnxfold.passes.narrow import refuse_narrow
from onnxfold.passes.places import Place, place_of, ref_of
from onnxfold.passes.ranges import RangeWarning, range_warning
from onnxfold.passes.scales.cut_parts import cut_of, element_readers
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class BetaCosts:
    """What a new Add costs, and what a norm saves without its beta at most, in picoseconds.

    ``addition``: for what is added to; ``saving``: of a norm, over all its elements, where that is
    more than a cost; otherwise it may save less.
    """

    addition: Callable[[Work], int]
    saving: Callable[[NormSite, int], int]


def decide(info: ModelInfo, settings: Settings) -> AffinePlan:
    """Return what moves where, weighed against what the norms that will fold save."""
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    costs = costs_of(settings.target)
    if settings.fold is Folding.ALWAYS:
        costs = costs.of_elements()

    @cache
    def folds() -> frozenset[str]:
        # What is unproved is of gammas here.
        return folds_without_betas(info, replace(settings, unproved={}))

    def saving(site: NormSite, cost: int) -> int:
        done = work(info.shape(site.input), site.size)
        if site.kind is NormKind.DYT:
            return costs.added(done)
        most = min(costs.added(done), costs.saved(done)) if costs.adds_beta else 0
        # Whether a norm folds takes a plan of all norms to tell.
        return most if most <= cost or info.ref(site.output) in folds() else 0

    def keep(site: NormSite) -> Refusal | None:
        unproved = settings.refuse_unproved(info.ref(site.output))
        if unproved is not None:
            return unproved
        if is_wanted(settings) and may_wait(site):
            return None  # no norm will be left to be fused with its gamma
        why = lowering.keep_affine(site)
        if why is None or (lowering.calls_rms(site) and info.ref(site.output) in folds()):
            return None
        return why

    plan = decide_affine(
        info,
        # A set of one element is normalised to 0: its gamma does nothing, wherever it is.
        [site for site in sites if site.size != 1 and not settings.excludes(site.name)],
        allow_split_bytes=settings.allow_split,
        keep=keep,
        weighing=BetaCosts(costs.added, saving),
    )
    return replace(plan, ranges=_ranges(info, sites, plan.fusions, settings.range_limit))


def _ranges(
    view: ModelInfo, sites: Iterable[NormSite], fusions: Iterable[AffineFusion], limit: float
) -> tuple[RangeWarning, ...]:
    """Return a warning for every weight whose range a gamma widens more than ``limit`` times."""
    by_output = {view.ref(site.output): site for site in sites}
    warnings = []
    for fusion in fusions:
        source = source_of(view, by_output[fusion.output])
        if not fusion.gamma or not isinstance(source, AffineSource) or source.gamma is None:
            continue
        for reader in fusion.readers:
            found = range_warning(
                view, fusion.norm, reader.weight, reader.outer, source.gamma, limit
            )
            if found is not None:
                warnings.append(found)
    return tuple(warnings)


def decide_affine(
    view: ModelInfo,
    sites: Iterable[NormSite],
    *,
    allow_split_bytes: int,
    keep: Callable[[NormSite], Refusal | None] = lambda _: None,
    weighing: BetaCosts | None = None,
) -> AffinePlan:
    """Return what moves where; weights above ``allow_split_bytes`` are never stored twice.

    ``keep`` says why a norm is better left with its gamma and beta, or None.  Without ``weighing``
    no beta is worth a new Add.
    """
    weighing = weighing or BetaCosts(lambda _: 0, lambda *_: 0)
    candidates: list[FusionCandidate] = []
    refusals: dict[str, Refusal] = {}
    for site in sites:
        source = source_of(view, site)
        if source is None:
            continue
        made: FusionCandidate | Refusal | None = keep(site)
        if made is None:
            if isinstance(source, AffineSource):
                made = _candidate(view, source, weighing)
            else:
                made = source
        if isinstance(made, Refusal):
            refusals[view.ref(site.output)] = made
        else:
            candidates.append(made)
            if made.beta_refusal is not None:
                refusals[made.fusion.output] = made.beta_refusal
    kept, shared = settle(view, candidates, allow_split_bytes)
    return AffinePlan(tuple(kept), tuple({**refusals, **shared}.items()))


def _candidate(
    view: ModelInfo, source: AffineSource, weighing: BetaCosts
) -> FusionCandidate | Refusal:
    reached = follow(view, source.value, source.channels)
    if isinstance(reached, Refusal):
        return reached
    found, shift_refusal = reached
    readers: list[Absorption] = []
    for item in found:
        made = _absorption(view, item)
        if isinstance(made, Refusal):
            return made
        readers.append(made)
    zeros = source.beta is not None and not np.any(source.beta)
    if zeros:  # nothing has to take them
        shift_refusal, readers = None, [reader.without_beta() for reader in readers]
    elif source.beta is not None and shift_refusal is None:
        weighed = _with_new_biases(view, source.site, found, readers, weighing)
        if isinstance(weighed, Refusal):
            shift_refusal = weighed
        else:
            readers = weighed
    beta = source.beta is not None and shift_refusal is None
    if source.beta is not None and not beta:
        obstacle = _keeps_beta(source, shift_refusal)
        if obstacle is not None:
            return obstacle
    if not beta:
        readers = [reader.without_beta() for reader in readers]
    gamma = source.gamma is not None
    fusion = AffineFusion(
        source.site.name, view.ref(source.site.output), gamma, beta, tuple(readers)
    )
    vectors = (source.gamma, source.beta)
    marks = tuple(b"" if vector is None else vector.tobytes() for vector in vectors)
    left = shift_refusal if source.beta is not None else None
    return FusionCandidate(fusion, (marks[0], marks[0] + b"/" + marks[1]), left)


def _with_new_biases(
    view: ModelInfo,
    site: NormSite,
    found: Sequence[ReachedLayer],
    readers: Sequence[Absorption],
    weighing: BetaCosts,
) -> list[Absorption] | Refusal:
    """Give readers without a bias one behind them, where that costs less than beta does."""
    made: list[Absorption] = []
    without: ir.Node | None = None
    cost, shape = 0, view.shape(site.input) or ()
    for item, reader in zip(found, readers, strict=True):
        node = item.reader.node
        if reader.biases:
            made.append(reader)
            continue
        place = _behind(view, node, item.absorbs, reader.outer)
        if place is None:
            return _no_bias(node, "has no bias to take beta, and can have none")
        without = without or node
        rows = elements(shape) // max(site.size, 1)
        size = reader.outer.size
        added = work_beside(view.shape(node.outputs[0]), size, shape, rows * size)
        cost += weighing.addition(added)
        made.append(replace(reader, bias=place))
    if without is None:
        return made
    saving = weighing.saving(site, cost)
    if saving > cost:
        return made
    spent, saved = (f"{picoseconds / 1e6:.4g} µs" for picoseconds in (cost, saving))
    sentence = f"an Add would cost {spent}, and the norm saves at most {saved} without beta"
    return _no_bias(without, f"has no bias to take beta: {sentence}")


def _behind(
    view: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer, outer: Channels
) -> Place | None:
    """Return the place of a new bias behind an operator that cannot have one itself."""
    shape = view.shape(node.outputs[0])
    if absorbs.bias is not None or absorbs.shift_refusal is not None or shape is None:
        return None
    digits = absorbs.output.digits
    if not digits or not all(digit.whole for digit in outer.digits) or not node.outputs[0].name:
        return None
    if any(digit.axis >= len(shape) or shape[digit.axis] != digit.size for digit in digits):
        return None
    return Place("", ref_of(view, Reader(node, len(node.inputs))), absorbs.output, behind=True)


def _keeps_beta(source: AffineSource, shift_refusal: Refusal | None) -> Refusal | None:
    """Say why gamma stays with a beta that cannot move, or None: beta / gamma can stay alone."""
    why = shift_refusal or Refusal(RefusalCode.SHIFT_CANNOT_CROSS, "beta cannot move")
    if source.gamma is None:
        return why
    if source.site.kind is not NormKind.DYT:  # spelled out for good, so a Mul less is a gain
        sentence = f"{why.sentence}; with beta in place, the norm multiplies by gamma for free"
        return Refusal(why.code, sentence, why.nodes)
    dtype = (source.value.dtype or ir.DataType.FLOAT).numpy()
    with np.errstate(all="ignore"):
        left = None if source.beta is None else (source.beta / source.gamma).astype(dtype)
    if left is None or not np.all(np.isfinite(left)):
        sentence = f"{why.sentence}, and beta / gamma, which would stay behind, is not finite"
        return Refusal(why.code, sentence, why.nodes)
    return None


def _no_bias(node: ir.Node, sentence: str) -> Refusal:
    return refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, sentence)


def _absorption(view: ModelInfo, item: ReachedLayer) -> Absorption | Refusal:
    node, absorbs = item.reader.node, item.absorbs
    root = root_of(view, Reader(node, absorbs.weight), absorbs.channels, absorbs.outer)
    if isinstance(root, Refusal):
        return root
    narrow = refuse_narrow(view, root.value)
    if narrow is not None:
        return narrow
    weight = place_of(view, root.value, root.reader, root.channels)
    whole = all(digit.whole for digit in root.outer.digits)
    disjoint = not set(root.outer.axes) & set(root.channels.axes) or absorbs.bias is not None
    bias = _bias(view, node, absorbs, root) if whole and disjoint else None
    made = Absorption(ref_of(view, item.reader), weight, root.outer, bias, absorbs.factor)
    if bias is not None or not (whole and disjoint) or absorbs.bias is not None:
        return made
    return replace(made, parts=_parts(view, node.outputs[0], absorbs))


def _bias(view: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer, root: EditPlace) -> Place | None:
    """Return the constant that takes W beta: the operator's own bias, or that of an Add behind."""
    if absorbs.shift_refusal is not None or node.outputs[0].name is None:
        return None
    size = absorbs.outer.size
    if absorbs.bias is not None:
        operand = node.inputs[absorbs.bias] if absorbs.bias < len(node.inputs) else None
        reader = Reader(node, absorbs.bias)
        if operand is None:
            return Place("", ref_of(view, reader), Channels.along([(0, size)]), 0)
        shape = shape_of(view, operand)
        if shape is None or not shape or shape[-1] != size or any(d != 1 for d in shape[:-1]):
            return None
        return place_of(view, operand, reader, Channels.along([(len(shape) - 1, size)]))
    return _added(view, node.outputs[0], absorbs.output)


def _parts(view: ModelInfo, value: ir.Value, absorbs: AbsorbingLayer) -> tuple[Place, ...]:
    """Return what the Adds behind the parts of ``value`` along its channels add, none if one lacks.

    What is left of joined projections: q, k and v are one product, each with its own bias, cut
    apart by a Split or by Slices.
    """
    readers, output = element_readers(value), absorbs.output
    if absorbs.shift_refusal is not None or view.is_output(value) or len(output.digits) != 1:
        return ()
    places: list[Place] = []
    for part in (part for node in readers for part in node.outputs):
        cut = cut_of(view, part)
        producer = part.producer()
        if cut is None or cut.source is not value or (cut.axis,) != output.axes or cut.length < 2:
            return ()
        channels = Channels.along([(cut.axis, cut.length)])
        place = _added(view, part, channels)
        if place is None or producer is None or producer.graph is not value.graph:
            return ()
        places.append(replace(place, start=cut.start))
    places.sort(key=lambda place: place.start)
    ends = [place.start + place.channels.size for place in places]
    beginnings = [place.start for place in places]
    tiled = beginnings == [0, *ends[:-1]] and ends[-1:] == [output.size]
    return tuple(places) if tiled and len(places) > 1 else ()


def _added(view: ModelInfo, value: ir.Value, output: Channels) -> Place | None:
    """Return what an Add or BiasGelu adds that alone reads ``value``, along the same channels.

    Layouts may stand between: exports of TensorFlow take a product back to its batch first.
    """
    reader = _only_reader(view, value)
    while reader is not None and not adds_bias(reader.node, reader.index):
        moved = behind_layout(view, reader, output)
        if moved is None:
            return None
        value, output = moved
        reader = _only_reader(view, value)
    if reader is None:
        return None
    node, index = reader.node, reader.index
    operand = node.inputs[1 - index]
    shape, rank = shape_of(view, operand), view.rank(value)
    if operand is None or shape is None or rank is None or len(shape) > rank:
        return None
    offset = rank - len(shape)
    sizes = {digit.axis: digit.size for digit in output.digits}
    if any(axis < offset for axis in sizes):
        return None
    if any(dim != sizes.get(axis + offset, 1) for axis, dim in enumerate(shape)):
        return None
    channels = output.renamed({axis: axis - offset for axis in output.axes})
    return place_of(view, operand, Reader(node, 1 - index), channels)


def _only_reader(view: ModelInfo, value: ir.Value) -> Reader | None:
    """Return what alone reads a value, in the graph that computes it."""
    readers = view.readers(value)
    if len(readers) != 1 or view.is_output(value) or readers[0].node.graph is not value.graph:
        return None
    return readers[0]


def shape_of(view: ModelInfo, value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant of a floating type, None for anything else."""
    tensor = view.tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return tuple(tensor.shape.numpy())
