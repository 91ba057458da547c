"""Small untrained models of the kinds that users train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

__all__ = ["EXPECTED", "MODELS", "Annotated", "Tied", "bart", "encoder", "gpt2", "opt", "whisper"]

TOKENS = (2, 7)
Example = tuple[nn.Module, dict[str, Any] | tuple[Any, ...]]


def ids() -> torch.Tensor:
    return torch.randint(3, 40, TOKENS)


def gpt2(p: float = 0.0, layers: int = 2) -> Example:
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=2,
        n_embd=16,
        vocab_size=40,
        n_positions=12,
        bos_token_id=0,
        eos_token_id=1,
        resid_pdrop=p,
        embd_pdrop=p,
        attn_pdrop=p,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids(), "use_cache": False}


def opt(p: float = 0.0) -> Example:
    config = transformers.OPTConfig(
        vocab_size=40,
        hidden_size=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=12,
        word_embed_proj_dim=16,
        dropout=p,
    )
    return transformers.OPTForCausalLM(config), {"input_ids": ids(), "use_cache": False}


def vit() -> Example:
    config = transformers.ViTConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return transformers.ViTModel(config), (torch.randn(2, 3, 16, 16),)


def whisper(p: float = 0.0) -> Example:
    config = transformers.WhisperConfig(
        vocab_size=60,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=12,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=p,
    )
    inputs = {
        "input_features": torch.randn(2, 8, 20),
        "decoder_input_ids": ids(),
        "use_cache": False,
    }
    return transformers.WhisperForConditionalGeneration(config), inputs


def bart(p: float = 0.0) -> Example:
    config = transformers.BartConfig(
        vocab_size=40,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=12,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=p,
    )
    inputs = {"input_ids": ids(), "decoder_input_ids": ids(), "use_cache": False}
    return transformers.BartForConditionalGeneration(config), inputs


def dinov2() -> Example:
    config = transformers.Dinov2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=16,
        patch_size=8,
    )
    return transformers.Dinov2Model(config), (torch.randn(2, 3, 16, 16),)


def swin() -> Example:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return transformers.SwinModel(config), (torch.randn(1, 3, 16, 16),)


def encoder(p: float = 0.0) -> Example:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=p, norm_first=True, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(6, 16), body), (torch.randn(2, 5, 6),)


class Residual(nn.Module):
    """Blocks over vectors with norms over groups of channels, as a ResNet's are over images."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.norms = nn.ModuleList(nn.GroupNorm(3, 12) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.last, self.head = last, nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(F.relu(norm(x)))
        return self.head(F.relu(self.last(x)))


class Annotated(nn.Module):
    """The norm of "The Annotated Transformer": by the unbiased deviation, epsilon outside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = 1e-6

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mean, deviation = hidden.mean(-1, keepdim=True), hidden.std(-1, keepdim=True)
        return self.a_2 * (hidden - mean) / (deviation + self.eps) + self.b_2


class Tied(nn.Module):
    """A language model whose head multiplies by its embedding, without a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 12)
        self.norm = nn.LayerNorm(12)
        self.middle = nn.Linear(12, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(tokens))
        return self.middle(x) @ self.table.weight.T


MODELS: dict[str, Callable[[], Example]] = {
    "gpt2": gpt2,
    "opt": opt,
    "vit": vit,
    "whisper": whisper,
    "bart": bart,
    "dinov2": dinov2,
    "swin": swin,
    "encoder": encoder,
    "tied": lambda: (Tied(), (torch.randint(0, 20, (2, 5)),)),
    "residual": lambda: (Residual(nn.Identity()), (torch.randn(5, 6),)),
    "residual with a last norm": lambda: (Residual(nn.GroupNorm(3, 12)), (torch.randn(5, 6),)),
}
# Norms that fold, and all norms.
EXPECTED = {
    "gpt2": (5, 5),
    "opt": (5, 5),
    "vit": (5, 5),
    "whisper": (7, 10),  # the encoder's stream begins after a GELU
    "bart": (2, 7),  # the others read the output of a norm, with gamma and beta
    "dinov2": (1, 5),  # LayerScale multiplies centered values: only the first, whose stream moves
    "swin": (4, 7),
    "encoder": (5, 5),
    "tied": (1, 1),
    "residual": (0, 3),  # the head reads the stream through a ReLU
    "residual with a last norm": (4, 4),
}
