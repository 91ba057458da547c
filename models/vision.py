"""Vision models of transformers: ViT and its kin, Swin and ConvNeXt."""

from __future__ import annotations

from typing import Final

from models.huggingface import LICENCE, image_model, model_of, source
from models.recipe import Recipe

__all__ = ["RECIPES"]

_LOGITS = {"logits": "logits"}
_FEATURES = {"last_hidden_state": "last_hidden_state", "pooled": "pooler_output"}
_VIT_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}

RECIPES: Final = (
    Recipe(
        name="vit-b16",
        build=image_model(
            model_of(
                "ViTForImageClassification",
                "ViTConfig",
                full={"num_labels": 1000},
                small={**_VIT_SMALL, "num_labels": 10},
            ),
            _LOGITS,
        ),
        source=source("ViTForImageClassification"),
        licence=LICENCE,
        layers="12 of 12, 86M",
        why="pre-LN; patch convolution, class token and positions write the stream",
        layer_norms=25,
    ),
    Recipe(
        name="vit-s16",
        build=image_model(
            model_of(
                "ViTForImageClassification",
                "ViTConfig",
                full={
                    "hidden_size": 384,
                    "intermediate_size": 1536,
                    "num_attention_heads": 6,
                    "num_labels": 1000,
                },
                small={**_VIT_SMALL, "hidden_size": 32, "num_labels": 10},
            ),
            _LOGITS,
        ),
        source=source("ViTForImageClassification"),
        licence=LICENCE,
        layers="12 of 12, 22M",
        why="ViT at half the width, where norms weigh more",
        layer_norms=25,
    ),
    Recipe(
        name="dinov2-small",
        build=image_model(
            model_of(
                "Dinov2Model",
                "Dinov2Config",
                full={"hidden_size": 384, "num_attention_heads": 6, "image_size": 518},
                small={
                    "hidden_size": 48,
                    "mlp_ratio": 2,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "image_size": 32,
                    "patch_size": 8,
                },
            ),
            _FEATURES,
            size=224,
        ),
        source=source("Dinov2Model"),
        licence=LICENCE,
        layers="12 of 12, 22M",
        why="pre-LN with LayerScale between the linear layer and the residual Add",
        layer_norms=25,
    ),
    Recipe(
        name="clip-vision",
        build=image_model(
            model_of("CLIPVisionModel", "CLIPVisionConfig", full={}, small=_VIT_SMALL),
            _FEATURES,
        ),
        source=source("CLIPVisionModel"),
        licence=LICENCE,
        layers="12 of 12 of ViT-B/32, 87M",
        why="a norm before the first block: its output, gamma and beta included, is the stream",
        layer_norms=26,
    ),
    Recipe(
        name="clip-image",
        build=image_model(
            model_of(
                "CLIPVisionModelWithProjection",
                "CLIPVisionConfig",
                full={},
                small={**_VIT_SMALL, "projection_dim": 16},
            ),
            {"image_embeds": "image_embeds"},
        ),
        source=source("CLIPVisionModelWithProjection"),
        licence=LICENCE,
        layers="12 of 12 of ViT-B/32, 88M",
        why="clip-vision as deployed: the embedding is the only output, so the stream is not one",
        layer_norms=26,
    ),
    Recipe(
        name="swin-t",
        build=image_model(
            model_of(
                "SwinForImageClassification",
                "SwinConfig",
                full={"num_labels": 1000},
                small={
                    "embed_dim": 16,
                    "depths": [2, 2],
                    "num_heads": [2, 4],
                    "window_size": 4,
                    "image_size": 32,
                    "num_labels": 10,
                },
            ),
            _LOGITS,
        ),
        source=source("SwinForImageClassification"),
        licence=LICENCE,
        layers="2, 2, 6, 2, 28M",
        why="windows, rolls and pads between norm and linear layer; merging concatenates features",
        layer_norms=29,
        attentions=("eager",),
    ),
    Recipe(
        name="convnext-t",
        build=image_model(
            model_of(
                "ConvNextForImageClassification",
                "ConvNextConfig",
                full={"num_labels": 1000, "layer_scale_init_value": 0.5},
                small={
                    "num_stages": 2,
                    "hidden_sizes": [16, 32],
                    "depths": [2, 2],
                    "image_size": 32,
                    "num_labels": 10,
                    "layer_scale_init_value": 0.5,
                },
            ),
            _LOGITS,
        ),
        source=source("ConvNextForImageClassification"),
        licence=LICENCE,
        layers="3, 3, 9, 3, 29M",
        why="channels-last norms between transposes; a depthwise convolution reads the stream",
        layer_norms=23,
        attentions=("eager",),
    ),
)
