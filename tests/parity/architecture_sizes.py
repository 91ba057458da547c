"""Architectures of transformers with the sizes of a model of two layers and some 30 channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["ARCHITECTURES", "Architecture", "Inputs"]

Inputs = dict[str, "torch.Tensor"]

_TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HIDDEN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT = {**_HIDDEN, **_TOKENS, "max_position_embeddings": 64}
_DECODER = {**_TEXT, "num_key_value_heads": 4, "head_dim": 8}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_TOWERS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 2,
}
_T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_PATCHES = {**_HIDDEN, "image_size": 32, "patch_size": 8}
_WINDOWS = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
_STAGES = {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]}
_WAVES = {
    **_HIDDEN,
    "vocab_size": 32,
    "conv_dim": [16] * 4,
    "conv_kernel": [10, 3, 3, 2],
    "conv_stride": [5, 2, 2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 4,
    "apply_spec_augment": False,
    "squeeze_factor": 2,
    "layerdrop": 0.0,
}
_SERIES = {
    "num_input_channels": 2,
    "context_length": 32,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
}
_CLIP_TEXT = {**_TEXT, "max_position_embeddings": 32}


def _ids(name: str = "input_ids", length: int = 8) -> Inputs:
    import torch

    return {name: torch.randint(3, 60, (2, length))}


def _both() -> Inputs:
    return {**_ids(), **_ids("decoder_input_ids", 6)}


def _pixels(size: int = 32) -> Inputs:
    import torch

    return {"pixel_values": torch.randn(2, 3, size, size)}


def _large_pixels() -> Inputs:
    return _pixels(64)


def _video(frames: int) -> Callable[[], Inputs]:
    def made() -> Inputs:
        import torch

        return {"pixel_values": torch.randn(1, frames, 3, 32, 32)}

    return made


def _floats(name: str, *shape: int, decoder: bool = False) -> Callable[[], Inputs]:
    def made() -> Inputs:
        import torch

        rest = {"decoder_input_ids": torch.randint(3, 60, (shape[0], 6))} if decoder else {}
        return {name: torch.randn(*shape), **rest}

    return made


def _trajectory() -> Inputs:
    import torch

    parts = {"states": 5, "actions": 3, "rewards": 1, "returns_to_go": 1}
    tensors = {name: torch.randn(1, 4, size) for name, size in parts.items()}
    return {**tensors, "timesteps": torch.arange(4)[None], "attention_mask": torch.ones(1, 4)}


def _text_and_pixels() -> Inputs:
    return {**_ids(), **_pixels()}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What AutoConfig.for_model makes a small model of, and what the model is run on."""

    inputs: Callable[[], Inputs]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    model_type: str | None = None


def _all(
    names: str, inputs: Callable[[], Inputs], sizes: Mapping[str, Any], **more: Any
) -> dict[str, Architecture]:
    return {name: Architecture(inputs, {**sizes, **more}) for name in names.split()}


ARCHITECTURES: dict[str, Architecture] = {
    **_all(
        "bert roberta camembert xlm-roberta ernie roformer megatron-bert mpnet data2vec-text "
        "layoutlm nystromformer yoso convbert big_bird ibert roberta-prelayernorm roc_bert biogpt "
        "fnet",
        _ids,
        _TEXT,
    ),
    **_all("electra albert", _ids, _TEXT, embedding_size=16),
    **_all(
        "mobilebert", _ids, _TEXT, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32
    ),
    **_all("rembert", _ids, _TEXT, input_embedding_size=16, output_embedding_size=16),
    **_all("esm", _ids, {**_TEXT, "pad_token_id": 1}, mask_token_id=2),
    **_all(
        "modernbert",
        _ids,
        _TEXT,
        global_attn_every_n_layers=2,
        local_attention=8,
        cls_token_id=1,
        sep_token_id=2,
    ),
    **_all("deberta", _ids, _TEXT, pos_att_type=["c2p", "p2c"], relative_attention=True),
    **_all("distilbert", _ids, _TEXT, dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    **_all("xlm flaubert", _ids, _TOKENS, emb_dim=32, n_layers=2, n_heads=4),
    **_all(
        "canine",
        _ids,
        _TEXT,
        num_hash_buckets=64,
        num_hash_functions=2,
        downsampling_rate=2,
        local_transformer_stride=4,
        upsampling_kernel_size=2,
    ),
    **_all(
        "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text olmo olmo2 cohere cohere2 starcoder2 "
        "stablelm phi phi3 persimmon nemotron glm glm4 granite helium ministral smollm3 exaone4 "
        "seed_oss bitnet apertus arcee ernie4_5 hunyuan_v1_dense diffllama",
        _ids,
        _DECODER,
    ),
    **_all("gpt_bigcode openai-gpt", _ids, {**_TOKENS, **_GPT}),
    **_all("codegen", _ids, {**_TOKENS, **_GPT}, n_ctx=64, rotary_dim=4),
    **_all("ctrl", _ids, {**_TOKENS, **_GPT}, dff=64),
    **_all(
        "falcon", _ids, _TEXT, new_decoder_architecture=False, multi_query=True, parallel_attn=True
    ),
    **_all("mpt", _ids, _TOKENS, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    **_all(
        "gpt_neo",
        _ids,
        _TEXT,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
    ),
    **_all("gpt_neox_japanese", _ids, _TEXT, intermediate_multiple_size=2),
    **_all("xglm", _ids, _TOKENS, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64),
    **_all("opt", _ids, _TEXT, ffn_dim=64, word_embed_proj_dim=16),
    **_all("bloom", _ids, _TOKENS, hidden_size=32, n_layer=2, n_head=4),
    **_all("mamba", _ids, _TEXT, state_size=4),
    **_all("mamba2", _ids, _TEXT, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
    **_all("rwkv", _ids, _TEXT, attention_hidden_size=32),
    **_all(
        "bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 bigbird_pegasus mvp",
        _both,
        {**_TOKENS, **_TOWERS},
        max_position_embeddings=64,
        decoder_vocab_size=64,
    ),
    **_all("t5 mt5 umt5", _both, {**_TOKENS, **_T5}),
    **_all(
        "prophetnet",
        _both,
        _TOKENS,
        hidden_size=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
    ),
    **_all(
        "vit deit beit dinov2 dinov2_with_registers data2vec-vision vit_msn ijepa "
        "siglip_vision_model clip_vision_model dinov3_vit mlcd_vision_model dpt",
        _pixels,
        _PATCHES,
    ),
    **_all("vitdet", _pixels, _PATCHES, pretrain_image_size=32),
    **_all("swin swinv2 donut-swin maskformer-swin", _pixels, _WINDOWS),
    **_all("convnext convnextv2", _pixels, {}, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    **_all(
        "segformer",
        _large_pixels,
        {},
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
    ),
    **_all("poolformer", _large_pixels, _STAGES),
    **_all("bit", _large_pixels, _STAGES, embedding_size=8, num_groups=4),
    **_all("pvt", _large_pixels, _STAGES, num_attention_heads=[1, 2, 2, 4]),
    **_all(
        "pvt_v2",
        _large_pixels,
        _STAGES,
        num_attention_heads=[1, 2, 2, 4],
        sr_ratios=[8, 4, 2, 1],
        mlp_ratios=[2, 2, 2, 2],
    ),
    **_all(
        "levit",
        _large_pixels,
        {},
        image_size=64,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    **_all(
        "mobilevit",
        _large_pixels,
        {},
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32],
        num_attention_heads=4,
    ),
    **_all("mobilevitv2", _large_pixels, {}, image_size=64, width_multiplier=0.25),
    **_all(
        "focalnet",
        _pixels,
        _WINDOWS,
        hidden_sizes=[16, 32],
        focal_levels=[1, 1],
        focal_windows=[3, 3],
    ),
    **_all("swiftformer", _large_pixels, _STAGES, embed_dims=[8, 16, 16, 32]),
    **_all(
        "sam_vision_model",
        _large_pixels,
        {**_PATCHES, "image_size": 64},
        mlp_dim=64,
        window_size=4,
        global_attn_indexes=[1],
        output_channels=16,
    ),
    **_all("timesformer", _video(2), _PATCHES, num_frames=2),
    **_all("vivit", _video(4), _PATCHES, num_frames=4, tubelet_size=[2, 8, 8]),
    **_all("videomae", _video(4), _PATCHES, num_frames=4, tubelet_size=2),
    **_all(
        "wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew sew-d wav2vec2-conformer",
        _floats("input_values", 1, 4000),
        _WAVES,
    ),
    "wav2vec2, stable norms": Architecture(
        _floats("input_values", 1, 4000),
        {**_WAVES, "feat_extract_norm": "layer", "do_stable_layer_norm": True},
        "wav2vec2",
    ),
    **_all(
        "wav2vec2-bert",
        _floats("input_features", 1, 20, 16),
        _HIDDEN,
        feature_projection_input_dim=16,
    ),
    **_all(
        "whisper",
        _floats("input_features", 1, 16, 100, decoder=True),
        {**_TOKENS, **_TOWERS},
        max_source_positions=50,
        max_target_positions=32,
        num_mel_bins=16,
    ),
    **_all(
        "speech_to_text",
        _floats("input_features", 1, 64, 16, decoder=True),
        {**_TOKENS, **_TOWERS},
        input_feat_per_channel=16,
        conv_channels=32,
    ),
    **_all(
        "moonshine",
        _floats("input_values", 1, 8000, decoder=True),
        {**_HIDDEN, "vocab_size": 64},
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    ),
    **_all(
        "audio-spectrogram-transformer",
        _floats("input_values", 1, 64, 32),
        _HIDDEN,
        patch_size=8,
        max_length=64,
        num_mel_bins=32,
        frequency_stride=8,
        time_stride=8,
    ),
    **_all(
        "decision_transformer",
        _trajectory,
        {},
        hidden_size=32,
        n_layer=2,
        n_head=4,
        state_dim=5,
        act_dim=3,
    ),
    **_all(
        "patchtst",
        _floats("past_values", 2, 32, 2),
        _SERIES,
        num_attention_heads=2,
        ffn_dim=32,
        num_hidden_layers=2,
    ),
    **_all("patchtsmixer", _floats("past_values", 2, 32, 2), _SERIES, num_layers=2),
    **_all(
        "clip siglip chinese_clip owlvit metaclip_2",
        _text_and_pixels,
        {"text_config": _CLIP_TEXT, "vision_config": _PATCHES, "projection_dim": 16},
    ),
}
