"""A small Llama for the builder of ONNX Runtime GenAI, and its error against float64.

python genai_builder.py make FOLDER          a checkpoint of random weights, with a tokenizer
python genai_builder.py error TRUTH BUILT    the error of what was built beside TRUTH in float64
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from tokenizers import Tokenizer, models

# With as many words as channels the builder of 0.18 gives other logits, of the original too.
WORDS, HEAD, GROUPS = 80, 16, 2


def make(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=GROUPS,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    words = Tokenizer(models.BPE({f"w{number}": number for number in range(WORDS)}, []))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def error(truth: Path, built: Path) -> float:
    ids = np.arange(3, 12).reshape(1, -1)
    model = transformers.AutoModelForCausalLM.from_pretrained(truth).double().eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    session = onnxruntime.InferenceSession(built / "model.onnx")
    feed = {
        value.name: np.zeros((1, GROUPS, 0, HEAD), np.float32) for value in session.get_inputs()
    }
    known = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(ids.size).reshape(1, -1),
    }
    feed |= {name: array for name, array in known.items() if name in feed}
    (logits,) = session.run(["logits"], feed)
    return float(np.sqrt(np.mean((logits - expected) ** 2)))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{error(Path(sys.argv[2]), Path(sys.argv[3]))}\n")
