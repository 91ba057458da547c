"""Encoders and decoders of sequence-to-sequence models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from models.huggingface import (
    IMAGE_AXES,
    LICENCE,
    TEXT_AXES,
    model_of,
    select,
    source,
    text_encoder,
    token_ids,
)
from models.recipe import Example, Recipe, Settings

if TYPE_CHECKING:
    import torch

__all__ = ["RECIPES"]

_WHISPER_SMALL = {
    "vocab_size": 160,
    "num_mel_bins": 16,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
_whisper = model_of(
    "WhisperForConditionalGeneration", "WhisperConfig", full={}, small=_WHISPER_SMALL
)
_t5 = model_of(
    "T5EncoderModel",
    "T5Config",
    full={},
    small={
        "vocab_size": 160,
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
    },
)


def _whisper_encoder(settings: Settings) -> Example:
    import torch

    model: Any = _whisper(settings)
    config = model.config
    features = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    return select(
        model.get_encoder(),
        {"input_features": (features, IMAGE_AXES)},
        {"last_hidden_state": "last_hidden_state"},
    )


def _whisper_decoder(settings: Settings) -> Example:
    import torch

    model: Any = _whisper(settings)
    config = model.config
    encoded = torch.randn(2, config.max_source_positions, config.d_model)
    return select(
        model,
        {
            "decoder_input_ids": (token_ids(config.vocab_size), TEXT_AXES),
            "encoder_hidden_states": (encoded, IMAGE_AXES),
        },
        {"logits": "logits"},
        _decoder_arguments,
    )


def _decoder_arguments(inputs: dict[str, torch.Tensor]) -> dict[str, object]:
    """Hand the encoder's output over as such, so that the encoder itself does not run."""
    return {
        "decoder_input_ids": inputs["decoder_input_ids"],
        "encoder_outputs": (inputs["encoder_hidden_states"],),
    }


RECIPES: Final = (
    Recipe(
        name="whisper-tiny-encoder",
        build=_whisper_encoder,
        source=source("WhisperEncoder"),
        licence=LICENCE,
        layers="4 of 4, 8M",
        why="pre-LN after two convolutions over time; positions added to a transposed stream",
        layer_norms=9,
    ),
    Recipe(
        name="whisper-tiny-decoder",
        build=_whisper_decoder,
        source=source("WhisperForConditionalGeneration"),
        licence=LICENCE,
        layers="4 of 4, 30M",
        why="three norms a layer with cross-attention; tied table",
        layer_norms=13,
    ),
    Recipe(
        name="t5-small",
        build=text_encoder(_t5),
        source=source("T5EncoderModel"),
        licence=LICENCE,
        layers="6 of 6, encoder, 35M",
        why="RMSNorm without bias anywhere; relative position bias",
        rms_norms=13,
        attentions=("eager",),
    ),
)
