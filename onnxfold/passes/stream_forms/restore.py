"""RMSNorms of inputs with mean 0, spelled as LayerNorms."""

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.options import WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.norms_plan import NormsPlan, named_sites
from onnxfold.passes.stream_forms.zero_means import obstacle
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import walk_back
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.targets.norm_forms import NORM_FORMS, NormForms


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
