"""Which RMSNorms become LayerNorms, as frozen data, and why the others stay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class RestoringPlan:
    """The norms that are restored, by reference of their outputs, and why each other one is not.

    ``remaining`` are all norms of the model.
    """

    norms: tuple[str, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    remaining: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.norms

    def left_out(self, reason: str) -> RestoringPlan:
        """Return the plan to restore nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        refusals = (*self.refusals, *((norm, why) for norm in self.norms))
        return replace(self, norms=(), refusals=refusals)
