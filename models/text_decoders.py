"""Causal language models: LayerNorm families first, then the RMSNorm families."""

from __future__ import annotations

from typing import Final

from models.huggingface import LICENCE, causal_lm, model_of, source, text_encoder
from models.recipe import Recipe

__all__ = ["RECIPES"]

_LLAMA_FULL = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
_LLAMA_SMALL = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
}

RECIPES: Final = (
    Recipe(
        name="gpt2",
        build=causal_lm(
            model_of(
                "GPT2LMHeadModel",
                "GPT2Config",
                full={},
                small={
                    "vocab_size": 160,
                    "n_positions": 64,
                    "n_embd": 48,
                    "n_layer": 2,
                    "n_head": 4,
                },
            )
        ),
        source=source("GPT2LMHeadModel"),
        licence=LICENCE,
        layers="12 of 12, 124M",
        why="pre-LN; token table tied to the head; Reshape-Gemm-Reshape linear layers",
        layer_norms=25,
    ),
    Recipe(
        name="opt-125m",
        build=causal_lm(
            model_of(
                "OPTForCausalLM",
                "OPTConfig",
                full={},
                small={
                    "vocab_size": 160,
                    "hidden_size": 48,
                    "word_embed_proj_dim": 48,
                    "ffn_dim": 96,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "max_position_embeddings": 64,
                },
            )
        ),
        source=source("OPTForCausalLM"),
        licence=LICENCE,
        layers="12 of 12, 125M",
        why="pre-LN; tied table; positions from a cumulative sum of the mask; ReLU",
        layer_norms=25,
    ),
    Recipe(
        name="bloom-560m",
        build=causal_lm(
            model_of(
                "BloomForCausalLM",
                "BloomConfig",
                full={"hidden_size": 1024, "n_head": 16, "n_layer": 2},
                small={"vocab_size": 160, "hidden_size": 48, "n_head": 4, "n_layer": 2},
            )
        ),
        source=source("BloomForCausalLM"),
        licence=LICENCE,
        layers="2 of 24",
        why="LayerNorm right after a tied table of 1 GB; ALiBi; interleaved QKV",
        layer_norms=6,
        attentions=("eager",),
    ),
    Recipe(
        name="pythia-160m",
        build=causal_lm(
            model_of(
                "GPTNeoXForCausalLM",
                "GPTNeoXConfig",
                full={
                    "vocab_size": 50304,
                    "hidden_size": 768,
                    "intermediate_size": 3072,
                    "num_hidden_layers": 12,
                    "num_attention_heads": 12,
                },
                small={
                    "vocab_size": 160,
                    "hidden_size": 48,
                    "intermediate_size": 96,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "max_position_embeddings": 64,
                },
            ),
            rotary=True,
        ),
        source=source("GPTNeoXForCausalLM"),
        licence=LICENCE,
        layers="12 of 12, 160M",
        why="GPT-NeoX: two LayerNorms on one stream, parallel residual, partial rotary",
        layer_norms=25,
    ),
    Recipe(
        name="phi-2",
        build=causal_lm(
            model_of(
                "PhiForCausalLM",
                "PhiConfig",
                full={"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 2},
                small={
                    "vocab_size": 160,
                    "hidden_size": 48,
                    "intermediate_size": 96,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                },
            ),
            rotary=True,
        ),
        source=source("PhiForCausalLM"),
        licence=LICENCE,
        layers="2 of 32",
        why="one LayerNorm for attention and MLP, three-way residual Add; biased head",
        layer_norms=3,
    ),
    Recipe(
        name="gptj",
        build=text_encoder(
            model_of(
                "GPTJModel",
                "GPTJConfig",
                full={"n_layer": 2},
                small={
                    "vocab_size": 160,
                    "n_positions": 64,
                    "n_embd": 48,
                    "n_layer": 2,
                    "n_head": 4,
                    "rotary_dim": 4,
                },
            )
        ),
        source=source("GPTJModel"),
        licence=LICENCE,
        layers="2 of 28, no head",
        why="GPT-J 6B's width of 4096: parallel residual on one LayerNorm; above 2 GB",
        layer_norms=3,
        attentions=("eager",),
    ),
    Recipe(
        name="llama-small",
        build=causal_lm(
            model_of("LlamaForCausalLM", "LlamaConfig", full=_LLAMA_FULL, small=_LLAMA_SMALL),
            rotary=True,
        ),
        source=source("LlamaForCausalLM"),
        licence=LICENCE,
        layers="4, width 512",
        why="RMSNorm, SwiGLU, rotary, grouped-query attention",
        rms_norms=9,
    ),
    Recipe(
        name="mistral-small",
        build=causal_lm(
            model_of(
                "MistralForCausalLM",
                "MistralConfig",
                full={**_LLAMA_FULL, "sliding_window": 256},
                small={**_LLAMA_SMALL, "sliding_window": 8},
            ),
            rotary=True,
        ),
        source=source("MistralForCausalLM"),
        licence=LICENCE,
        layers="4, width 512",
        why="RMSNorm with sliding-window attention",
        rms_norms=9,
    ),
    Recipe(
        name="qwen3-small",
        build=causal_lm(
            model_of("Qwen3ForCausalLM", "Qwen3Config", full=_LLAMA_FULL, small=_LLAMA_SMALL),
            rotary=True,
        ),
        source=source("Qwen3ForCausalLM"),
        licence=LICENCE,
        layers="4, width 512",
        why="RMSNorm on every head of queries and keys beside the block norms",
        rms_norms=17,
    ),
    Recipe(
        name="gemma-small",
        build=causal_lm(
            model_of("GemmaForCausalLM", "GemmaConfig", full=_LLAMA_FULL, small=_LLAMA_SMALL),
            rotary=True,
        ),
        source=source("GemmaForCausalLM"),
        licence=LICENCE,
        layers="4, width 512",
        why="RMSNorm with gamma stored as 1 + w; tied table scaled by sqrt(width)",
        rms_norms=9,
    ),
    Recipe(
        name="gemma2-small",
        build=causal_lm(
            model_of("Gemma2ForCausalLM", "Gemma2Config", full=_LLAMA_FULL, small=_LLAMA_SMALL),
            rotary=True,
        ),
        source=source("Gemma2ForCausalLM"),
        licence=LICENCE,
        layers="4, width 512",
        why="sandwich of RMSNorms before and after each branch; tanh soft-capped logits",
        rms_norms=17,
        attentions=("eager",),
    ),
)
