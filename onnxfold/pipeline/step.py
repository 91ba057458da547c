"""One pass on one version of a model: it decides, creates the next version, and is proved.

If the proof fails, the pass is tried with half of its moves, then with halves of the failed ones:
the moves that are kept were proved together, and the others are reported with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.passes.base import Pass, ProofOutcome, Settings
from onnxfold.pipeline import finalize
from onnxfold.pipeline.error_context import complaint
from onnxfold.pipeline.stage_timer import StageTimer

# Proofs of parts of one pass: two for each halving of the moves at fault, largest first.
_MOST_PROOFS = 12
_MOST_IN_VAIN = 4  # if all parts fail, which bounds the cost of a pass that fails everywhere


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A pass that was not applied, or not to ``moves``, and why."""

    name: str
    reason: str
    moves: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report's form: ``{"name", "reason"}``, and ``"moves"`` of a part."""
        document: dict[str, Any] = {"name": self.name, "reason": self.reason}
        return document | {"moves": list(self.moves)} if self.moves else document


@dataclass(frozen=True, slots=True)
class Step:
    """The decision of a pass, the version that it created, or None, and what was proved of it."""

    decision: Any
    after: ModelInfo | None = None
    shown: ProofOutcome | None = None
    left_out: LeftOut | None = None


def step(
    chosen: Pass[Any], before: ModelInfo, settings: Settings, timer: StageTimer, *, prove: bool
) -> Step:
    """Apply a pass, as far as it is proved; without a proof the version is edited in place."""
    made = _made(chosen, before, settings, timer, copy=prove)
    if made.after is None or not prove:
        return made
    shown = proved(chosen, before, made.after, made.decision, settings, timer)
    if not shown.failures:
        return replace(made, shown=shown)
    fault = complaint(before.model)
    reason = failure_of(shown) if fault is None else f"the model is not valid ONNX: {fault}"
    moves = chosen.moves(made.decision)
    search = _Search(chosen, before, settings, timer, dict.fromkeys(moves, reason))
    if fault is None:  # otherwise most proofs fail, each as slowly
        search.run(moves)
    nothing = Step(made.decision.left_out(reason), left_out=LeftOut(chosen.name, reason))
    return search.result() or nothing


def proved(
    chosen: Pass[Any],
    before: ModelInfo,
    after: ModelInfo,
    decision: Any,
    settings: Settings,
    timer: StageTimer,
) -> ProofOutcome:
    """Return the result of a pass's proof."""
    with timer.stage("prove"):
        for version in (before, after):  # bodies are run, and compared by name
            finalize.define_functions(version, settings.target, settings.norm_form)
        return chosen.prove(before, after, decision)


def failure_of(shown: ProofOutcome) -> str:
    """Return why a proof failed."""
    return f"the proof failed: {shown.failures[0]}"


def _made(
    chosen: Pass[Any], before: ModelInfo, settings: Settings, timer: StageTimer, *, copy: bool
) -> Step:
    with timer.stage("analyse"):
        decision = chosen.decide(before, settings)
    if decision.empty:
        return Step(decision)
    with timer.stage("rewrite"):
        edit = Editor(before, copy=copy)
        chosen.apply(edit, decision, settings)
        return Step(decision, ModelInfo(edit.model))


@dataclass(slots=True)
class _Search:
    """The search for the moves of a pass that are proved together.

    ``unproved`` are the others, each with the failure of the smallest part that contained it.
    """

    chosen: Pass[Any]
    before: ModelInfo
    settings: Settings
    timer: StageTimer
    unproved: dict[str, str]
    found: Step | None = None
    proofs: int = 0

    def run(self, moves: Sequence[str]) -> None:
        """Accept the proved ones among moves that fail together, largest parts first."""
        failing = deque([moves])
        while failing:
            group = failing.popleft()
            middle = len(group) // 2
            if not middle:
                continue
            first, second = group[:middle], group[middle:]
            whole = self._holds(first)
            if not whole:
                failing.append(first)
            if whole or not self._holds(second):  # after the first part, the second is at fault
                failing.append(second)

    def result(self) -> Step | None:
        """Return the step of the accepted moves, or None."""
        if self.found is None:
            return None
        with self.timer.stage("analyse"):  # decided again only for the reasons
            decision = self.chosen.decide(self.before, self._without(self.unproved))
        moves = tuple(self.unproved)
        left_out = LeftOut(self.chosen.name, self.unproved[moves[0]], moves)
        return replace(self.found, decision=decision, left_out=left_out)

    def _without(self, unproved: dict[str, str]) -> Settings:
        return replace(self.settings, unproved=unproved)

    def _holds(self, moves: Sequence[str]) -> bool:
        """Try the moves together with those accepted before."""
        if self.proofs == (_MOST_IN_VAIN if self.found is None else _MOST_PROOFS):
            return False
        self.proofs += 1
        rest = {move: why for move, why in self.unproved.items() if move not in moves}
        settings = self._without(rest)
        made = _made(self.chosen, self.before, settings, self.timer, copy=True)
        if made.after is None:
            return False
        shown = proved(self.chosen, self.before, made.after, made.decision, settings, self.timer)
        if shown.failures:
            self.unproved = self.unproved | dict.fromkeys(moves, failure_of(shown))
            return False
        self.unproved, self.found = rest, replace(made, shown=shown)
        return True
