"""RMSNorms of inputs with mean 0, spelled as LayerNorms.

Which points of a zero-mean graph already have mean 0, down to the stored weights.

    mean(x) = 0  implies  RMS(x) = x / sqrt(|x|^2/d + e) = (x - mean(x)) / sqrt(var(x) + e) = LN(x)

A carrier preserves mean 0, f(P x1, P x2, ...) = P f(x1, x2, ...), so a value has mean 0 if
everything that it carries has, and a writer if its weight is centered.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, appendix C.
"""

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.graph.traversal import reached
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.norms.completed import completed_part
from onnxfold.options import WrittenForm
from onnxfold.passes.base import NormsPlan, Settings, named_sites
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import ZeroMeanGraph, walk_back
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.targets.norm_settings import NORM_FORMS, NormForms
from onnxfold.weights.edited import is_centred_weight


def obstacle(
    info: ModelInfo, graph: ZeroMeanGraph, start: Point, known: dict[Point, bool]
) -> Refusal | None:
    """Return the nearest reason why a value may have a mean, or None if its mean is 0.

    ``known`` caches which weights are centered.
    """

    def onward(point: Point) -> tuple[Point, ...]:
        return () if _is_zero(info, graph, point) else graph[point].carried

    for point in reached([start], onward):
        facts = graph[point]
        if _is_zero(info, graph, point):
            continue
        if facts.opaque is not None:
            return facts.opaque
        if facts.constant and not _is_centred(info, point, known):
            return _has_mean(point)
    return None


def _is_zero(info: ModelInfo, graph: ZeroMeanGraph, point: Point) -> bool:
    return graph[point].zero_mean or completed_part(info, point.value, point.fiber) is not None


def _is_centred(info: ModelInfo, point: Point, known: dict[Point, bool]) -> bool:
    if point not in known:
        tensor = info.tensor(point.value)
        known[point] = tensor is not None and is_centred_weight(tensor, point.fiber)
    return known[point]


def _has_mean(point: Point) -> Refusal:
    name = point.value.name or ""
    sentence = f"weight '{name}' has a mean along {point.fiber}, so the norm reads one"
    return Refusal(RefusalCode.HAS_MEAN, sentence, (name,))


def decide(info: ModelInfo, settings: Settings) -> NormsPlan:
    """Return the RMSNorms whose inputs have mean 0 by the weights, and why the others stay."""
    sites = NORMS.of(info)
    forms = NORM_FORMS.of(info)(settings.target, WrittenForm.AUTO)
    early = {site: _refuse_early(site, forms, settings) for site in sites}
    asked = [site for site in sites if early[site] is None]
    graph = walk_back(TRANSFERS.of(info), asked)
    norms: list[str] = []
    refusals: list[tuple[str, Refusal]] = []
    known: dict[Point, bool] = {}
    for site in sites:
        ref = info.ref(site.output)
        why = early[site] or obstacle(info, graph, Point(site.input, site.fiber), known)
        if why is None:
            norms.append(ref)
        else:
            refusals.append((ref, why))
    remaining = frozenset(info.ref(site.output) for site in sites)
    return NormsPlan(tuple(norms), tuple(refusals), remaining)


def _refuse_early(site: NormSite, forms: NormForms, settings: Settings) -> Refusal | None:
    if site.refusal is not None:
        return site.refusal
    if site.kind is NormKind.LAYER_NORM:
        return Refusal(RefusalCode.ALREADY_LAYER, "is a LayerNorm already")
    if site.kind is not NormKind.RMS_NORM:
        return Refusal(RefusalCode.NOT_CENTRED_NORM, f"{site.kind.value} is no RMSNorm")
    if settings.excludes(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by name")
    return forms.refuse_layer(site)


def apply(edit: Editor, plan: NormsPlan, settings: Settings) -> None:
    """Replace every named norm by a LayerNorm of the same epsilon, gamma and beta."""
    forms = NORM_FORMS.of(edit.info)(settings.target, WrittenForm.AUTO)
    for site in named_sites(edit, plan):
        edit.stand_in(forms.restored(site), site.last, site.nodes)
