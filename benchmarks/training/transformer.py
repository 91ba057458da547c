"""The Transformer of the experiments: pre-LN or post-LN blocks with dropout, causal or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Shape", "Transformer"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Transformer; ``outputs`` of its head for each token, or for each text.

    ``post``: norms behind the residual sums, as in BERT, and none at the end.
    """

    words: int
    outputs: int
    tokens: int
    width: int
    layers: int
    heads: int = 4
    dropout: float = 0.0
    causal: bool = True
    pooled: bool = False
    post: bool = False


class Block(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)), with dropout behind both.

    Post-LN: norm(x + Attention(x)), then norm(x + MLP(x)).
    """

    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.heads, self.causal, self.post = shape.heads, shape.causal, shape.post
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(shape.dropout), nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post:
            x = self.norm1(x + self.drop1(self._attention(x)))
            return self.norm2(x + self.drop2(self.down(functional.gelu(self.up(x)))))
        x = x + self.drop1(self._attention(self.norm1(x)))
        return x + self.drop2(self.down(functional.gelu(self.up(self.norm2(x)))))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.read(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        written: torch.Tensor = self.write(mixed.transpose(1, 2).flatten(2))
        return written


class Transformer(nn.Module):
    """Tokens [batch, tokens] into logits, of the next token each or of the text."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.table = nn.Embedding(shape.words, shape.width)
        self.places = nn.Embedding(shape.tokens, shape.width)
        self.drop = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Identity() if shape.post else nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.table(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: torch.Tensor = self.head(x.mean(1) if self.shape.pooled else x)
        return logits
