"""A small Llama for llama.cpp's converter, and llama.cpp's error against float64.

python llama_cpp.py make FOLDER            a checkpoint of random weights, with a tokenizer
python llama_cpp.py error FOLDER FILE      the error of a GGUF file beside FOLDER in float64
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

SPECIAL = ("<unk>", "<s>", "</s>")
WORDS = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{n}" for n in range(61))]


def make(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token=SPECIAL[0]))
    words.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    unk, bos, eos = SPECIAL
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token=unk, bos_token=bos, eos_token=eos
    ).save_pretrained(folder)


def log_probabilities(path: Path, ids: list[int]) -> npt.NDArray[np.float64]:
    """Return the log probabilities of the next token, by llama.cpp in float32 on one thread."""
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = str(path)
    given.n_ctx, given.n_gpu_layers, given.warmup = 64, 0, False
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
    given.cache_type_k = given.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    given.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    asked = {"prompt": ids, "n_predict": 1, "n_probs": len(WORDS), "temperature": 0}
    (choice,) = xllamacpp.Server(given).handle_completions(asked)["choices"]
    rows = choice["logprobs"]["content"][0]["top_logprobs"]
    found = np.full(len(WORDS), np.nan)
    found[[row["id"] for row in rows]] = [row["logprob"] for row in rows]
    return found


def error(truth: Path, path: Path) -> float:
    ids = list(range(270, 282))
    model = transformers.AutoModelForCausalLM.from_pretrained(truth).double().eval()
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).numpy()
    return float(np.sqrt(np.mean((log_probabilities(path, ids) - expected) ** 2)))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{error(Path(sys.argv[2]), Path(sys.argv[3]))}\n")
