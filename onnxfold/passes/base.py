"""The interface of every pass: it decides, applies its plan, and its result is proved.

The pipeline passes one version of the model at a time. The facts of a version and its norms
(``onnxfold.norms.NORMS``) are computed once, and shared by the decision on it and the two
proofs that involve it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from onnxfold.errors import UsageError
from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormSite
from onnxfold.options import Options
from onnxfold.refusal import Refusal, RefusalCode

# Parts of passes that are left out where the check fails with them.
DEFERRED_MEANS, BARE_MEANS = "deferral of LayerNorms", "means outside of norms"


@dataclass(frozen=True, slots=True)
class Settings(Options):
    """The user's options for the passes, with facts of the model and of earlier attempts.

    ``overflowing`` are references of weights that must not be centered. ``fused_before`` counts the
    original model's calls of ours that add a residual. ``failed``: the parts of passes with
    which the check failed. ``unproved``: moves of this pass to
    leave out, and how their proof failed. ``dropped``: names of LayerNorms whose means are dropped,
    which is then all that is done. ``shared``: names of weights that are stored in parts even if
    others read all of one: a pass gives those a weight of their own. ``feeds``: the data on which
    ranges are measured, ``data_label`` its description. ``paper``: whether to count by the rules of
    a paper as well.
    """

    overflowing: frozenset[str] = frozenset()
    fused_before: int = 0
    failed: frozenset[str] = frozenset()
    unproved: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[Mapping[str, Array], ...] = ()
    data_label: str = ""
    dropped: frozenset[str] = frozenset()
    shared: frozenset[str | None] = frozenset()
    paper: bool = False

    @property
    def excluded(self) -> re.Pattern[str] | None:
        """The pattern of norms to leave unchanged; raises UsageError for an invalid expression."""
        return exclusion(self.exclude)

    def excludes(self, name: str) -> bool:
        """Whether a norm of this name is left unchanged."""
        return self.excluded is not None and self.excluded.search(name) is not None

    def refuse_unproved(self, ref: str) -> Refusal | None:
        """Return how the proof of a required move failed, or None."""
        why = self.unproved.get(ref)
        return None if why is None else Refusal(RefusalCode.NOT_PROVED, why)


class Decision(Protocol):
    """The changes of a pass, and why it leaves the rest."""

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""

    def left_out(self, reason: str) -> Self:
        """Return the decision to do nothing, with the reason."""


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """The results of a proof, counted by the report's names, and what it could not prove."""

    counts: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


D = TypeVar("D", bound=Decision)


@dataclass(frozen=True, slots=True)
class Pass(Generic[D]):
    """A rewriting.

    ``decide`` reads one version of a model and changes nothing. ``apply`` makes the decided changes
    through the editor; only lowering, which may leave a model unchanged, returns whether the model
    differs now. ``prove`` shows from the two versions that they compute the same; the decision only
    names the changes. ``moves`` are references of a decision's changes that can be left out one by
    one (:attr:`Settings.unproved`); () if it changes all or nothing.
    """

    name: str
    decide: Callable[[ModelInfo, Settings], D]
    apply: Callable[[Editor, D, Settings], bool | None]
    prove: Callable[[ModelInfo, ModelInfo, D], ProofOutcome]
    moves: Callable[[D], tuple[str, ...]] = lambda _: ()


def exclusion(pattern: str | None) -> re.Pattern[str] | None:
    """Return the compiled ``--exclude``; raises UsageError for an invalid regular expression."""
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--exclude {pattern!r} is not a regular expression: {error}") from error


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
