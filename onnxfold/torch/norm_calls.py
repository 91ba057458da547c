"""LayerNorms that a module computes by a call in its own forward, such as functional.layer_norm.

Without a module to replace, the module's forward runs under a torch mode that answers these calls.
A mode also applies to inner modules: those whose calls must stay have their own mode, and the
innermost answers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten.layer_norm
_LAYER_NORMS = (functional.layer_norm, torch.layer_norm, _aten, _aten.default)
Watch = Callable[[Tensor, int], None]


class NormCalls:
    """The forward of a module, in which calls of LayerNorm are RMSNorms, or stay.

    ``fold``: whether they become RMSNorms. ``watch`` receives the
    input of each call, and the number of its axes.
    """

    def __init__(self, module: nn.Module, *, fold: bool, watch: Watch | None = None):
        self.module, self.fold, self.watch = module, fold, watch
        self._before = module.__dict__.get("forward")

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The original forward, whose signature exporters read."""
        kind = type(self.module)
        return self._before or MethodType(kind.forward, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Answers(self):
            if self._before is not None:
                return self._before(*args, **kwargs)
            return type(self.module).forward(self.module, *args, **kwargs)

    @staticmethod
    def put(module: nn.Module, *, fold: bool, watch: Watch | None = None) -> None:
        """Answer the calls of a module from now on."""
        module.__dict__["forward"] = NormCalls(module, fold=fold, watch=watch)

    @staticmethod
    def remove(module: nn.Module) -> None:
        """Restore the forward of a module."""
        calls = module.__dict__.get("forward")
        if isinstance(calls, NormCalls):
            del module.__dict__["forward"]
            if calls._before is not None:
                module.__dict__["forward"] = calls._before

    @staticmethod
    def within(model: nn.Module) -> "dict[str, NormCalls]":
        """Return the answerers of the calls in a model's modules, by module name."""
        forwards = ((name, m.__dict__.get("forward")) for name, m in model.named_modules())
        return {name: calls for name, calls in forwards if isinstance(calls, NormCalls)}

    @staticmethod
    def counted(model: nn.Module, run: Callable[[nn.Module], Any]) -> Mapping[str, int]:
        """Run a model and return how often each module itself calls a LayerNorm."""
        counts: Counter[str] = Counter()

        def counting(name: str) -> Watch:
            return lambda _x, _axes: counts.update((name,))

        modules = dict(model.named_modules())
        for name, module in modules.items():
            NormCalls.put(module, fold=False, watch=counting(name))
        try:
            with torch.no_grad():
                run(model)
        finally:
            for module in modules.values():
                NormCalls.remove(module)
        return counts


class _Answers(TorchFunctionMode):
    """Mode that answers the calls made while the forward of a module runs."""

    def __init__(self, calls: NormCalls):
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func not in _LAYER_NORMS:
            return func(*args, **named)
        if self._calls.watch is not None:
            self._calls.watch(*_read(*args, **named))
        if self._calls.fold:
            return _rms_norm(*args, **named)
        with torch._C.DisableTorchFunction():  # also for the modes of the enclosing modules
            return func(*args, **named)


def _read(
    input: Tensor,  # noqa: A002  # the name that callers give it
    normalized_shape: Sequence[int],
    *_: Any,
    **_named: Any,
) -> tuple[Tensor, int]:
    """Return the input of a LayerNorm call, and the number of its axes."""
    return input, len(normalized_shape)


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Compute RMSNorm from the arguments of a LayerNorm."""
    y = functional.rms_norm(input, list(normalized_shape), weight, eps)
    return y if bias is None else y + bias
