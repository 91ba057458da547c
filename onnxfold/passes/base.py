"""What every pass is: it decides, it carries its plan out, and its outcome is proved.

The pipeline gives a pass one version of the model at a time.  The facts of a version and its norms
(:func:`onnxfold.norms.find_norms`) are worked out once, and shared by the decision on it and the
two proofs that it takes part in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from onnxfold.errors import UsageError
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Options
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Settings(Options):
    """What the user asks of the passes, and what the model and earlier attempts add to it.

    ``overflowing`` are references of weights that must not be centred.  ``fused_before`` counts the
    calls of ours that the model came with and that add a residual.  ``defer_layer_norms``: whether
    the means of LayerNorms may stay in what layers behind them read.  ``unproved``: moves of the
    pass at hand that it does without, and how their proof failed.  ``paper``: whether to count by
    the rules of a paper as well.
    """

    overflowing: frozenset[str] = frozenset()
    fused_before: int = 0
    defer_layer_norms: bool = True
    unproved: Mapping[str, str] = field(default_factory=dict)
    paper: bool = False

    @property
    def excluded(self) -> re.Pattern[str] | None:
        """What the names of norms match that stay as they are; UsageError for no expression."""
        return exclusion(self.exclude)

    def excludes(self, name: str) -> bool:
        """Whether a norm of this name stays as it is."""
        return self.excluded is not None and self.excluded.search(name) is not None

    def refuse_unproved(self, ref: str) -> Refusal | None:
        """Say how the proof failed that a move needs, or None."""
        why = self.unproved.get(ref)
        return None if why is None else Refusal(RefusalCode.NOT_PROVED, why)


class Decision(Protocol):
    """What a pass will do, and why it leaves the rest."""

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""

    def left_out(self, reason: str) -> Self:
        """Return the decision to do nothing, with the reason."""


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """What a proof has shown, counted by the report's names, and what it could not show."""

    counts: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


D = TypeVar("D", bound=Decision)


@dataclass(frozen=True, slots=True)
class Pass(Generic[D]):
    """One rewriting.

    ``decide`` reads one version of a model and changes nothing.  ``apply`` carries a decision out
    through the editor; lowering alone, which may spell a model as it was, says whether the model
    differs now.  ``prove`` shows, from the two versions, that they compute the same; the decision
    only names what was changed.  ``moves`` are references of what a decision changes, each of which
    the pass can do without (:attr:`Settings.unproved`); none where it changes all or nothing.
    """

    name: str
    decide: Callable[[ModelInfo, Settings], D]
    apply: Callable[[Editor, D, Settings], bool | None]
    prove: Callable[[ModelInfo, ModelInfo, D], ProofOutcome]
    moves: Callable[[D], tuple[str, ...]] = lambda _: ()


def exclusion(pattern: str | None) -> re.Pattern[str] | None:
    """Return the compiled ``--exclude``; raises UsageError where it is no regular expression."""
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--exclude {pattern!r} is not a regular expression: {error}") from error
