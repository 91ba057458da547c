"""LayerNorm models that compute with RMSNorm while they are trained, and back."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils import parametrize

from onnxfold.errors import UsageError, VerificationError
from onnxfold.options import member
from onnxfold.torch.analysis import Analysis, Changes, analyse
from onnxfold.torch.compression import decompress
from onnxfold.torch.exporting import Arguments
from onnxfold.torch.modules import CentredOutput, RMSNorm, replace
from onnxfold.torch.norm_calls import NormCalls
from onnxfold.torch.parametrization import CentredWeight
from onnxfold.torch.verification import (
    check_equal,
    double,
    dropouts,
    means_in_training,
    probe,
    shift_invariant,
)

M = TypeVar("M", bound=nn.Module)
_BEFORE_DROPOUT = (
    "a dropout follows weights that are centered for it, which in training would give the "
    "stream another mean"
)


class DropoutChoice(StrEnum):
    """The treatment of a dropout between a linear layer and a norm."""

    REFUSE = "refuse"  # the norm stays
    KEEP = "keep"  # the norm folds: exact in evaluation, a different function in training
    RECENTRE = "recentre"  # the output of the dropout is centered, instead of the weights


@dataclass(frozen=True, slots=True)
class FoldReport:
    """The result of a fold, in names of modules; the model itself has the empty name.

    ``folded``: norms that are now RMSNorms. ``left``: the others, with the reason. ``centred``:
    parameters that are centered. ``recentred``: modules whose output is centered: tied embeddings
    and, on request, dropouts. ``exact_in_training``: whether outputs and gradients in training
    equal the original model's; None if that was not checked. ``inexact``: norms that are RMSNorms
    although their input has a mean, with the reason why they do not fold.
    """

    folded: tuple[str, ...]
    left: Mapping[str, str]
    centred: tuple[str, ...]
    recentred: tuple[str, ...]
    exact_in_training: bool | None
    inexact: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        norms = len(self.folded) + len(self.left) + len(self.inexact)
        lines = [f"{len(self.folded)} of {norms} norms are RMSNorms"]
        if self.inexact:
            lines.append(f"{len(self.inexact)} more are RMSNorms though their input has a mean")
        lines += [f"inexact: {name}: {reason}" for name, reason in self.inexact.items()]
        lines += [f"left: {n or 'the model itself'}: {reason}" for n, reason in self.left.items()]
        return "\n".join(lines)


def fold(
    model: nn.Module,
    example_args: tuple[Any, ...] | Mapping[str, Any],
    *,
    training: bool = True,
    dropout: DropoutChoice | str = DropoutChoice.REFUSE,
    inexact: bool = False,
) -> FoldReport:
    """Let a model compute with RMSNorm wherever that is exactly its LayerNorm, and train on.

    The analysis of the exported graph finds the norms; the writers of their streams get the
    parametrization of :func:`cbwc`, and nn.LayerNorm (nn.GroupNorm over vectors, a handwritten
    norm) becomes an RMSNorm with the same gamma and beta, as a call of functional.layer_norm does
    in the forward of its module. Every parameter stays the same object, so optimizers continue.

    ``example_args``: the arguments of a call of the model, a tuple or a mapping of names.
    ``training``: outputs and gradients in training mode must stay the same too. ``dropout``
    decides what happens if a dropout after a linear layer creates a mean in training: "refuse"
    leaves such norms, "keep" folds them, which is exact only in evaluation, and "recentre" removes
    the mean from the dropout's output.

    ``inexact`` also puts RMSNorm in the place of the nn.LayerNorms that do not fold, with their
    gamma and beta: another function, which is to be trained on.  Nothing shows how far it is from
    the model as it was; ``report.inexact`` names them.

    Outputs and gradients are compared in float64 with random parameters before anything changes.
    Raises ModelError if the model cannot be exported or run this way, VerificationError if the
    folded one differs, UsageError for an unknown option; the model is then unchanged.

    Source: "Enjoy your Layer Normalization ...", sections 3.1, 3.2, Proposition 2.
    """
    choice = member(DropoutChoice, dropout, f"dropout={dropout!r}")
    given = Arguments((), dict(example_args)) if isinstance(example_args, Mapping) else None
    arguments = given or Arguments(tuple(example_args), {})
    exported = probe(model)
    original, wide = copy.deepcopy(exported).double(), double(arguments)
    recentred: list[str] = []
    if training and choice is DropoutChoice.RECENTRE:
        unseen = shift_invariant(original, dropouts(original), wide)
        recentred = [name for name in unseen if unseen[name]]
    _centre_outputs(exported, recentred)
    analysis = analyse(exported, arguments)
    strict = training and choice is not DropoutChoice.KEEP
    changes, recentred = _settle(original, analysis, wide, recentred, strict=strict)
    reading = _inexact(original, changes, wide) if training and not strict else {}
    if reading:
        warnings.warn(_loudly(reading), stacklevel=2)
    _apply(model, changes, recentred)
    forced = _force(model, changes.left) if inexact else {}
    return FoldReport(
        changes.norms,
        {name: why for name, why in changes.left.items() if name not in forced},
        tuple(str(writer) for writer in changes.writers),
        (*changes.tables, *recentred),
        not (reading or forced) if training else None,
        forced,
    )


def _force(model: nn.Module, left: Mapping[str, str]) -> dict[str, str]:
    """Put RMSNorm in the place of the LayerNorms that do not fold; return them with the reasons."""
    found = {n: why for n, why in left.items() if isinstance(model.get_submodule(n), nn.LayerNorm)}
    for name in found:
        norm = model.get_submodule(name)
        if isinstance(norm, nn.LayerNorm):  # a shared one was replaced under its first name
            replace(model, norm, RMSNorm.of(norm))
    return found


def _settle(
    original: nn.Module,
    analysis: Analysis,
    arguments: Arguments,
    recentred: list[str],
    *,
    strict: bool,
) -> tuple[Changes, list[str]]:
    """Return the exact changes (in training too if ``strict``), and the centered outputs needed."""
    excluded: dict[str, str] = {}
    while True:
        changes = analysis.changes(excluded)
        trial = copy.deepcopy(original)
        parameters = dict(trial.named_parameters())
        _apply(trial, changes, recentred)
        unseen = shift_invariant(trial, CentredOutput.within(trial), arguments) if recentred else {}
        needed = [name for name in unseen if not unseen[name]]
        for name in set(recentred).difference(needed):
            CentredOutput.remove(trial.get_submodule(name))
        reading, making = means_in_training(trial, arguments) if strict else (set(), {})
        excluded |= dict.fromkeys(reading, _why(making))
        if reading:
            continue
        check_equal(original, trial, parameters, arguments, training=False)
        if strict:
            try:
                check_equal(original, trial, parameters, arguments, training=True)
            except VerificationError:
                if not changes.norms:
                    raise
                excluded |= dict.fromkeys(changes.norms, _BEFORE_DROPOUT)
                continue
        return changes, [name for name in recentred if name in needed]


def _why(making: Mapping[str, float]) -> str:
    if not making:
        return (
            "its input has a nonzero mean in training: a random function that is not a module, "
            "such as torch.nn.functional.dropout, follows a centered layer, and its output cannot "
            "be recentered; dropout='keep' folds the norm anyway"
        )
    names = ", ".join(f"'{name}' (p={p:g})" for name, p in list(making.items())[:3])
    more = f" and {len(making) - 3} more" if len(making) > 3 else ""
    return (
        f"its input has a nonzero mean in training because of {names}{more} after a centered "
        "layer: dropout='recentre' removes the mean, dropout='keep' folds the norm anyway"
    )


def _inexact(
    original: nn.Module, changes: Changes, arguments: Arguments
) -> dict[str, float | None]:
    """Return the norms that differ in training, or nothing."""
    trial = copy.deepcopy(original)
    _apply(trial, changes, [])
    reading, _ = means_in_training(trial, arguments)
    return dict.fromkeys(sorted(reading))


def _loudly(inexact: Mapping[str, object]) -> str:
    return (
        f"dropout='keep': {len(inexact)} norms ({next(iter(inexact))} first) see a mean in "
        "training that LayerNorm would remove; outputs and gradients in training are not those of "
        "the model as it was, in evaluation they are"
    )


def _centre_outputs(model: nn.Module, names: list[str] | tuple[str, ...]) -> None:
    for name in names:
        CentredOutput.put(model.get_submodule(name))


def _apply(model: nn.Module, changes: Changes, recentred: list[str]) -> None:
    """Apply changes to the model that they were made for."""
    for writer in changes.writers:
        module = model.get_submodule(writer.module)
        parametrize.register_parametrization(
            module,
            writer.name,
            CentredWeight(writer.dim, writer.groups, order=tuple(module._parameters)),
        )
    _centre_outputs(model, (*changes.tables, *recentred))
    for name in changes.norms:
        norm = model.get_submodule(name)
        if name in changes.called:
            NormCalls.put(norm, fold=True)
        else:
            replace(model, norm, RMSNorm.of(norm, changes.written.get(name)))
    for name in changes.kept:
        NormCalls.put(model.get_submodule(name), fold=False)


def bake(model: M) -> M:
    """Write the centered weights into the parameters, end their parametrization, return the model.

    It computes the same and trains as a model with RMSNorms from then on. Outputs that are centered
    (of tied embeddings, of dropouts) stay centered: their weights must keep their mean.
    """
    _remove(model, keep_centred=True)
    return model


def unfold(model: M) -> M:
    """Undo :func:`fold`: restore the original norms, with the current parameters.

    The weights are the ones that were trained, W; for a baked model, V, with which the norms
    compute the same. A compressed model gets its last channel back, unless it was baked.
    """
    decompress(model)
    _remove(model, keep_centred=False)
    for module in model.modules():
        CentredOutput.remove(module)
        NormCalls.remove(module)
    for norm in [module for module in model.modules() if isinstance(module, RMSNorm)]:
        norm.original.train(norm.training)
        replace(model, norm, norm.original)
    return model


def _remove(model: nn.Module, *, keep_centred: bool) -> None:
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        made = {
            name: list(parametrizations)
            for name, parametrizations in module.parametrizations.items()
            if any(isinstance(each, CentredWeight) for each in parametrizations)
        }
        _check_alone(module, made)
        if made:
            # Copies of a model share the class that torch made, and removing changes the class.
            kind = type(module)
            module.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
        for name in made:
            parametrize.remove_parametrizations(module, name, leave_parametrized=keep_centred)
        _reorder(module, max((each[0].order for each in made.values()), key=len, default=()))


def _check_alone(module: nn.Module, made: Mapping[str, list[nn.Module]]) -> None:
    for name, parametrizations in made.items():
        if len(parametrizations) > 1:
            raise UsageError(
                f"'{name}' of {type(module).__name__} has another parametrization too: remove them "
                "with torch.nn.utils.parametrize.remove_parametrizations"
            )


def _reorder(module: nn.Module, order: tuple[str, ...]) -> None:
    """Restore the order of parameters, by which optimizers know them."""
    held = module._parameters
    names = [name for name in order if name in held]
    for name in (*names, *(name for name in held if name not in names)):
        held[name] = held.pop(name)
