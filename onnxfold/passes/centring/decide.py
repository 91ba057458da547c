"""Deciding which LayerNorms become RMSNorms, and counting those that papers would fold."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.network import solve
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.passes.centring.worth import worthwhile
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import PointFacts, walk_back
from onnxfold.streams.model_transfers import Assumptions, Embeddings, ModelTransfers, Point
from onnxfold.targets.lowering import TargetLowering


@dataclass(frozen=True, slots=True)
class CentringDecision:
    """The plan, why each other norm does not fold, and the counts of the paper's rules.

    ``remaining`` are all norms by reference, ``in_place`` those that stay and become one operator,
    ``left`` those that could fold and are better left as they are.
    """

    plan: CentringPlan = field(default_factory=CentringPlan)
    refusals: tuple[tuple[str, Refusal], ...] = ()
    algorithm1: int = 0
    algorithm1_embed_centred: int = 0
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


def decide(info: ModelInfo, settings: Settings) -> CentringDecision:
    """Return the cheapest plan, and why the norms that it leaves do not fold."""
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    transfers = ModelTransfers(info, sites, of_parts=True)
    found = worthwhile(transfers, sites, settings)
    layer_norms = [site for site in sites if site.kind is NormKind.LAYER_NORM]
    in_place = (site for site in sites if lowering.calls_in_place(site))
    whole = transfers.without_parts()  # the paper centres whole weights
    return CentringDecision(
        found.plan,
        tuple({**found.refused, **dict(found.plan.refusals), **found.left}.items()),
        count_foldable(
            whole, layer_norms, Assumptions(True, Embeddings.OPAQUE, asks_readers=False)
        ),
        count_foldable(
            whole, layer_norms, Assumptions(True, Embeddings.CENTRED, asks_readers=False)
        ),
        frozenset(info.ref(site.output) for site in sites),
        frozenset(info.ref(site.output) for site in in_place),
        frozenset(found.left),
    )


def folds_without_betas(info: ModelInfo, settings: Settings) -> frozenset[str]:
    """Return the norms, by reference, that fold once gammas and betas have moved out of them."""
    sites = find_norms(info)
    transfers = ModelTransfers(info, sites, of_parts=True)
    plan = worthwhile(transfers, sites, settings, moved=True).plan
    return frozenset(fold.output for fold in plan.folds)


def count_foldable(
    transfers: ModelTransfers, sites: Sequence[NormSite], assumptions: Assumptions
) -> int:
    """Count the norms that fold under a paper's rules: weights may be split, no centring added."""
    asked = [Point(site.input, site.fiber) for site in sites]
    graph = walk_back(transfers, sites, assumptions)
    cut = solve(graph, ((point, 1) for point in asked), _free_splits)
    return sum(point in cut.at_hand for point in asked)


def _free_splits(_: Point, facts: PointFacts) -> int | None:
    return 0 if facts.constant else None
