"""Models written in plain torch, for the exporters and norms that transformers lacks.

Both of torch's exporters take them: TorchScript from opset 9 on, dynamo from 18.
"""

from __future__ import annotations

from typing import Final

from models.huggingface import IMAGE_AXES, TEXT_AXES, token_ids
from models.recipe import Builder, Example, ExporterName, NormName, Recipe, Settings

__all__ = ["RECIPES"]

_BOTH: Final[tuple[ExporterName, ...]] = ("dynamo", "torchscript")
_SOURCE = "models/plain_transformer.py"
_LICENCE = "this project's"
_VOCABULARY, _SMALL_VOCABULARY = 8192, 160
_CLASSES = 10


def _tokens(norm: NormName, *, post_norm: bool = False) -> Builder:
    def example(settings: Settings) -> Example:
        from models.plain_transformer import Shape, TokenTransformer

        width, layers, heads = (48, 2, 4) if settings.small else (256, 4, 8)
        vocabulary = _SMALL_VOCABULARY if settings.small else _VOCABULARY
        shape = Shape(width, layers, heads, 4 * width, norm, post_norm)
        return Example(
            module=TokenTransformer(shape, vocabulary=vocabulary, positions=128),
            inputs={"input_ids": token_ids(vocabulary)},
            dynamic_axes={"input_ids": TEXT_AXES},
            outputs=("logits",),
        )

    return example


def _patches(norm: NormName) -> Builder:
    def example(settings: Settings) -> Example:
        import torch

        from models.plain_transformer import PatchTransformer, Shape

        width, layers, heads = (48, 2, 4) if settings.small else (384, 12, 6)
        side, patch = (32, 8) if settings.small else (224, 16)
        shape = Shape(width, layers, heads, 4 * width, norm)
        return Example(
            module=PatchTransformer(shape, side=side, patch=patch, channels=3, classes=_CLASSES),
            inputs={"pixel_values": torch.randn(2, 3, side, side)},
            dynamic_axes={"pixel_values": IMAGE_AXES},
            outputs=("logits",),
        )

    return example


def _scans(settings: Settings) -> Example:
    import torch

    from models.vmamba import VMamba

    width, depths, side = (12, (1, 1, 1, 1), 64) if settings.small else (96, (2, 2, 9, 2), 224)
    return Example(
        module=VMamba(width, depths, classes=_CLASSES),
        inputs={"pixel_values": torch.randn(2, 3, side, side)},
        dynamic_axes={"pixel_values": {0: "batch"}},
        outputs=("logits",),
    )


RECIPES: Final = (
    Recipe(
        name="plain-gpt",
        build=_tokens("layer"),
        source=_SOURCE,
        licence=_LICENCE,
        layers="4, width 256",
        why="pre-LN with a tied table; below opset 17 TorchScript writes the norms decomposed",
        layer_norms=9,
        exporters=_BOTH,
        attentions=("eager",),
    ),
    Recipe(
        name="plain-bert",
        build=_tokens("layer", post_norm=True),
        source=_SOURCE,
        licence=_LICENCE,
        layers="4, width 256",
        why="post-LN, otherwise as plain-gpt",
        layer_norms=9,
        exporters=_BOTH,
        attentions=("eager",),
    ),
    Recipe(
        name="plain-rms",
        build=_tokens("rms"),
        source=_SOURCE,
        licence=_LICENCE,
        layers="4, width 256",
        why="RMSNorm spelt out, from both exporters",
        rms_norms=9,
        exporters=_BOTH,
        attentions=("eager",),
    ),
    Recipe(
        name="plain-vit",
        build=_patches("layer"),
        source=_SOURCE,
        licence=_LICENCE,
        layers="12, 22M",
        why="ViT-S/16 from both exporters",
        layer_norms=25,
        exporters=_BOTH,
        attentions=("eager",),
    ),
    Recipe(
        name="dyt-vit",
        build=_patches("dyt"),
        source=_SOURCE,
        licence=_LICENCE,
        layers="12, 22M",
        why="DyT in the place of LayerNorm: no reduction, nothing to fold but gamma and beta",
        exporters=_BOTH,
        attentions=("eager",),
    ),
    Recipe(
        name="vmamba-t",
        build=_scans,
        source="models/vmamba.py",
        licence=_LICENCE,
        layers="15 of 15",
        why="state-space layers, which torch exports as Scan; each has a norm behind its product",
        layer_norms=51,
        attentions=("eager",),
    ),
)
