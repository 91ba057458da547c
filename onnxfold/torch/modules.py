"""Modules that a fold puts into a model: RMSNorm instead of a norm, and centered outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from onnxfold.errors import InvariantError, UsageError
from onnxfold.norms import EpsilonMode
from onnxfold.torch.parametrization import centred


@dataclass(frozen=True, slots=True)
class HandwrittenNorm:
    """A handwritten norm over the last axis, as found in the graph of the export.

    y = (x - mean) / D * gamma + beta with D by ``mode`` of ``factor`` times the variance and
    ``eps``; ``names`` are the names of its gamma and beta in the module, None if absent.
    """

    size: int
    eps: float
    mode: EpsilonMode
    factor: float
    names: tuple[str | None, str | None]


_DENOMINATORS: Mapping[EpsilonMode, Callable[[Tensor, float], Tensor]] = {
    EpsilonMode.INSIDE: lambda v, e: (v + e).sqrt(),
    EpsilonMode.OUTSIDE: lambda v, e: v.sqrt() + e,
    EpsilonMode.MAX_INSIDE: lambda v, e: v.clamp_min(e).sqrt(),
    EpsilonMode.MAX_OUTSIDE: lambda v, e: v.sqrt().clamp_min(e),
}


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight + bias, with the parameters of the norm it replaces.

    For x of mean 0 over the normalized axes that is LayerNorm; with ``groups``, for x: [N, C] and
    each of so many blocks of C, GroupNorm; for a handwritten norm it keeps the denominator and the
    names of the parameters. ``original`` is the norm itself, which shares them.
    """

    def __init__(
        self,
        original: nn.Module,
        shape: tuple[int, ...],
        eps: float,
        names: tuple[str | None, str | None] = ("weight", "bias"),
        groups: int = 1,
        written: HandwrittenNorm | None = None,
    ):
        super().__init__()
        self.normalized_shape, self.eps, self.groups = shape, eps, groups
        self._names, self._written = names, written
        for name, parameter in original._parameters.items():
            self.register_parameter(name, parameter)  # in order
        self.__dict__["original"] = original  # not a module of this one, because its state is here
        self.train(original.training)

    @staticmethod
    def of(norm: nn.Module, written: HandwrittenNorm | None = None) -> "RMSNorm":
        """Return the replacement of a norm."""
        if written is not None:
            return RMSNorm(norm, (written.size,), written.eps, written.names, written=written)
        if isinstance(norm, nn.GroupNorm):
            shape: tuple[int, ...] = (norm.num_channels // norm.num_groups,)
            return RMSNorm(norm, shape, norm.eps, groups=norm.num_groups)
        if not isinstance(norm, nn.LayerNorm):
            raise InvariantError(f"{type(norm).__name__} is no norm")
        return RMSNorm(norm, tuple(norm.normalized_shape), norm.eps)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        (x,) = (*given, *named.values())  # under the norm's own name for it
        weight, bias = (None if name is None else getattr(self, name) for name in self._names)
        if isinstance(self.original, nn.LayerNorm):
            y = functional.rms_norm(x, self.normalized_shape, weight, self.eps)
        else:
            y = self._normalised(x)
            y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def _normalised(self, x: Tensor) -> Tensor:
        """Return a group norm's or a handwritten norm's result before gamma."""
        if self._written is not None:
            variance = self._written.factor * x.square().mean(-1, keepdim=True)
            return x / _DENOMINATORS[self._written.mode](variance, self.eps)
        if x.dim() != 2:
            raise UsageError(
                f"a GroupNorm that became RMSNorm takes [N, C], not {tuple(x.shape)}: over "
                "further axes its mean is not that of the channels"
            )
        blocks = x.unflatten(1, (self.groups, -1))
        return functional.rms_norm(blocks, self.normalized_shape, None, self.eps).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, groups={self.groups}"


class CentredOutput:
    """A forward hook that subtracts the mean over the last axis from a module's output.

    If ``short``, it also drops the last channel, which the others determine.
    """

    def __init__(self, *, short: bool = False):
        self.short = short

    def __call__(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        y = centred(output, -1)
        return y[..., :-1] if self.short else y

    @staticmethod
    def put(module: nn.Module, *, short: bool = False) -> None:
        """Center the output of a module from now on."""
        module.register_forward_hook(CentredOutput(short=short))

    @staticmethod
    def remove(module: nn.Module) -> None:
        """Stop centering the output of a module."""
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, CentredOutput):
                del module._forward_hooks[key]

    @staticmethod
    def within(model: nn.Module) -> dict[str, nn.Module]:
        """Return the modules of a model whose output is centered."""
        return {
            name: module
            for name, module in model.named_modules()
            if any(isinstance(hook, CentredOutput) for hook in module._forward_hooks.values())
        }


def replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, wherever that stands."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[name] = new
