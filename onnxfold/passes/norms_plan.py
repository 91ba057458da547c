"""Shared by passes that change norms themselves: the plan, the norms to change, and the proof."""

from dataclasses import dataclass
from typing import Self

from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormSite
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class NormsPlan:
    """The norms that change, by reference of their outputs, and why each other one does not.

    ``remaining`` are all norms of the model.
    """

    norms: tuple[str, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    remaining: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.norms

    def left_out(self, reason: str) -> Self:
        """Return the plan to change no norm."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        refusals = (*self.refusals, *((norm, why) for norm in self.norms))
        return type(self)(refusals=refusals, remaining=self.remaining)


def named_sites(edit: Editor, plan: NormsPlan) -> list[NormSite]:
    """Return the norms that a plan names, in the edited model before it changes."""
    wanted = set(plan.norms)
    sites = NORMS.of(edit.info)
    return [site.within(edit) for site in sites if edit.info.ref(site.output) in wanted]
