"""Decide which gammas and betas move into the linear layers downstream of their norms.

gamma moves if every reader of the norm is linear with a constant weight that no other reader needs
unchanged (or that is small enough to store twice), and leaves a scale if the norm always multiplies
by one; in that case an outlying gamma stays (wanted.py). beta moves with it, or alone, if no zero
padding is between and every reader has a bias, can get one for free (Gemm, Conv, Attention), or
gets an Add that costs less than the norm saves without beta.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.operators.families.transfer import refuse
from onnxfold.passes.affine.absorptions import (
    Shifted,
    absorption,
    is_kept_scale,
    kept_scale,
    refuse_few_bits_of,
    with_new_biases,
)
from onnxfold.passes.affine.affine_walk import follow
from onnxfold.passes.affine.apply import FusionCandidate, settle
from onnxfold.passes.affine.plan import Absorption, AffineFusion, AffinePlan
from onnxfold.passes.affine.source import AffineSource, scale_source, source_of
from onnxfold.passes.affine.wanted import Folds, Wanted, refuse_outlying
from onnxfold.passes.base import Settings
from onnxfold.passes.ranges import RangeWarning, range_warning
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.targets.costs import Work

_FIXED = "has a quantized weight, which cannot take gamma; fold before quantizing"


@dataclass(frozen=True, slots=True)
class BetaCosts:
    """The cost of a new Add, and the most that a norm saves without its beta, in picoseconds.

    ``addition``: for the tensor to which it is added; ``saving``: of a norm, over all its elements,
    to compare with a cost; otherwise it may save less.
    """

    addition: Callable[[Work], int]
    saving: Callable[[NormSite, int], int]


@dataclass(frozen=True, slots=True)
class Scales:
    """The norms that multiply by a scale for any gamma, and those that need one that stays.

    ``stays``: the norm still multiplies after gamma has moved out. ``wanted``: a norm without gamma
    is written with a product. ``outliers``: an outlying gamma moves out of the former nevertheless.
    """

    stays: Callable[[NormSite], bool] = lambda _: False
    wanted: Callable[[NormSite], bool] = lambda _: False
    outliers: bool = True


def decide(info: ModelInfo, settings: Settings, folding: Folds) -> AffinePlan:
    """Return what moves where, weighed against the savings of the norms that will fold.

    ``folding`` returns which norms, by reference, fold once gammas and betas have moved.
    """
    sites, wanted = NORMS.of(info), Wanted(info, settings, folding)
    plan = _decide(info, sites, settings, wanted)
    while not wanted.hold(_with_beta(info, sites, plan)):
        plan = _decide(info, sites, settings, wanted)
    return replace(plan, ranges=_ranges(info, sites, plan.fusions, settings.range_limit))


def _decide(
    info: ModelInfo, sites: Iterable[NormSite], settings: Settings, wanted: Wanted
) -> AffinePlan:
    # A set of one element is normalized to 0, so its gamma has no effect anywhere.
    seen = (site for site in sites if site.size != 1 and not info.is_dead(site.last))
    return decide_affine(
        info,
        [site for site in seen if not settings.excludes(site.name)],
        allow_split_bytes=settings.allow_split,
        keep=wanted.keep,
        weighing=BetaCosts(wanted.costs.added, wanted.saving),
        scales=Scales(wanted.stays, wanted.scaled, wanted.always or settings.target.traits.calls),
    )


def _with_beta(info: ModelInfo, sites: Iterable[NormSite], plan: AffinePlan) -> frozenset[str]:
    """Return the norms, by reference, whose beta a plan leaves in place."""
    move = {fusion.output for fusion in plan.fusions if fusion.beta}
    return frozenset(info.ref(site.output) for site in sites if site.beta is not None) - move


def _ranges(
    view: ModelInfo, sites: Iterable[NormSite], fusions: Iterable[AffineFusion], limit: float
) -> tuple[RangeWarning, ...]:
    """Return a warning for every weight whose range a gamma widens more than ``limit`` times."""
    by_output, values = {view.ref(site.output): site for site in sites}, view.by_ref()
    warnings = []
    for fusion in fusions:
        source = source_of(view, by_output[fusion.output])
        if not fusion.gamma or not isinstance(source, AffineSource) or source.gamma is None:
            continue
        for reader in fusion.readers:
            gamma = reader.placed(source.gamma, 1.0)
            found = range_warning(values, fusion.norm, reader.weight, reader.outer, gamma, limit)
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
    scales: Scales | None = None,
) -> AffinePlan:
    """Return what moves where; weights above ``allow_split_bytes`` are never stored twice.

    ``keep`` returns why a norm should keep its gamma and beta, or None. Without ``weighing`` no
    beta is worth a new Add, and without ``scales`` no norm multiplies once gamma has moved.
    """
    weighing = weighing or BetaCosts(lambda _: 0, lambda *_: 0)
    scales = scales or Scales()
    candidates: list[FusionCandidate] = []
    refusals: dict[str, Refusal] = {}
    for site in sites:
        source = _source(view, site, scales)
        if source is None:
            continue
        made: FusionCandidate | Refusal | None = keep(site)
        if made is None:
            if isinstance(source, AffineSource):
                made = _candidate(view, source, weighing, scales)
            else:
                made = source
        if isinstance(made, Refusal):
            if site.gamma is not None or site.beta is not None:  # not just a wanted scale
                refusals[view.ref(site.output)] = made
        elif made is not None:
            candidates.append(made)
            if made.refusal is not None:
                refusals[made.fusion.output] = made.refusal
    kept, shared = settle(view, candidates, allow_split_bytes)
    return AffinePlan(tuple(kept), tuple({**refusals, **shared}.items()))


def _source(view: ModelInfo, site: NormSite, scales: Scales) -> AffineSource | Refusal | None:
    """Return the movable part: gamma unless it is one power of two, beta, a wanted scale."""
    bare = scale_source(view, site) if site.gamma is None and scales.wanted(site) else None
    source = bare or source_of(view, site)
    if isinstance(source, AffineSource) and not source.channels.size:
        return None
    if not isinstance(source, AffineSource) or source.gamma is None or not scales.stays(site):
        return source
    if not is_kept_scale(source.gamma):
        return source
    return None if source.beta is None else replace(source, gamma=None)


def _candidate(
    view: ModelInfo, source: AffineSource, weighing: BetaCosts, scales: Scales
) -> FusionCandidate | Refusal | None:
    reached = follow(view, source.value, source.channels)
    if isinstance(reached, Refusal):
        return reached
    found, shift_refusal = reached
    readers: list[Absorption] = []
    for item in found:
        made = absorption(view, item)
        if isinstance(made, Refusal):
            return made
        readers.append(made)
    zeros = source.beta is not None and not np.any(source.beta)
    if zeros:  # nothing needs to absorb them
        shift_refusal, readers = None, [reader.without_beta() for reader in readers]
    elif source.beta is not None and shift_refusal is None:
        site = source.site
        shifted = Shifted(site.input, site.size, partial(weighing.saving, site))
        weighed = with_new_biases(view, shifted, found, readers, weighing.addition)
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
    left = _left(view, source, readers, scales)
    stays = left if isinstance(left, Refusal) else None
    gamma = None if isinstance(left, Refusal) else source.gamma
    if gamma is None and not beta:
        return stays
    dtype = source.value.dtype
    few = None if gamma is None else refuse_few_bits_of(view, gamma, dtype, readers)
    if few is not None:
        return few
    fusion = AffineFusion(
        source.site.name,
        view.ref(source.site.output),
        gamma is not None and source.site.gamma is not None,
        beta,
        tuple(readers),
        1.0 if isinstance(left, Refusal) else left,
    )
    vectors = (None if gamma is None else gamma / fusion.left, source.beta)
    marks = tuple(b"" if vector is None else vector.tobytes() for vector in vectors)
    kept = stays or (shift_refusal if source.beta is not None else None)
    return FusionCandidate(fusion, (marks[0], marks[0] + b"/" + marks[1]), kept)


def _left(
    view: ModelInfo, source: AffineSource, readers: Sequence[Absorption], scales: Scales
) -> float | Refusal:
    """Return the scale that the norm keeps once gamma has moved, or why gamma stays."""
    fixed = next((reader for reader in readers if reader.weight.fixed), None)
    if source.gamma is not None and fixed is not None:
        node = view.by_ref()[fixed.reader.node].producer()
        if node is not None:
            return refuse(RefusalCode.QUANTISED, node, _FIXED)
    if source.gamma is None or not scales.stays(source.site):
        return 1.0
    outlying = None
    if not scales.outliers and source.site.gamma is not None:
        outlying = refuse_outlying(view, source.site.name, source.gamma, readers)
    return outlying or kept_scale(view, source.gamma, readers)


def _keeps_beta(source: AffineSource, shift_refusal: Refusal | None) -> Refusal | None:
    """Return why gamma stays with a beta that cannot move; None if beta / gamma can stay."""
    why = shift_refusal or Refusal(RefusalCode.SHIFT_CANNOT_CROSS, "beta cannot move")
    if source.gamma is None:
        return why
    if source.site.kind is not NormKind.DYT:  # spelled out in any case, so one Mul less is a gain
        sentence = f"{why.sentence}; with beta in place, the norm multiplies by gamma for free"
        return Refusal(why.code, sentence, why.nodes)
    dtype = (source.value.dtype or ir.DataType.FLOAT).numpy()
    with np.errstate(all="ignore"):
        left = None if source.beta is None else (source.beta / source.gamma).astype(dtype)
    if left is None or not np.all(np.isfinite(left)):
        sentence = f"{why.sentence}, and beta / gamma, which would remain, is not finite"
        return Refusal(why.code, sentence, why.nodes)
    return None
