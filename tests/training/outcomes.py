"""Outputs and gradients of two models, compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Sums of at most 100 terms in some hundred layers of operations, divided by deviations that are not
# small: 1e5 units of 1e-16, of the largest number.
TOLERANCE = 1e-10


def called(model: nn.Module, inputs: Any) -> torch.Tensor:
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return output if isinstance(output, torch.Tensor) else output[0]


def varied(model: nn.Module) -> nn.Module:
    """The model with gammas, betas and biases that are not 1 and 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def wide(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {key: wide(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(wide(value) for value in inputs)
    floating = isinstance(inputs, torch.Tensor) and inputs.is_floating_point()
    return inputs.double() if floating else inputs


def outcome(
    model: nn.Module, parameters: dict[str, nn.Parameter], inputs: Any, training: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The output and the gradient of every parameter, in float64 from one seed."""
    model.train(training)
    torch.manual_seed(7)
    output = called(model, inputs)
    torch.manual_seed(8)
    (output * torch.randn_like(output)).sum().backward()
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    for parameter in parameters.values():
        parameter.grad = None
    return output.detach(), grads


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max()) if a.numel() else 0.0


def assert_same(
    first: tuple[torch.Tensor, dict[str, torch.Tensor]],
    second: tuple[torch.Tensor, dict[str, torch.Tensor]],
) -> None:
    assert distance(first[0], second[0]) <= TOLERANCE * float(first[0].abs().max())
    largest = max(float(grad.abs().max()) for grad in first[1].values())
    for name, grad in first[1].items():
        assert distance(grad, second[1][name]) <= TOLERANCE * largest, name
