"""A checkpoint, folded, quantised to four bits, and optimized: the logits of the int4 model stay.

GenAI's builder makes the model where it is installed, which knows neither GPT-2 nor GPT-NeoX;
otherwise ONNX Runtime's quantizer does, of an export.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfold

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is missing: make test-training installs it"
)

from onnxfold.checkpoint import fold_checkpoint

pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code
WIDTH, WORDS, TOKENS, HEADS = 128, 64, 9, 4
_GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 32}
_SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_BUILT = {"phi": {**_SIZES, "num_key_value_heads": HEADS}}
_EXPORTED = {"gpt2": _GPT, "gpt_neox": _SIZES}
_EQUAL = 1e-4  # float32 against float32, in parts of the largest logit
Array = np.ndarray


def _checkpoint(kind: str, sizes: Mapping[str, Any], directory: Path) -> Any:
    """Save a model with random gammas and betas, folded, and return it as it was."""
    torch.manual_seed(0)
    named = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, **sizes}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **named)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    model.save_pretrained(directory / "stored")
    fold_checkpoint(directory / "stored", directory / "folded")
    return model


def _ids() -> Array:
    return np.random.default_rng(0).integers(3, WORDS, (1, TOKENS))


def _logits(path: Path, kind: str) -> Array:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {
        "input_ids": _ids(),
        "attention_mask": np.ones((1, TOKENS), np.int64),
        "position_ids": np.arange(TOKENS)[np.newaxis],
    }
    heads = _BUILT.get(kind, {}).get("num_key_value_heads", HEADS)
    past = np.zeros((1, heads, 0, WIDTH // HEADS), np.float32)
    feeds = {each.name: given.get(each.name, past) for each in session.get_inputs()}
    return session.run(["logits"], feeds)[0]


def _check(kind: str, model: Any, int4: Path, directory: Path) -> dict[str, Any]:
    """Optimize an int4 model for every target; return the last one's summary."""
    with torch.no_grad():
        exact = model(torch.from_numpy(_ids())).logits.numpy()
    assert "MatMulNBits" in {
        node.op_type for node in onnx.load(int4, load_external_data=False).graph.node
    }
    before = _logits(int4, kind)
    rounding = np.abs(before - exact).max()
    assert rounding < np.abs(exact).max()  # four bits are not nothing
    for target in ("onnx", "ort", "kernels"):
        out = directory / f"{kind}-{target}.onnx"
        result = onnxfold.optimize(int4, out, target=target, fold="always", fuse_affine="always")
        if target != "kernels":  # whose functions a session without the library runs too
            moved = np.abs(_logits(out, kind) - before).max()
            assert moved <= _EQUAL * np.abs(before).max()
            assert moved < rounding / 100
        again = onnxfold.optimize(
            out,
            directory / "again.onnx",
            target=target,
            fold="always",
            fuse_affine="always",
            force=True,
        )
        assert not again.changed
    summary: dict[str, Any] = result.report["inspect"]["summary"]
    return summary


def test_genais_builder_in_int4(tmp_path: Path) -> None:
    """The norm of the embeddings folds, which are float; the others read sums of codes."""
    kind = "phi"
    pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is missing")
    model = _checkpoint(kind, _BUILT[kind], tmp_path)
    words = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu"]
    paths = ["-i", str(tmp_path / "folded"), "-o", str(tmp_path / "int4"), "-c", str(tmp_path)]
    run([*words, *paths], check=True, capture_output=True, timeout=600)
    summary = _check(kind, model, tmp_path / "int4" / "model.onnx", tmp_path)
    assert (summary["norms"], summary["foldable"]) == (3, 1)


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "folds"), [("gpt2", 5), ("gpt_neox", 2)])
def test_onnxruntimes_quantizer_in_int4(kind: str, folds: int, tmp_path: Path) -> None:
    """It takes MatMuls alone: the Gemms of GPT-2 stay float, and two norms read embeddings."""
    quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    model = _checkpoint(kind, _EXPORTED[kind], tmp_path)
    folded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folded").eval()
    folded.config.use_cache = False

    class Logits(torch.nn.Module):
        """The folded model's logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = folded

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids, attention_mask=torch.ones_like(input_ids)).logits

    float32, int4 = tmp_path / "float32.onnx", tmp_path / "int4.onnx"
    torch.onnx.export(
        Logits(), (torch.from_numpy(_ids()),), str(float32), dynamo=False, opset_version=18,
        input_names=["input_ids"], output_names=["logits"],
    )  # fmt: skip
    made = quantizer.MatMulNBitsQuantizer(onnx.load(float32), bits=4, block_size=32)
    made.process()
    made.model.save_model_to_file(str(int4))
    summary = _check(kind, model, int4, tmp_path)
    assert (summary["norms"], summary["foldable"]) == (5, folds)
