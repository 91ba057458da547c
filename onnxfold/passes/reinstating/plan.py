"""Which norms a model came with deferred, and which of them are computed where they stood."""

from dataclasses import dataclass, replace

from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class FoundDeferred:
    """A norm that is deferred: the name and reference of the 1 / s^2 that it left behind.

    ``refusal``: why it is not computed where it stood, None where it is, or where it may wait.
    """

    name: str
    ref: str
    reinstated: bool
    refusal: Refusal | None = None

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {
            "name": self.name,
            "action": "reinstated" if self.reinstated else "keep",
            "reason": None if self.refusal is None else self.refusal.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ReinstatingPlan:
    """The deferred norms that a model came with, in order."""

    found: tuple[FoundDeferred, ...] = ()

    @property
    def norms(self) -> frozenset[str]:
        """The references of those that are reinstated."""
        return frozenset(each.ref for each in self.found if each.reinstated)

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.norms

    def left_out(self, reason: str) -> "ReinstatingPlan":
        """Return the plan to reinstate nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        kept = (
            replace(each, reinstated=False, refusal=why) if each.reinstated else each
            for each in self.found
        )
        return replace(self, found=tuple(kept))
