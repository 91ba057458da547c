"""Export of a PyTorch model as it is traced, or a refusal that names the module at fault."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnxfold.errors import ModelError, escaped


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call of the model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


def exported(model: nn.Module, arguments: Arguments) -> ir.Model:
    """Export a model in evaluation mode, without optimization.

    Raises ModelError if it cannot be exported, with the module that was being traced, and if torch
    has quantized a module, whose packed weight is not exported.
    """
    _refuse_packed(model)
    # With gradients, attention has strides that cannot be exported.
    with _quiet(), torch.no_grad(), _entered_modules(model) as entered:
        try:
            program = torch.onnx.export(
                model.eval(),
                arguments.args,
                kwargs=arguments.kwargs,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
        except Exception as error:  # anything that a model's own code may raise
            cause = error.__cause__ or error
            text = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            place = f"module {entered[-1]!r} of " if entered and entered[-1] else ""
            raise ModelError(
                f"{place}{type(model).__name__} cannot be exported to ONNX, which the analysis "
                f"needs: {escaped(text)}"
            ) from error
    graph: ir.Model = program.model
    return graph


def _refuse_packed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            raise ModelError(
                f"module {name!r} of {type(model).__name__} is quantized "
                f"({type(module).__name__}), and packed weights cannot be centered: fold the model "
                "before it is quantized"
            )


@contextmanager
def _entered_modules(model: nn.Module) -> Iterator[list[str]]:
    """Yield the names of the modules whose forward has started in the first trace and not ended."""
    entered: list[str] = []
    over = False

    def enter(name: str) -> None:
        nonlocal over
        over = over or (not name and bool(entered))  # the exporter starts again after a failure
        if not over:
            entered.append(name)

    def leave() -> None:
        if not over:
            entered.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
        handles.append(module.register_forward_hook(lambda *_: leave()))
    try:
        yield entered
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's remarks on its own work."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
