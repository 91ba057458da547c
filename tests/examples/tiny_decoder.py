"""A tiny decoder in the form that onnxruntime-genai runs: one pre-LN block with a cache of keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

__all__ = ["write"]

_WIDTH, _HEADS, _HEAD, _VOCABULARY = 16, 2, 8, 32
_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
decoder (int64[batch, time] input_ids,
         float[batch, 2, past, 8] past_key_0,
         float[batch, 2, past, 8] past_value_0)
      => (float[batch, time, 32] logits,
          float[batch, 2, total, 8] present_key_0,
          float[batch, 2, total, 8] present_value_0)
{
  x = Gather (table, input_ids)
  n = LayerNormalization <axis = -1> (x, gamma, beta)
  query = MatMul (n, wq)
  key = MatMul (n, wk)
  value = MatMul (n, wv)
  query_h = Reshape (query, heads)
  key_h = Reshape (key, heads)
  value_h = Reshape (value, heads)
  query_t = Transpose <perm = [0, 2, 1, 3]> (query_h)
  key_t = Transpose <perm = [0, 2, 1, 3]> (key_h)
  value_t = Transpose <perm = [0, 2, 1, 3]> (value_h)
  present_key_0 = Concat <axis = 2> (past_key_0, key_t)
  present_value_0 = Concat <axis = 2> (past_value_0, value_t)
  keys = Transpose <perm = [0, 1, 3, 2]> (present_key_0)
  scores = MatMul (query_t, keys)
  weights = Softmax <axis = -1> (scores)
  mixed = MatMul (weights, present_value_0)
  mixed_t = Transpose <perm = [0, 2, 1, 3]> (mixed)
  mixed_r = Reshape (mixed_t, joined)
  out = MatMul (mixed_r, wo)
  stream = Add (x, out)
  last = LayerNormalization <axis = -1> (stream, gamma, beta)
  logits = MatMul (last, head)
}
"""


def write(folder: Path) -> None:
    """Write the decoder and its genai_config.json into a new folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    model = parser.parse_model(_TEXT)
    shapes = {"table": (_VOCABULARY, _WIDTH), "head": (_WIDTH, _VOCABULARY)}
    shapes |= dict.fromkeys(("wq", "wk", "wv", "wo"), (_WIDTH, _WIDTH))
    arrays = {name: rng.standard_normal(shape, "f") for name, shape in shapes.items()}
    arrays |= {
        "gamma": 1 + 0.3 * rng.standard_normal(_WIDTH, "f"),
        "beta": 0.3 * rng.standard_normal(_WIDTH, "f"),
        "heads": np.array([0, 0, _HEADS, _HEAD]),
        "joined": np.array([0, 0, _WIDTH]),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    decoder = {
        "filename": "model.onnx",
        "head_size": _HEAD,
        "hidden_size": _WIDTH,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "num_hidden_layers": 1,
        "session_options": {"provider_options": []},
        "inputs": {
            "input_ids": "input_ids",
            "past_key_names": "past_key_%d",
            "past_value_names": "past_value_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_%d",
            "present_value_names": "present_value_%d",
        },
    }
    tokens = {"bos_token_id": 30, "eos_token_id": 31, "pad_token_id": 31}
    model_config = {
        "type": "llama",
        "vocab_size": _VOCABULARY,
        "context_length": 64,
        "decoder": decoder,
        **tokens,
    }
    config = {"model": model_config, "search": {"do_sample": False, "max_length": 16}}
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
