"""Folded models whose stream is stored without its last channel, d - 1 wide, and back.

A stream of mean 0 is known without its last channel: x = E v, which appends minus the sum of v. The
writers of the stream compute with (P W) without its last output, and CRMSNorm reads v and outputs
all d channels. W stays the trained parameter, so outputs, gradients and steps equal the LayerNorm
model's.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, sections 3.2, 3.4.2.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.torch.exporting import Arguments
from onnxfold.torch.modules import CentredOutput, RMSNorm, replace
from onnxfold.torch.norm_calls import NormCalls
from onnxfold.torch.parametrization import CentredWeight
from onnxfold.torch.verification import check_equal, double, probe

# By what name layers keep the number of their outputs; transformers' Conv1D reads it.
_SIZES = ("out_features", "out_channels", "embedding_dim", "nf")


class CRMSNorm(nn.Module):
    """RMSNorm of E v, for v: [..., size - 1]; gives [..., size].

    E v appends minus the sum of v, so the mean square is (|v|^2 + (sum v)^2) / size.
    """

    def __init__(self, size: int, eps: float = 1e-5, *, bias: bool = True):
        super().__init__()
        if size < 2:
            raise UsageError(f"a CRMSNorm gives 2 channels or more, not {size}")
        self.size, self.eps = size, eps
        self._replaced: tuple[RMSNorm, ...] = ()
        self.weight: nn.Parameter | None = nn.Parameter(torch.ones(size))
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(size)) if bias else None

    @staticmethod
    def of(norm: RMSNorm) -> "CRMSNorm":
        """Return what takes the place of an RMSNorm, with its parameters."""
        made = CRMSNorm(norm.normalized_shape[0], norm.eps)
        made._parameters = norm._parameters
        made._replaced = (norm,)  # not a module of this one: its state is here
        made.train(norm.training)
        return made

    def restored(self) -> RMSNorm:
        """Return the norm in whose place this one is; UsageError where it is in none's."""
        if not self._replaced:
            raise UsageError("this CRMSNorm was made as one: there is no RMSNorm to go back to")
        (norm,) = self._replaced
        norm.train(self.training)
        return norm

    def forward(self, v: Tensor) -> Tensor:
        x = torch.cat([v, -v.sum(-1, keepdim=True)], -1)
        y = functional.rms_norm(x, (self.size,), self.weight, self.eps)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{self.size - 1} to {self.size}, eps={self.eps}"


def compress(model: nn.Module, example_args: tuple[Any, ...] | Mapping[str, Any]) -> None:
    """Store the stream of a folded model without its last channel, and train on.

    Every RMSNorm of :func:`fold` becomes a CRMSNorm, and every weight that it centered computes one
    output less, as do centered outputs. Every parameter stays the same object, of the same shape,
    so optimizers go on; :func:`decompress` goes back, :func:`unfold` to LayerNorm, and :func:`bake`
    writes the weights of d - 1 outputs.

    Outputs and gradients are compared in float64 first, in evaluation and in training. Raises
    UsageError for a model that is not folded, ModelError if something reads all channels of the
    stream, or if a norm has no CRMSNorm; the model is then unchanged.
    """
    given = Arguments((), dict(example_args)) if isinstance(example_args, Mapping) else None
    arguments = double(given or Arguments(tuple(example_args), {}))
    _check_folded(model)
    original = probe(model).double()
    trial = copy.deepcopy(original)
    parameters = dict(trial.named_parameters())
    _change(trial, short=True)
    try:
        for training in (False, True):
            check_equal(original, trial, parameters, arguments, training=training)
    except (ModelError, VerificationError) as error:
        raise ModelError(
            f"the stream of {type(model).__name__} cannot lose a channel: something other than a "
            f"norm that folded reads it ({error})"
        ) from error
    _change(model, short=True)


def decompress(model: nn.Module) -> None:
    """Undo :func:`compress`: RMSNorms, and all channels of the stream."""
    _change(model, short=False)


def _norms(model: nn.Module) -> list[RMSNorm]:
    return [module for module in model.modules() if isinstance(module, RMSNorm)]


def _compressed(model: nn.Module) -> list[CRMSNorm]:
    return [module for module in model.modules() if isinstance(module, CRMSNorm)]


def _weights(model: nn.Module) -> Iterator[tuple[nn.Module, CentredWeight]]:
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for made in module.parametrizations.values():
                yield from ((module, each) for each in made if isinstance(each, CentredWeight))


def _check_folded(model: nn.Module) -> None:
    norms = _norms(model)
    weights = [each for _, each in _weights(model)]
    if _compressed(model):
        raise UsageError("the model is compressed already")
    called = [name for name, calls in NormCalls.within(model).items() if calls.fold]
    if called:
        raise ModelError(f"'{called[0]}' calls its norms, which cannot give a channel back")
    if not norms:
        raise UsageError("no norm of the model has folded: call onnxfold.torch.fold first")
    kinds = {(isinstance(n.original, nn.LayerNorm), len(n.normalized_shape)) for n in norms}
    if kinds != {(True, 1)} or any(each.groups > 1 for each in weights):
        raise ModelError("a norm over groups, of several axes or written by hand has no CRMSNorm")


def _change(model: nn.Module, *, short: bool) -> None:
    """Take the last channel of the stream away, or give it back."""
    changed: dict[nn.Module, None] = {}
    for module, each in _weights(model):
        if each.short != short:
            each.short = short
            changed[module] = None
    for module in changed:
        for name in _SIZES:
            if name in module.__dict__:
                module.__dict__[name] += -1 if short else 1
    for module in CentredOutput.within(model).values():
        CentredOutput.remove(module)
        CentredOutput.put(module, short=short)
    norms: list[tuple[nn.Module, nn.Module]] = []
    if short:
        norms += [(norm, CRMSNorm.of(norm)) for norm in _norms(model)]
    else:
        norms += [(norm, norm.restored()) for norm in _compressed(model)]
    for old, new in norms:
        replace(model, old, new)
