"""What a fold puts into a model: RMSNorm in the place of a norm, and centred outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from onnxfold.errors import UsageError
from onnxfold.torch.parametrization import centred

__all__ = ["CentredOutput", "RMSNorm"]


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight + bias, with the parameters of the norm it replaces.

    For x of mean 0 over the normalized axes that is LayerNorm; with ``groups``, for x: [N, C] and
    each of so many blocks of C, GroupNorm.  ``original`` is the norm itself, which shares them.
    """

    def __init__(
        self,
        original: nn.Module,
        shape: tuple[int, ...],
        eps: float,
        weight: nn.Parameter | None,
        bias: nn.Parameter | None,
        groups: int = 1,
    ):
        super().__init__()
        self.normalized_shape, self.eps, self.groups = shape, eps, groups
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        self.__dict__["original"] = original  # not a module of this one: its state is here
        self.train(original.training)

    @staticmethod
    def of(norm: nn.LayerNorm | nn.GroupNorm) -> RMSNorm:
        """Return what takes the place of a norm."""
        if isinstance(norm, nn.GroupNorm):
            shape, groups = (norm.num_channels // norm.num_groups,), norm.num_groups
        else:
            shape, groups = tuple(norm.normalized_shape), 1
        return RMSNorm(norm, shape, norm.eps, norm.weight, norm.bias, groups)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as nn.LayerNorm has it
        x = input
        if isinstance(self.original, nn.GroupNorm):
            if x.dim() != 2:
                raise UsageError(
                    f"a GroupNorm that became RMSNorm takes [N, C], not {tuple(x.shape)}: over "
                    "further axes its mean is not that of the channels"
                )
            blocks = x.unflatten(1, (self.groups, -1))
            y = functional.rms_norm(blocks, self.normalized_shape, None, self.eps).flatten(1)
            y = y if self.weight is None else y * self.weight
        else:
            y = functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, groups={self.groups}"


class CentredOutput:
    """A forward hook that takes the mean over the last axis out of what a module gives."""

    def __call__(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        return centred(output, -1)

    @staticmethod
    def put(module: nn.Module) -> None:
        """Centre the output of a module from now on."""
        module.register_forward_hook(CentredOutput())

    @staticmethod
    def remove(module: nn.Module) -> None:
        """Leave the output of a module as it is again."""
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, CentredOutput):
                del module._forward_hooks[key]

    @staticmethod
    def within(model: nn.Module) -> dict[str, nn.Module]:
        """Return the modules of a model whose output is centred."""
        return {
            name: module
            for name, module in model.named_modules()
            if any(isinstance(hook, CentredOutput) for hook in module._forward_hooks.values())
        }
