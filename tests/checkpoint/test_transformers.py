"""transformers loads a folded checkpoint, and its logits stay."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is missing: make test-training installs it"
)
from safetensors.numpy import load_file, save_file

from onnxfold.checkpoint import fold_checkpoint
from onnxfold.checkpoint.families import FAMILIES
from onnxfold.errors import ModelError

WIDTH, WORDS, TOKENS = 32, 48, 9
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT = {
    "vocab_size": WORDS,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OPT = {**_SIZES, "ffn_dim": 40, "word_embed_proj_dim": WIDTH}
_HEADS = {"num_attention_heads": 4}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_OWN: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 4},
    "opt": {key: value for key, value in _OPT.items() if key != "num_key_value_heads"},
    "gpt_neox": {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"},
    **{kind: {**_SIZES, "head_dim": 8} for kind in ("gemma", "gemma2", "gemma3_text")},
    **{
        kind: {**_SIZES, "head_dim": 8} for kind in ("ernie4_5", "exaone4", "glm", "glm4", "helium")
    },
    "seed_oss": {**_SIZES, "head_dim": 8},
    "bloom": {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
    "falcon": {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2} | _HEADS,
    "gpt_oss": {**_SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_SIZES, **_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**_SIZES, **_EXPERTS, "head_dim": 8},
    "olmoe": {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2},
}
# Which norms of the two layers and the last one change, when the head is not the embedding.
_WEIGHTLESS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "mixtral"), 5),
    **dict.fromkeys(("arcee", "ernie4_5", "helium", "seed_oss", "smollm3"), 5),
    **dict.fromkeys(("glm", "glm4", "olmoe", "qwen2_moe", "qwen3_moe"), 5),
    **dict.fromkeys(("cohere", "cohere2", "gpt_oss"), 3),
    **dict.fromkeys(("exaone4", "olmo2", "olmo3"), 1),  # the last: the others add to the stream
    **dict.fromkeys(("gpt2", "opt", "starcoder2", "gpt_neox", "bloom"), 4),
    **dict.fromkeys(("falcon", "olmo"), 0),  # no biases; no gammas
    "gptj": 1,  # its queries have no bias for beta, its head has
    "phi": 3,
    "stablelm": 0,
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), 0),
}
_LAYER_NORMS = {
    "cohere": 3,
    "cohere2": 3,
    "falcon": 3,
    "olmo": 5,
    "gpt2": 5,
    "gptj": 3,
    "gpt_neox": 5,
    "opt": 5,
    "phi": 3,
    "stablelm": 5,
    "starcoder2": 5,
}


def made(kind: str, dtype: torch.dtype = torch.float32, **options: Any) -> torch.nn.Module:
    """A small model with random gammas, betas and biases."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**_OWN.get(kind, _SIZES), **options})
    config._experts_implementation = "eager"  # the others of Mixtral are for float32 alone
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.tie_weights()
    return model.to(dtype)


def logits(model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    ids = torch.randint(3, WORDS, (4, TOKENS))
    with torch.no_grad():
        return model(ids, use_cache=False).logits.double()


def loaded(folder: Path) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    model.config._experts_implementation = "eager"
    return model.eval()


def exact(model: torch.nn.Module) -> torch.Tensor:
    return logits(copy.deepcopy(model).double())


def rms(values: torch.Tensor) -> float:
    return float(values.pow(2).mean().sqrt())


def errors(model: torch.nn.Module, folder: Path) -> tuple[float, float]:
    """Return the errors of a model and of its folded checkpoint against the float64 model."""
    truth = exact(model)
    return rms(logits(model) - truth), rms(logits(loaded(folder)) - truth)


@pytest.mark.parametrize("form", ["weightless", "rms"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_stay(tmp_path: Path, kind: str, form: str) -> None:
    model = made(kind, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "in")
    result = fold_checkpoint(tmp_path / "in", tmp_path / "out", to=form)
    expected = _WEIGHTLESS if form == "weightless" else _LAYER_NORMS
    assert len(result.folded) == expected.get(kind, 0)
    before, after = errors(model, tmp_path / "out")
    # The fold may err as the model does itself, and once more for the new roundings of weights.
    assert after <= 2 * before
    assert before < 1e-4 * rms(exact(model))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gemma"])
def test_models_with_a_shared_embedding_stay_right(tmp_path: Path, kind: str) -> None:
    model = made(kind, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "in")
    result = fold_checkpoint(tmp_path / "in", tmp_path / "out")
    last = {"llama": "model.norm", "gpt2": "transformer.ln_f", "gemma": "model.norm"}
    why = result.left[last.get(kind, "model.decoder.final_layer_norm")]
    assert "tie_word_embeddings" in why or kind == "gemma"
    before, after = errors(model, tmp_path / "out")
    assert after <= 2 * before
    assert not fold_checkpoint(tmp_path / "in", to="rms").folded


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("falcon", {"new_decoder_architecture": True}, "new_decoder_architecture"),
        ("falcon", {"parallel_attn": False}, "parallel_attn"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm"),
        ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        ("nemotron", {}, "model_type 'nemotron' is not known"),  # it multiplies by 1 + g
        ("phimoe", {}, "model_type 'phimoe' is not known"),
    ],
)
def test_other_variants_are_refused_by_name(
    tmp_path: Path, kind: str, options: dict[str, Any], says: str
) -> None:
    made(kind, tie_word_embeddings=False, **options).save_pretrained(tmp_path / "in")
    with pytest.raises(ModelError, match=says):
        fold_checkpoint(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stream_that_begins_at_a_norm_keeps_its_mean(tmp_path: Path) -> None:
    made("bloom", tie_word_embeddings=False).save_pretrained(tmp_path / "in")
    left = fold_checkpoint(tmp_path / "in", tmp_path / "out", to="rms").left
    assert len(left) == 6
    assert "'word_embeddings_layernorm', whose gamma and beta" in left["transformer.ln_f"]


def test_a_gamma_of_what_is_added_to_the_stream_breaks_the_model_elsewhere(tmp_path: Path) -> None:
    """OLMo2's norms stand where Llama's names would have them read by the feed-forward layers."""
    model = made("olmo2", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "in")
    norm = "model.layers.0.post_attention_layernorm.weight"
    readers = [f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
    changes = {norm: lambda tensors: np.ones_like(tensors[norm])}
    for name in readers:
        changes[name] = lambda tensors, name=name: tensors[name] * tensors[norm]
    wrong = forced(tmp_path / "in", tmp_path / "out", dict(reversed(changes.items())))
    assert rms(logits(wrong) - logits(model)) > 0.01 * rms(logits(model))


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_half_precision_errs_no_more_than_twice_as_much(tmp_path: Path, kind: str) -> None:
    model = made(kind, torch.bfloat16)
    model.save_pretrained(tmp_path / "in")
    fold_checkpoint(tmp_path / "in", tmp_path / "out")
    before, after = errors(model, tmp_path / "out")
    assert after <= 2 * before


def test_shards_of_transformers_are_taken(tmp_path: Path) -> None:
    model = made("llama")
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 2
    result = fold_checkpoint(tmp_path / "in", tmp_path / "out")
    assert len(result.folded) == 5
    before, after = errors(model, tmp_path / "out")
    assert after <= 2 * before


def test_base_models_keep_the_gamma_of_their_output(tmp_path: Path) -> None:
    model = made("llama").model
    model.save_pretrained(tmp_path / "in")
    result = fold_checkpoint(tmp_path / "in", tmp_path / "out")
    assert result.left["norm"] == "its output is the output of the model"
    assert len(result.folded) == 4
    folded = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(3, 12).reshape(1, -1)
    with torch.no_grad():
        values = [m(ids).last_hidden_state.double() for m in (model, folded)]
        truth = copy.deepcopy(model).double()(ids).last_hidden_state
    assert rms(values[1] - truth) <= 2 * rms(values[0] - truth)


def forced(folder: Path, out: Path, changes: dict[str, Any]) -> torch.nn.Module:
    """Write the rewriting that is refused."""
    tensors = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        tensors[name] = np.ascontiguousarray(change(tensors), dtype=tensors[name].dtype)
    out.mkdir()
    (out / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return loaded(out)


def test_moving_the_last_gamma_into_a_shared_embedding_breaks_the_model(tmp_path: Path) -> None:
    model = made("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "in")
    table, norm = "model.embed_tokens.weight", "model.norm.weight"
    changes = {
        table: lambda tensors: tensors[table] * tensors[norm],
        norm: lambda tensors: np.ones_like(tensors[norm]),
    }
    wrong = forced(tmp_path / "in", tmp_path / "out", changes)
    assert rms(logits(wrong) - logits(model)) > 0.01 * rms(logits(model))


def test_centring_a_shared_embedding_breaks_the_model(tmp_path: Path) -> None:
    model = made("gpt2")
    model.save_pretrained(tmp_path / "in")
    table = "transformer.wte.weight"
    changes = {table: lambda tensors: tensors[table] - tensors[table].mean(1, keepdims=True)}
    wrong = forced(tmp_path / "in", tmp_path / "out", changes)
    assert rms(logits(wrong) - logits(model)) > 0.01 * rms(logits(model))


def test_a_gamma_of_queries_in_their_weight_breaks_the_model(tmp_path: Path) -> None:
    model = made("qwen3", head_dim=8)
    model.save_pretrained(tmp_path / "in")
    part = "model.layers.0.self_attn"
    norm, weight = f"{part}.q_norm.weight", f"{part}.q_proj.weight"
    changes = {
        weight: lambda t: (t[weight].reshape(4, 8, WIDTH) * t[norm][:, None]).reshape(-1, WIDTH),
        norm: lambda tensors: np.ones_like(tensors[norm]),
    }
    wrong = forced(tmp_path / "in", tmp_path / "out", changes)
    assert rms(logits(wrong) - logits(model)) > 1e-4 * rms(logits(model))


def test_a_gamma_of_gemma_taken_as_it_stands_breaks_the_model(tmp_path: Path) -> None:
    model = made("gemma", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "in")
    norm, head = "model.norm.weight", "lm_head.weight"
    changes = {
        head: lambda tensors: tensors[head] * tensors[norm],
        norm: lambda tensors: np.ones_like(tensors[norm]),
    }
    wrong = forced(tmp_path / "in", tmp_path / "out", changes)
    assert rms(logits(wrong) - logits(model)) > 0.01 * rms(logits(model))
