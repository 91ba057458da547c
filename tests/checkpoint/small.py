"""Small checkpoints that are written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[np.generic]
WIDTH, INNER, WORDS = 16, 24, 20
LAYER = "gpt_neox.layers.1"
NORM, READER = f"{LAYER}.input_layernorm", f"{LAYER}.attention.query_key_value"
METADATA = {"format": "pt", "note": "stays"}


def neox(dtype: npt.DTypeLike = np.float32, layers: int = 2, seed: int = 0) -> dict[str, Array]:
    """The tensors of a GPT-NeoX: LayerNorms with beta, biases, a head of its own."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "gpt_neox.embed_in.weight": (WORDS, WIDTH),
        "gpt_neox.final_layer_norm.weight": (WIDTH,),
        "gpt_neox.final_layer_norm.bias": (WIDTH,),
        "embed_out.weight": (WORDS, WIDTH),
    }
    for number in range(layers):
        parts = {
            "attention.query_key_value": (3 * WIDTH, WIDTH),
            "attention.dense": (WIDTH, WIDTH),
            "mlp.dense_h_to_4h": (INNER, WIDTH),
            "mlp.dense_4h_to_h": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }
        for part, shape in parts.items():
            shapes[f"gpt_neox.layers.{number}.{part}.weight"] = shape
            shapes[f"gpt_neox.layers.{number}.{part}.bias"] = shape[:1]
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def save(
    folder: Path,
    tensors: dict[str, Array],
    config: dict[str, object] | None = None,
    shards: int = 1,
) -> Path:
    """Write a checkpoint into a new folder, in so many shards."""
    folder.mkdir()
    document = {"model_type": "gpt_neox", "hidden_act": "gelu", **(config or {})}
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "tokenizer.json").write_text("{}")
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata=METADATA)
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        save_file(part, folder / file, metadata=METADATA)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
