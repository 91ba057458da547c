"""VMamba as plain modules of torch: state-space layers that scan a picture in four directions.

Source: "VMamba: Visual State Space Model", arXiv 2401.10166; depths and norms as the first paper's
Table 3 counts them: a norm before each scan, one behind it, one before each MLP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import gelu, silu, softplus

__all__ = ["VMamba"]

_DIRECTIONS = 4


class VMamba(nn.Module):
    """The backbone and its head: pictures [batch, 3, side, side] to logits [batch, classes]."""

    def __init__(self, width: int, depths: Sequence[int], states: int = 1, classes: int = 1000):
        super().__init__()
        self.stem = _Stem(width)
        stages: list[nn.Module] = []
        for number, depth in enumerate(depths):
            if number:
                stages.append(_Downsampling(width))
                width *= 2
            stages += [_Block(width, states) for _ in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.norm(self.stages(self.stem(pictures)))
        logits: torch.Tensor = self.head(x.mean((1, 2)))
        return logits


class _Stem(nn.Module):
    """Two convolutions of stride 2, each with a norm over the channels: [B, H, W, width]."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.norm = _halving(3, width // 2), nn.LayerNorm(width // 2)
        self.second, self.norm2 = _halving(width // 2, width), nn.LayerNorm(width)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = gelu(self.norm(_last(self.first(pictures))))
        y: torch.Tensor = self.norm2(_last(self.second(_second(x))))
        return y


class _Downsampling(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.reduction, self.norm = _halving(width, 2 * width), nn.LayerNorm(2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(_last(self.reduction(_second(x))))
        return y


class _Block(nn.Module):
    """x + scan(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, states: int):
        super().__init__()
        self.norm, self.op = nn.LayerNorm(width), _Scan2D(width, states)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.op(self.norm(x))
        y: torch.Tensor = x + self.mlp(self.norm2(x))
        return y


class _Scan2D(nn.Module):
    """SS2D: a depthwise convolution, the selective scan in four directions, their sum, a norm."""

    def __init__(self, width: int, states: int):
        super().__init__()
        self.rank, self.states = max(1, width // 16), states
        self.in_proj = nn.Linear(width, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.x_proj = nn.Parameter(torch.randn(_DIRECTIONS, self.rank + 2 * states, width) / 8)
        self.dt_proj = nn.Parameter(torch.randn(_DIRECTIONS, width, self.rank) / 4)
        self.dt_bias = nn.Parameter(torch.randn(_DIRECTIONS, width) - 4)
        self.A_log = nn.Parameter(torch.rand(_DIRECTIONS, width, states))
        self.D = nn.Parameter(torch.ones(_DIRECTIONS, width))
        self.norm = nn.LayerNorm(width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, across = x.shape[1:3]
        u = silu(self.conv(_second(self.in_proj(x))))
        rows, columns = u.flatten(2), u.transpose(2, 3).flatten(2)
        one = torch.stack((rows, columns), 1)
        paths = torch.cat((one, one.flip(-1)), 1)  # [B, 4, width, H W]
        y = self._scanned(paths)
        y = y[:, :2] + y[:, 2:].flip(-1)
        back = y[:, 1].unflatten(2, (across, height)).transpose(2, 3).flatten(2)
        merged = (y[:, 0] + back).unflatten(2, (height, across))
        result: torch.Tensor = self.out_proj(self.norm(_last(merged)))
        return result

    def _scanned(self, paths: torch.Tensor) -> torch.Tensor:
        """h_t = exp(dt A) h_{t-1} + dt B u_t, y_t = C h_t + D u_t, along the last axis."""
        numbers = torch.einsum("bkdl,kcd->bkcl", paths, self.x_proj)
        dt, B, C = numbers.split((self.rank, self.states, self.states), 2)
        dt = softplus(torch.einsum("bkrl,kdr->bkdl", dt, self.dt_proj) + self.dt_bias[:, :, None])
        decay = torch.exp(dt[:, :, :, None] * -torch.exp(self.A_log)[:, :, :, None])
        given = (dt * paths)[:, :, :, None] * B[:, :, None]
        y = (_recurrence(decay, given) * C[:, :, None]).sum(3)
        return y + paths * self.D[:, :, None]


def _recurrence(decay: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """h_t = decay_t h_{t-1} + given_t from h = 0, along the last axis, as a scan."""
    from torch._higher_order_ops.scan import scan

    def step(
        h: torch.Tensor, x: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        following = x[0] * h + x[1]
        return following, following.clone()

    start = torch.zeros(given.shape[:-1], dtype=given.dtype)
    along = (decay.movedim(-1, 0), given.movedim(-1, 0))
    states: torch.Tensor = scan(step, start, along)[1]
    return states.movedim(0, -1)


def _halving(width: int, wider: int) -> nn.Conv2d:
    return nn.Conv2d(width, wider, 3, stride=2, padding=1)


def _last(x: torch.Tensor) -> torch.Tensor:
    """The channels as the last axis."""
    return x.permute(0, 2, 3, 1)


def _second(x: torch.Tensor) -> torch.Tensor:
    """The channels as the axis that convolutions have them."""
    return x.permute(0, 3, 1, 2)
