"""What the passes of one run decided, as one plan and one set of findings for the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from onnxfold.graph import ModelInfo
from onnxfold.passes.affine.plan import AffinePlan
from onnxfold.passes.base import NormsPlan, ProofOutcome
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.deferral.undefer import ReinstatingPlan
from onnxfold.passes.findings import DescribedNorms, Description, Findings, PaperCounts, Sums
from onnxfold.passes.plan import Plan
from onnxfold.passes.scales.plan import ScalesPlan
from onnxfold.passes.stream_forms.plan import CompressionPlan, ReadersPlan
from onnxfold.pipeline.step import LeftOut
from onnxfold.refusal import Refusal

_Plan = TypeVar("_Plan")


class _Move(Protocol):
    @property
    def output(self) -> str:
        """The reference of the norm's or operator's result."""


def outputs(moves: Iterable[_Move]) -> tuple[str, ...]:
    """Return the references of the results that moves concern."""
    return tuple(move.output for move in moves)


@dataclass(slots=True)
class Decided:
    """The current version of the passes, what each decided, and what was proved of them."""

    info: ModelInfo
    description: Description
    decisions: dict[str, Any] = field(default_factory=dict)
    shown: list[ProofOutcome] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    changed: bool = False
    final: ModelInfo | None = None  # of a prepared copy of what is written
    sums: Sums = field(default_factory=Sums)
    paper: PaperCounts | None = None  # where it is asked for

    def note(self, name: str, decision: Any, left_out: LeftOut | None) -> None:
        """Record what a pass decided, or made of what it had left out before."""
        earlier = self.decisions.get(name)
        if earlier is not None and decision.empty:
            return
        self.decisions[name] = decision if earlier is None else earlier.then(decision)
        self.left_out = [left for left in self.left_out if left.name != name]
        self.left_out += [] if left_out is None else [left_out]

    def leave_all(self, left: LeftOut) -> None:
        """Record that nothing is written of what was decided, and why."""
        self.decisions = {
            name: each if each.empty else each.left_out(left.reason)
            for name, each in self.decisions.items()
        }
        self.left_out = [left]
        self.changed, self.final, self.shown, self.sums = False, None, [], Sums()

    def _of(self, name: str, empty: _Plan) -> _Plan:
        """Return the decision of a pass, or an empty one where there is none."""
        decision: _Plan = self.decisions.get(name, empty)
        return decision

    @property
    def plan(self) -> Plan:
        """The changes to be made."""
        made = self._of("centring", CentringDecision()).plan
        moves = [self._of(name, AffinePlan()).fusions for name in ("affine", "tables")]
        return Plan(
            **{each.name: getattr(made, each.name) for each in fields(made)},
            fusions=moves[0] + moves[1],
            scales=self._of("scales", ScalesPlan()).fusions,
            batch_norms=self._of("batch norms", AffinePlan()).fusions,
            deferred=self._of("deferral", DeferralPlan()).norms,
        )

    @property
    def differs(self) -> bool:
        """Whether a pass has decided on a change."""
        return any(not decision.empty for decision in self.decisions.values())

    @property
    def findings(self) -> Findings:
        """The content of the reports."""
        affine = self._of("affine", AffinePlan())
        scales = self._of("scales", ScalesPlan())
        centring = self._of("centring", CentringDecision())
        restoring = self._of("restoring", NormsPlan())
        compression = self._of("compression", CompressionPlan())
        decompression = self._of("decompression", CompressionPlan())
        readers = self._of("readers", ReadersPlan())
        described = DescribedNorms(self.info, self.description).of
        in_tables = set(outputs(self._of("tables", AffinePlan()).fusions))

        def reasons(refused: Iterable[tuple[str, Refusal]]) -> dict[str, Refusal]:
            return {norm: why for ref, why in refused for norm in described(ref)}

        def rows(norms: Iterable[str]) -> frozenset[str]:
            return frozenset(norm for ref in norms for norm in described(ref))

        return Findings(
            self.description,
            self._described_plan(described),
            reasons(centring.refusals + restoring.refusals + compression.refusals)
            | dict(decompression.refusals),
            reasons((ref, why) for ref, why in affine.refusals if ref not in in_tables),
            rows(centring.remaining | restoring.remaining | compression.remaining),
            rows(centring.in_place),
            rows(centring.left),
            affine.ranges + scales.ranges,
            rows(restoring.norms) if "restoring" in self.decisions else None,
            rows(compression.norms) if "compression" in self.decisions else None,
            frozenset(decompression.norms),
            reasons(self._of("deferral", DeferralPlan()).refusals),
            self._of("reinstating", ReinstatingPlan()).found,
            rows(readers.norms) if "readers" in self.decisions else None,
            reasons(readers.refusals),
            scales.refusals,
            scaled_streams=self.decisions.get("scaled streams"),
            paper=self.paper,
            rotated_streams=self.decisions.get("rotated streams"),
            rotated_heads=self.decisions.get("rotated heads"),
            split_gammas=self.decisions.get("split gammas"),
        )

    def _described_plan(self, described: Callable[[str], tuple[str, ...]]) -> Plan:
        """Return the plan by the described norms, as they were originally."""
        plan = self.plan
        return replace(
            plan,
            folds=tuple(replace(f, output=ref) for f in plan.folds for ref in described(f.output)),
            fusions=tuple(
                replace(m, output=ref) for m in plan.fusions for ref in described(m.output)
            ),
            deferred=tuple(
                replace(n, output=ref) for n in plan.deferred for ref in described(n.output)
            ),
        )
