"""LayerNorms that become RMSNorms although their inputs have a mean: requested, measured, declared.

It cannot be proved: the pass runs after all exact passes, on what they left, and its result is
checked by an error budget.
"""

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.passes.base import NormsPlan, ProofOutcome, Settings, named_sites
from onnxfold.targets.norm_settings import NORM_FORMS, NormForms

_SHARED = "its spelling shares x - mean(x) with others"


def refuse_dropping(site: NormSite, forms: NormForms, settings: Settings) -> str | None:
    """Return why a norm cannot be replaced by an RMSNorm, whatever its mean, or None."""
    if site.refusal is not None:
        return site.refusal.sentence
    if settings.excludes(site.name):
        return "excluded by name"
    refusal = forms.refuse_rms(site)
    if refusal is not None:
        return refusal.sentence
    return None if forms.calls_rms(site) else _SHARED


def decide(info: ModelInfo, settings: Settings) -> NormsPlan:
    """Return the LayerNorms of the names that were asked for."""
    sites = [site for site in NORMS.of(info) if site.kind is NormKind.LAYER_NORM]
    named = tuple(info.ref(site.output) for site in sites if site.name in settings.dropped)
    return NormsPlan(named)


def apply(edit: Editor, plan: NormsPlan, settings: Settings) -> None:
    """Put an RMSNorm of the same epsilon, gamma and beta in the place of every norm named."""
    forms = NORM_FORMS.of(edit.info)(settings.target, settings.norm_form)
    for site in named_sites(edit, plan):
        edit.stand_in(forms.rms_norm(site, site.input), site.last, site.nodes)


def prove(_before: ModelInfo, _after: ModelInfo, _plan: NormsPlan) -> ProofOutcome:
    """Show nothing: it is another function."""
    return ProofOutcome(failures=("a mean that was dropped is not 0",))
