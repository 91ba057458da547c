"""Random norm parameters and biases, so that a wrong fold shows in the output.

Fresh modules hold gamma = 1, beta = 0 and zero biases. That hides errors twice: the affine part
does nothing, and exporters store equal-valued parameters once, for all layers. Every parameter
that is constant is therefore redrawn, each on its own:

    c != 0:  c * (1 + 0.2 n),     c = 0:  0.05 + 0.1 n,     n ~ N(0, 1)

The offset 0.05 gives biases, and with them the residual stream, a mean that a fold must carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["randomise_constants"]

_SPREAD = 0.2
_OFFSET = 0.05
_NOISE = 0.1


def randomise_constants(module: torch.nn.Module) -> int:
    """Redraw every constant parameter of `module` in place and return how many there were."""
    import torch

    redrawn = 0
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.numel() or not torch.all(parameter == parameter.flatten()[0]):
                continue
            first = parameter.flatten()[0]
            noise = torch.randn_like(parameter)
            if first == 0:
                parameter.copy_(_OFFSET + _NOISE * noise)
            else:
                parameter.mul_(1 + _SPREAD * noise)
            redrawn += 1
    return redrawn
