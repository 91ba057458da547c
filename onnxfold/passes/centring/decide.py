"""Decide which LayerNorms become RMSNorms.

Those that are worth it: by their prices, and by the fusions of runtimes.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.norms import CENTRINGS, NORMS, BareCentring, NormKind, NormSite
from onnxfold.norms.site import cast_of_centred
from onnxfold.options import Defer, Device, Folding, WrittenForm
from onnxfold.passes.base import BARE_MEANS, Settings
from onnxfold.passes.centring.cheapest import Demand, cheapest_plan
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS_OF_PARTS, ModelTransfers
from onnxfold.targets.costs import Costs, costs_of, microseconds, work
from onnxfold.targets.fusions import refuse_fused, refuse_stripped
from onnxfold.targets.installed import onnxruntime_version
from onnxfold.targets.norm_settings import NORM_FORMS, NormForms
from onnxfold.targets.spelled import turned_norms
from onnxfold.targets.sums import SLOW_SINCE, joined_additions

_ALWAYS = "; --fold always folds it"


def worthwhile(
    transfers: ModelTransfers,
    sites: Sequence[NormSite],
    settings: Settings,
    *,
    moved: bool = False,
    with_beta: Container[str] = (),
) -> tuple[CentringPlan, dict[str, Refusal], dict[str, Refusal]]:
    """Return the plan of worthwhile folds, why others cannot fold, and why some that can stay.

    ``moved``: once gammas and betas have moved out of the norms, and each has a scale that stays;
    betas stay of the norms ``with_beta``, by reference.
    """
    view = transfers.view
    forms = NORM_FORMS.of(view)(settings.target, settings.norm_form)
    refused: dict[str, Refusal] = {}
    able: list[NormSite] = []
    for site in sites:
        refusal = _refuse_early(view, site, forms, settings)
        if refusal is None:
            able.append(site)
        else:
            refused[view.ref(site.output)] = refusal
    costs = costs_of(settings.target)
    bare, early = _bare(view, sites, settings)
    refused |= early
    sharing = Counter(value for site in sites for value in site.centred)
    prices = _Prices(forms, view, settings, with_beta if moved else None, sharing)
    of_elements = costs.of_elements()
    wanted = [prices.at_any_price(site, of_elements) for site in able]
    exact = _cheapest(transfers, wanted, bare, settings, of_elements)
    if settings.convert_to is not None or settings.fold is Folding.ALWAYS:
        return exact, refused, {}
    outputs = {fold.output for fold in exact.folds}
    demands = {view.ref(site.output): prices.demand(site, costs) for site in able}
    folded = [demand for output, demand in demands.items() if output in outputs]
    left = _left(view, [demand.site for demand in folded], forms, settings, scaled=moved)
    dear = [demand for demand in folded if not demand.pays]
    left |= {view.ref(each.site.output): _too_dear(view, each) for each in dear}
    if not left and not exact.insertions:  # at any prices, nothing is cheaper
        return _priced(exact, folded), refused, left
    others = [demand for output, demand in demands.items() if output not in left]
    plan = _cheapest(transfers, others, bare, settings, costs)
    lost = outputs - left.keys() - {fold.output for fold in plan.folds}
    left |= {output: _centring_too_dear(view, demands[output], costs) for output in lost}
    return plan, refused, left


def _cheapest(
    transfers: ModelTransfers,
    demands: Sequence[Demand],
    bare: Sequence[BareCentring],
    settings: Settings,
    costs: Costs,
) -> CentringPlan:
    return cheapest_plan(
        transfers,
        demands,
        costs,
        allow_split_bytes=settings.allow_split,
        overflowing=settings.overflowing,
        bare=bare,
    )


def _bare(
    view: ModelInfo, sites: Sequence[NormSite], settings: Settings
) -> tuple[list[BareCentring], dict[str, Refusal]]:
    """Return the means that may go by themselves, which `convert` leaves, and why others stay.

    A mean whose result a norm reads after a Cast stays, because that norm stays for it.
    """
    casts = (cast_of_centred(view, site) for site in sites if site.subtracts_mean)
    behind = {cast.inputs[0]: cast for cast in casts if cast is not None}
    able: list[BareCentring] = []
    refused: dict[str, Refusal] = {}
    for each in CENTRINGS.of(view) if settings.convert_to is None else ():
        cast = behind.get(each.output)
        refusal = _refuse_here(view, each, settings)
        if cast is not None:
            sentence = f"a norm reads it after {node_label(cast)}"
            refusal = Refusal(RefusalCode.NO_CHEAPER_FORM, sentence, (node_label(cast),))
        if BARE_MEANS in settings.failed:
            sentence = "without it, what reads the result would err by more than the check allows"
            refusal = Refusal(RefusalCode.NOT_PROVED, sentence, (each.name,))
        if refusal is None:
            able.append(each)
        else:
            refused[view.ref(each.output)] = refusal
    return able, refused


def _priced(plan: CentringPlan, folded: Sequence[Demand]) -> CentringPlan:
    """Return a plan without insertions at the prices of the norms that it folds."""
    added = sum(demand.spent_ps for demand in folded)
    gain = sum(demand.gain_ps for demand in folded) - added
    operators = sum(demand.operators for demand in folded)
    return replace(plan, gain_ps=gain, operators=operators, added_ps=added)


@dataclass(frozen=True, slots=True)
class _Prices:
    """What the norms of a version save and take; ``sharing``: how many read one x - mean(x).

    ``with_beta``: the norms, by reference, whose betas stay, or None where all do.
    """

    forms: NormForms
    view: ModelInfo
    settings: Settings
    with_beta: Container[str] | None
    sharing: Mapping[ir.Value, int]

    def demand(self, site: NormSite, costs: Costs) -> Demand:
        """Return a norm with its prices."""
        done = work(self.view.shape(site.input), site.size)
        if self.settings.convert_to is not None:  # one centering for one norm is a LayerNorm
            return Demand(site, done.elements * (costs.centring - 1))
        shared = max((self.sharing[value] for value in site.centred), default=1)
        merged = shared > 1 and not self.forms.calls_in_place(site)  # no session makes them one
        beta = costs.adds_beta and not merged and self._keeps_beta(site)
        apart = self._joined(site)
        apart_now = self.forms.stays_in_operators(site)
        gain = costs.centred(done) if apart_now else costs.saved(done)
        spent = costs.more(apart, done)
        spent += costs.added(done) if beta else 0
        if merged:
            # Together they compute x - mean(x) once, as a centering does, but not as operators.
            gain = min(gain, spent + done.elements * costs.centring // shared)
        if self.view.is_dead(site.last):  # no session computes it: it folds where that is free
            return Demand(site, 1)
        return Demand(site, gain, spent, apart + beta, costs.uncertain(done))

    def at_any_price(self, site: NormSite, costs: Costs) -> Demand:
        """Return a norm that folds wherever its input is centered without an operator."""
        demand = self.demand(site, costs)
        least = demand.spent_ps + work(self.view.shape(site.input), site.size).elements
        return replace(demand, gain_ps=max(demand.gain_ps, least))

    def _keeps_beta(self, site: NormSite) -> bool:
        """Whether the fold leaves an Add that was no operator of its own, and not of zeros."""
        moves = self.with_beta is not None and self.view.ref(site.output) not in self.with_beta
        if moves or self.forms.stays_in_operators(site):
            return False
        beta = self.view.array(site.beta) if isinstance(site.beta, ir.Value) else site.beta
        return site.beta is not None and (beta is None or bool(np.any(beta)))

    def _joined(self, site: NormSite) -> int:
        """Count the additions that a session fuses with a LayerNorm but not with an RMSNorm."""
        settings = self.settings
        if settings.target.traits.calls:
            return 0
        on_cpu = settings.target.traits.contrib and settings.device is Device.CPU
        if on_cpu and onnxruntime_version() >= SLOW_SINCE:
            return 0  # these are not fused with LayerNorms either
        return joined_additions(self.view, site)


def _too_dear(view: ModelInfo, demand: Demand) -> Refusal:
    """Refuse a norm that would not be faster, with its savings and costs."""
    count = demand.operators
    if not demand.spent_ps:
        sentence = f"norm '{demand.site.name}' would save nothing without its mean{_ALWAYS}"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(demand.site.nodes[-1]),))
    more = f"{count} more operator{'' if count == 1 else 's'}"
    close = demand.gain_ps > demand.spent_ps
    margin = f", and prices are known within {microseconds(demand.margin_ps)}" if close else ""
    return _dearer(view, demand.site, demand.gain_ps, more, demand.spent_ps, margin)


def _centring_too_dear(view: ModelInfo, demand: Demand, costs: Costs) -> Refusal:
    """Refuse a norm for which no inserted centering pays, with its savings and costs."""
    spent = costs.centred(work(view.shape(demand.site.input), demand.site.size))
    saved = demand.gain_ps - demand.spent_ps
    return _dearer(view, demand.site, saved, "an inserted centering", spent)


def _dearer(
    view: ModelInfo, site: NormSite, saved: int, what: str, spent: int, known: str = ""
) -> Refusal:
    fixed = work(view.shape(site.input), site.size).fixed
    sizes = "" if fixed else ", counting each free size as 1"
    sentence = (
        f"norm '{site.name}' would save {microseconds(saved)} without its mean, but {what} would "
        f"take {microseconds(spent)}{sizes}{known}{_ALWAYS}"
    )
    return Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))


def _left(
    info: ModelInfo,
    sites: Sequence[NormSite],
    forms: NormForms,
    settings: Settings,
    *,
    scaled: bool,
) -> dict[str, Refusal]:
    """Return the norms that runtimes fuse better unchanged, and how."""
    left = refuse_fused(info, sites, settings.target)
    spelled = [site for site in sites if site.output not in left and forms.spells_rms(site)]
    by_default = settings.norm_form is WrittenForm.AUTO and settings.defer is not Defer.ALL
    if settings.target.traits.standard and by_default:
        for bare in (False, True):
            these = [site for site in spelled if forms.is_bare(site) == bare]
            left |= refuse_stripped(info, these, scaled=scaled or bare)
    spelled = [site for site in spelled if site.output not in left]
    turned = turned_norms(info, {site.output for site in spelled})
    left |= {site.output: _stays_turned(site) for site in spelled if site.output in turned}
    return {info.ref(output): refusal for output, refusal in left.items()}


def _stays_turned(site: NormSite) -> Refusal:
    sentence = f"norm '{site.name}' stands between Transposes, which runtimes move through all but"
    label = (node_label(site.nodes[-1]),)
    return Refusal(RefusalCode.NO_CHEAPER_FORM, f"{sentence} one operator", label)


def _refuse_early(
    info: ModelInfo, site: NormSite, forms: NormForms, settings: Settings
) -> Refusal | None:
    if site.refusal is not None:
        return site.refusal
    if site.kind is NormKind.RMS_NORM:
        return Refusal(RefusalCode.ALREADY_RMS, "is an RMSNorm already", ())
    if not site.subtracts_mean:
        sentence = f"{site.kind.value} does not subtract the mean"
        return Refusal(RefusalCode.NOT_CENTRED_NORM, sentence, ())
    return _refuse_here(info, site, settings) or forms.refuse_rms(site)


def _refuse_here(
    info: ModelInfo, site: NormSite | BareCentring, settings: Settings
) -> Refusal | None:
    if settings.excludes(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by name", ())
    return settings.refuse_unproved(info.ref(site.output))


@dataclass(frozen=True, slots=True)
class CentringDecision:
    """The plan, why each other norm does not fold, and what a paper's rules count.

    ``remaining`` are all norms by reference, ``in_place`` those that stay and become one operator,
    ``left`` those that could fold and are better left as they are.
    """

    plan: CentringPlan = field(default_factory=CentringPlan)
    refusals: tuple[tuple[str, Refusal], ...] = ()
    remaining: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether no norm folds."""
        return self.plan.empty

    def left_out(self, reason: str) -> "CentringDecision":
        """Return the decision to fold nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        kept = tuple((fold.output, why) for fold in self.plan.folds + self.plan.centrings)
        refusals = (*self.refusals, *kept)
        plan = CentringPlan(refusals=(*self.plan.refusals, *kept))
        return replace(self, plan=plan, refusals=refusals, left=frozenset())

    def then(self, later: "CentringDecision") -> "CentringDecision":
        """Return both decisions as one: which norms stay is known by the later one."""
        done = {fold.output for fold in self.plan.folds + self.plan.centrings}
        refusals = tuple((norm, why) for norm, why in later.refusals if norm not in done)
        plan = self.plan.then(later.plan)
        return replace(self, plan=plan, refusals=refusals, left=later.left)


def decide(info: ModelInfo, settings: Settings) -> CentringDecision:
    """Return the cheapest plan, and why the norms that it leaves do not fold."""
    sites = NORMS.of(info)
    forms = NORM_FORMS.of(info)(settings.target, settings.norm_form)
    transfers = TRANSFERS_OF_PARTS.of(info)
    plan, refused, left = worthwhile(transfers, sites, settings)
    in_place = (site for site in sites if forms.calls_in_place(site))
    return CentringDecision(
        plan,
        tuple({**refused, **dict(plan.refusals), **left}.items()),
        frozenset(info.ref(site.output) for site in sites),
        frozenset(info.ref(site.output) for site in in_place),
        frozenset(left),
    )


def folds_without_betas(
    info: ModelInfo, settings: Settings, with_beta: frozenset[str]
) -> frozenset[str]:
    """Return the norms, by reference, that fold once gammas and betas have moved.

    The betas of some stay.
    """
    sites = NORMS.of(info)
    transfers = TRANSFERS_OF_PARTS.of(info)
    plan, _, _ = worthwhile(transfers, sites, settings, moved=True, with_beta=with_beta)
    return frozenset(fold.output for fold in plan.folds)
