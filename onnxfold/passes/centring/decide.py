"""Deciding which LayerNorms become RMSNorms."""

from dataclasses import dataclass, field, replace

from onnxfold.graph import ModelInfo
from onnxfold.norms import NORMS
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.passes.centring.worth import worthwhile
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS_OF_PARTS
from onnxfold.targets.norm_settings import NORM_FORMS


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
