"""Whether a folded model computes what the model did: outputs and gradients in float64.

Two programs of a few thousand operations that agree in exact arithmetic differ in float64 by their
rounding, some 1e-13 of their size; two that do not agree, with random parameters, differ by the
size of the fault. The bound is the square root of the unit, 1e-8.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onnxfold.errors import ModelError, VerificationError, escaped
from onnxfold.torch.exporting import Arguments
from onnxfold.torch.modules import RMSNorm
from onnxfold.torch.norm_calls import NormCalls, Watch

_TOLERANCE = 2.0**-26  # the root of half the spacing of float64 at 1
_SEED = 20
_NOISE = 0.5
_SMALLEST = 0.02


def probe(model: nn.Module) -> nn.Module:
    """Return a copy with perturbed parameters, without special values.

    At initialization gamma is 1 and biases are 0: equality that depends on this does not count.
    """
    made = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.is_floating_point():
                length = float(torch.linalg.vector_norm(parameter, dtype=torch.float64))
                size = max(length / max(parameter.numel(), 1) ** 0.5, _SMALLEST)
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.add_(noise.to(parameter), alpha=_NOISE * size)
    return made


def double(arguments: Arguments) -> Arguments:
    """Return the arguments with floating tensors in float64."""

    def widened(value: Any) -> Any:
        wide = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().double() if wide else value

    args, kwargs = pytree.tree_map(widened, (arguments.args, arguments.kwargs))
    return Arguments(args, kwargs)


def _run(model: nn.Module, arguments: Arguments, *, training: bool) -> list[Tensor]:
    """Return the floating outputs of a run from the same seed every time.

    Raises ModelError if the model cannot be run in float64.
    """
    model.train(training)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        try:
            output = arguments.call(model)
        except Exception as error:  # anything that a model's own code may raise
            mode = "training" if training else "evaluation"
            text = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(
                f"{type(model).__name__} cannot be run in float64 in {mode} mode, which the check "
                f"needs: {escaped(text)}"
            ) from error
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _differ(first: list[Tensor], second: list[Tensor], scale: float | None = None) -> bool:
    """Whether two runs differ, each tensor relative to its size, or to a common one."""
    if len(first) != len(second):
        return True
    for mine, theirs in zip(first, second, strict=True):
        if mine.shape != theirs.shape:
            return True
        a, b = mine.detach(), theirs.detach()
        if not a.numel():
            continue
        size = float(a.abs().max())
        if not math.isfinite(size):  # what is not finite must be so in both
            finite = torch.isfinite(a)
            if not torch.equal(finite, torch.isfinite(b)):
                return True
            a, b = a[finite], b[finite]
            size = float(a.abs().max()) if a.numel() else 0.0
        bound = _TOLERANCE * (size if scale is None else scale)
        if a.numel() and not float((a - b).abs().max()) <= bound:
            return True
    return False


def check_equal(
    model: nn.Module,
    folded: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    arguments: Arguments,
    *,
    training: bool,
) -> None:
    """Compare outputs and gradients; ``parameters`` are ``folded``'s by their original names.

    Raises VerificationError if they differ.
    """
    before, after = (_run(each, arguments, training=training) for each in (model, folded))
    mode = "training" if training else "evaluation"
    if _differ(before, after):
        raise VerificationError(f"the outputs of the folded model differ in {mode} mode")
    own = dict(model.named_parameters())
    trained = [name for name, parameter in own.items() if parameter.requires_grad]
    wanted = _gradients(before, [own[name] for name in trained])
    found = _gradients(after, [parameters[name] for name in trained])
    scale = max((float(grad.abs().max()) for grad in wanted if grad.numel()), default=0.0)
    if _differ(wanted, found, scale):
        raise VerificationError(f"the gradients of the folded model differ in {mode} mode")


def _gradients(outputs: list[Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        if output.requires_grad:
            weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            total = total + (output.double() * weights.to(output.device)).sum().cpu()
    if not total.requires_grad or not parameters:
        return []
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip(parameters, found, strict=True)
    ]


def dropouts(model: nn.Module) -> dict[str, nn.Module]:
    """Return the dropout modules of a model with nonzero probability."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    return {n: m for n, m in model.named_modules() if isinstance(m, kinds) and m.p > 0}


@contextmanager
def _hooked(hooks: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(hook, with_kwargs=True) for module, hook in hooks.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def means_in_training(folded: nn.Module, arguments: Arguments) -> tuple[set[str], dict[str, float]]:
    """Run in training mode; return the RMSNorms that read a mean, and the dropouts that cause one.

    Each dropout is returned with its probability.
    """
    norms = {n: m for n, m in folded.named_modules() if isinstance(m, RMSNorm)}
    called = {n: calls for n, calls in NormCalls.within(folded).items() if calls.fold}
    reading: set[str] = set()
    making: dict[str, float] = {}
    hooks: dict[nn.Module, Callable[..., Any]] = {}

    def watch_norm(name: str, norm: RMSNorm) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], _y: Tensor) -> None:
            if _has_mean(_input(args, named), len(norm.normalized_shape), norm.groups):
                reading.add(name)

        return hook

    def watch_dropout(name: str, dropout: nn.Module) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], y: Tensor) -> None:
            if not _has_mean(_input(args, named), 1, 1) and _has_mean(y, 1, 1):
                making[name] = float(dropout.p)

        return hook

    def watch_call(name: str) -> Watch:
        return lambda x, axes: reading.add(name) if _has_mean(x, axes, 1) else None

    for name, calls in called.items():
        calls.watch = watch_call(name)
    hooks |= {norm: watch_norm(name, norm) for name, norm in norms.items()}
    hooks |= {module: watch_dropout(name, module) for name, module in dropouts(folded).items()}
    with _hooked(hooks):
        _run(folded, arguments, training=True)
    for calls in called.values():
        calls.watch = None
    return reading, making


def _input(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Return the argument of a module with one input."""
    found: Tensor = next(iter((*args, *named.values())))
    return found


def _has_mean(x: Tensor, axes: int, groups: int) -> bool:
    rows = x.detach().flatten(-axes).unflatten(-1, (groups, -1))
    size = float(rows.abs().max()) if rows.numel() else 0.0
    return bool(rows.numel()) and float(rows.mean(-1).abs().max()) > _TOLERANCE * size


def _shift(_: nn.Module, _args: Any, _named: Any, output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    rows = torch.randn(*output.shape[:-1], 1, generator=generator, dtype=torch.float64)
    return output + rows.to(output)


def shift_invariant(
    model: nn.Module, names: Iterable[str], arguments: Arguments
) -> dict[str, bool]:
    """Return for each module whether a number per row may be added to its output without effect.

    If so, no output of the model changes, and readers of the module ignore its mean over the last
    axis.
    """

    def shifted(name: str) -> list[Tensor]:
        with _hooked({model.get_submodule(name): _shift}):
            return _run(model, arguments, training=False)

    truth = _run(model, arguments, training=False)
    return {name: not _differ(truth, shifted(name)) for name in names}
