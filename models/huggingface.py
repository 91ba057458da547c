"""Turn a configuration and a model class of transformers into a builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from models.recipe import Builder, DynamicAxes, Example, Settings

if TYPE_CHECKING:
    import torch

__all__ = [
    "IMAGE_AXES",
    "LICENCE",
    "TEXT_AXES",
    "InputSpec",
    "causal_lm",
    "image_model",
    "model_of",
    "select",
    "source",
    "text_encoder",
    "token_ids",
]

LICENCE = "Apache-2.0"
TEXT_AXES: DynamicAxes = {0: "batch", 1: "sequence"}
IMAGE_AXES: DynamicAxes = {0: "batch"}

_BATCH, _SEQUENCE = 2, 10
_TEXT_INPUTS = ("input_ids", "attention_mask")

# Inputs by name, each with the axes that stay symbolic.
InputSpec = Mapping[str, tuple["torch.Tensor", DynamicAxes]]
# The default special tokens lie outside a small vocabulary, and no recipe generates text.
_NO_TOKENS: Mapping[str, None] = {"bos_token_id": None, "eos_token_id": None}


def source(model: str) -> str:
    """Say which class of transformers a recipe uses."""
    return f"transformers.{model}"


def model_of(
    model: str,
    config: str,
    *,
    full: Mapping[str, object],
    small: Mapping[str, object],
    **arguments: object,
) -> Callable[[Settings], torch.nn.Module]:
    """Build `model` from `config` with untrained weights; both are names in transformers."""

    def build(settings: Settings) -> torch.nn.Module:
        import transformers

        values: dict[str, Any] = {**_NO_TOKENS, **small} if settings.small else dict(full)
        configured = getattr(transformers, config)(**values, attn_implementation=settings.attention)
        configured.use_cache = False
        built: torch.nn.Module = getattr(transformers, model)(configured, **arguments)
        return built

    return build


def select(
    model: torch.nn.Module,
    inputs: InputSpec,
    outputs: Mapping[str, str],
    arguments: Callable[[dict[str, torch.Tensor]], dict[str, object]] = dict,
) -> Example:
    """Wrap `model` so that it takes `inputs` by position and returns the tensors in `outputs`.

    `outputs` maps the name in the graph to the field of the model's output; `arguments` turns
    the named inputs into the keyword arguments of the model.
    """
    import torch

    class Selected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = self.model(**arguments(dict(zip(inputs, tensors, strict=True))))
            return tuple(getattr(result, field) for field in outputs.values())

    return Example(
        module=Selected(),
        inputs={name: tensor for name, (tensor, _) in inputs.items()},
        dynamic_axes={name: axes for name, (_, axes) in inputs.items()},
        outputs=tuple(outputs),
    )


def token_ids(vocabulary: int, batch: int = _BATCH, length: int = _SEQUENCE) -> torch.Tensor:
    """Draw token ids that keep clear of the special tokens at the start of a vocabulary."""
    import torch

    return torch.randint(5, vocabulary, (batch, length))


def text_inputs(vocabulary: int, names: tuple[str, ...]) -> InputSpec:
    """Token ids with a mask of ones and, where asked for, token types of zero."""
    import torch

    ids = token_ids(vocabulary)
    values = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {name: (values.get(name, torch.zeros_like(ids)), TEXT_AXES) for name in names}


def causal_lm(build: Callable[[Settings], Any], *, rotary: bool = False) -> Builder:
    """A decoder with its language-model head: token ids and mask to logits.

    At opset 23 torch 2.13 fuses rotary embeddings into RotaryEmbedding without regard to the
    batch axis of the tables; `rotary` gives the model one row of positions for each sample.
    """

    def example(settings: Settings) -> Example:
        model = build(settings)
        inputs = text_inputs(model.config.vocab_size, _TEXT_INPUTS)
        arguments = _with_positions if rotary else dict
        return select(model, inputs, {"logits": "logits"}, arguments)

    return example


def _with_positions(inputs: dict[str, torch.Tensor]) -> dict[str, object]:
    import torch

    batch, length = inputs["input_ids"].shape
    return {**inputs, "position_ids": torch.arange(length).expand(batch, length)}


def text_encoder(
    build: Callable[[Settings], Any],
    *,
    inputs: tuple[str, ...] = _TEXT_INPUTS,
    outputs: Mapping[str, str] | None = None,
) -> Builder:
    """A text model without a head: token ids and mask to hidden states."""

    def example(settings: Settings) -> Example:
        model = build(settings)
        fields = outputs or {"last_hidden_state": "last_hidden_state"}
        return select(model, text_inputs(model.config.vocab_size, inputs), fields)

    return example


def image_model(
    build: Callable[[Settings], Any], outputs: Mapping[str, str], *, size: int | None = None
) -> Builder:
    """A vision model on `size` x `size` images, by default of the configuration's size."""

    def example(settings: Settings) -> Example:
        import torch

        model = build(settings)
        side = model.config.image_size if size is None or settings.small else size
        pixels = torch.randn(_BATCH, model.config.num_channels, side, side)
        return select(model, {"pixel_values": (pixels, IMAGE_AXES)}, outputs)

    return example
