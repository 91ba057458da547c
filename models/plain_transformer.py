"""A transformer in plain torch with a choice of norm, of its place, and of what comes in front.

Pre-norm, the default:  x = x + f(norm(x)), with a last norm after the blocks.
Post-norm:              x = norm(x + f(x)), with a first norm after the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from models.recipe import NormName

__all__ = ["DyT", "PatchTransformer", "RMSNorm", "Shape", "TokenTransformer"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the blocks and the norm in them; `hidden` is the inner width of the MLP."""

    width: int
    layers: int
    heads: int
    hidden: int
    norm: NormName = "layer"
    post_norm: bool = False


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * gamma, spelt out so that every exporter knows it."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gamma


class DyT(nn.Module):
    """y = tanh(alpha x) * gamma + beta, "Transformers without Normalization", equation 1."""

    def __init__(self, width: int, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.alpha * x) * self.gamma + self.beta


_NORMS: Final[Mapping[NormName, Callable[[int], nn.Module]]] = {
    "layer": nn.LayerNorm,
    "rms": RMSNorm,
    "dyt": DyT,
}


class Attention(nn.Module):
    """Multi-head self-attention over [batch, sequence, width] with one projection for q, k, v."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) * self.scale
        if self.causal:
            place = torch.arange(length, device=x.device)
            future = place.unsqueeze(0) > place.unsqueeze(1)
            scores = scores.masked_fill(future, torch.finfo(x.dtype).min)
        mixed = torch.softmax(scores, dim=-1) @ value
        merged: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return merged


class Block(nn.Module):
    """Attention and a GELU MLP, each with its norm and residual."""

    def __init__(self, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        self.post_norm = shape.post_norm
        self.norm1 = _NORMS[shape.norm](shape.width)
        self.attention = Attention(shape.width, shape.heads, causal=causal)
        self.norm2 = _NORMS[shape.norm](shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, shape.hidden),
            nn.GELU(),
            nn.Linear(shape.hidden, shape.width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post_norm:
            x = self.norm1(x + self.attention(x))
            x = self.norm2(x + self.mlp(x))
        else:
            x = x + self.attention(self.norm1(x))
            x = x + self.mlp(self.norm2(x))
        return x


class _Blocks(nn.Module):
    def __init__(self, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        self.post_norm = shape.post_norm
        self.blocks = nn.ModuleList(Block(shape, causal=causal) for _ in range(shape.layers))
        self.norm = _NORMS[shape.norm](shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post_norm:
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        if not self.post_norm:
            x = self.norm(x)
        return x


class TokenTransformer(nn.Module):
    """Token ids [batch, sequence] to logits [batch, sequence, vocabulary], the table tied."""

    def __init__(self, shape: Shape, *, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(positions, shape.width)
        self.body = _Blocks(shape, causal=not shape.post_norm)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        logits: torch.Tensor = self.head(self.body(self.tokens(input_ids) + self.positions(places)))
        return logits


class PatchTransformer(nn.Module):
    """Images [batch, channels, side, side] to logits [batch, classes] through a class token."""

    def __init__(self, shape: Shape, *, side: int, patch: int, channels: int, classes: int) -> None:
        super().__init__()
        tokens = 1 + (side // patch) ** 2
        self.patches = nn.Conv2d(channels, shape.width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, shape.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, shape.width))
        self.body = _Blocks(shape, causal=False)
        self.head = nn.Linear(shape.width, classes)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixel_values).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(pixel_values.shape[0], -1, -1)
        x = torch.cat((class_token, patches), dim=1) + self.positions
        logits: torch.Tensor = self.head(self.body(x)[:, 0])
        return logits
