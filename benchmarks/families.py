"""What folds in small models of families that have no recipe: of diffusers, and blocks of torch.

    python -m benchmarks.families [DIRECTORY]

exports each by TorchScript (opset 18, untrained, random gammas, betas and gates) to DIRECTORY,
quantizes two small recipes to int4 with ONNX Runtime, and writes benchmarks/results/families.csv. A
family whose package is missing keeps its row.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, merge

__all__ = ["FAMILIES", "main"]

_RECIPES = Path(__file__).parents[1] / "tests" / "recipes"
_INT4 = {"gpt2-int4": "gpt2", "gpt-neox-int4": "pythia-160m"}
_WIDTH, _HEADS = 32, 4
_JOINT = {"joint_attention_dim": _WIDTH, "attention_head_dim": 8, "num_attention_heads": _HEADS}
_DECODER = {
    "vocab_size": 48,
    "hidden_size": _WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "use_cache": False,
}
_Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class _Named(torch.nn.Module):
    """A model of diffusers or transformers, called with positional inputs; its first result."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str], **rest: Any):
        super().__init__()
        self.model, self._names, self._rest = model, names, rest

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self._names, inputs, strict=True))
        if "input_ids" in given:
            given["attention_mask"] = torch.ones_like(given["input_ids"])
        result: torch.Tensor = self.model(**given, return_dict=False, **self._rest)[0]
        return result


def _of_diffusers(name: str, sizes: Mapping[str, Any], **inputs: torch.Tensor) -> _Made:
    import diffusers

    return _Named(getattr(diffusers, name)(**sizes), list(inputs)), tuple(inputs.values())


def _of_transformers(kind: str, **sizes: int) -> _Made:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **_DECODER, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.set_experts_implementation("batched_mm")
    return _Named(model, ["input_ids"]), (torch.randint(3, 40, (1, 6)),)


def _sd3() -> _Made:
    own = {"sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 2,
           "caption_projection_dim": _WIDTH, "pooled_projection_dim": 64,
           "out_channels": 4}  # fmt: skip
    return _of_diffusers(
        "SD3Transformer2DModel", {**own, **_JOINT},
        hidden_states=torch.randn(1, 4, 8, 8), encoder_hidden_states=torch.randn(1, 5, _WIDTH),
        pooled_projections=torch.randn(1, 64), timestep=torch.tensor([3]),
    )  # fmt: skip


def _flux() -> _Made:
    own = {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
           "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": _WIDTH,
           "pooled_projection_dim": _WIDTH, "axes_dims_rope": [4, 4, 8]}  # fmt: skip
    return _of_diffusers(
        "FluxTransformer2DModel", own,
        hidden_states=torch.randn(1, 16, 4), encoder_hidden_states=torch.randn(1, 5, _WIDTH),
        pooled_projections=torch.randn(1, _WIDTH), timestep=torch.tensor([1.0]),
        img_ids=torch.randn(16, 3), txt_ids=torch.randn(5, 3),
    )  # fmt: skip


def _auraflow() -> _Made:
    own = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1,
           "num_single_dit_layers": 1, "caption_projection_dim": _WIDTH, "out_channels": 4,
           "pos_embed_max_size": 64}  # fmt: skip
    return _of_diffusers(
        "AuraFlowTransformer2DModel", {**own, **_JOINT},
        hidden_states=torch.randn(1, 4, 8, 8), encoder_hidden_states=torch.randn(1, 5, _WIDTH),
        timestep=torch.tensor([3]),
    )  # fmt: skip


def _cogvideox() -> _Made:
    own = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
           "time_embed_dim": 8, "text_embed_dim": 8, "num_layers": 2, "sample_width": 8,
           "sample_height": 8, "sample_frames": 8, "patch_size": 2, "max_text_seq_length": 8,
           "temporal_compression_ratio": 4}  # fmt: skip
    return _of_diffusers(
        "CogVideoXTransformer3DModel", own,
        hidden_states=torch.randn(1, 2, 4, 8, 8), encoder_hidden_states=torch.randn(1, 8, 8),
        timestep=torch.tensor([3]),
    )  # fmt: skip


def _dit() -> _Made:
    own = {"num_attention_heads": _HEADS, "attention_head_dim": 8, "in_channels": 4,
           "num_layers": 2, "sample_size": 8, "patch_size": 2,
           "num_embeds_ada_norm": 10}  # fmt: skip
    return _of_diffusers(
        "DiTTransformer2DModel", own,
        hidden_states=torch.randn(1, 4, 8, 8), timestep=torch.tensor([3]),
        class_labels=torch.tensor([1]),
    )  # fmt: skip


class _Dueling(torch.nn.Module):
    """Q = V + A - mean(A) (Wang et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, _WIDTH), torch.nn.ReLU())
        self.value, self.advantage = torch.nn.Linear(_WIDTH, 1), torch.nn.Linear(_WIDTH, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        advantage = self.advantage(hidden)
        total: torch.Tensor = self.value(hidden) + advantage
        return total - advantage.mean(-1, keepdim=True)


class _Recurrent(torch.nn.Module):
    """LayerNorms before an LSTM and a GRU of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(20, 24)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(24) for _ in range(2))
        self.lstm, self.gru = torch.nn.LSTM(24, 20), torch.nn.GRU(24, 12, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lstm(self.norms[0](self.first(x)))[0]
        result: torch.Tensor = self.gru(self.norms[1](self.second(y)))[0]
        return result


FAMILIES: Mapping[str, tuple[str, Callable[[], _Made]]] = {
    "sd3": ("diffusers", _sd3),
    "flux": ("diffusers", _flux),
    "auraflow": ("diffusers", _auraflow),
    "cogvideox": ("diffusers", _cogvideox),
    "dit": ("diffusers", _dit),
    "dueling": ("torch", lambda: (_Dueling(), (torch.randn(2, 8),))),
    "lstm": ("torch", lambda: (_Recurrent(), (torch.randn(5, 2, 16),))),
    "mixtral": ("transformers", lambda: _of_transformers("mixtral", num_local_experts=4)),
    "qwen2_moe": (
        "transformers",
        lambda: _of_transformers(
            "qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
        ),
    ),
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Export and count all families, write their rows and return the exit code."""
    directories = {"directory": {"type": Path, "nargs": "?"}}
    given: Path | None = arguments(__doc__, directories, words).directory
    warnings.simplefilter("ignore")  # the exporter's
    torch.nn.RMSNorm.forward = _spelled  # type: ignore[method-assign]  # TorchScript has none
    with tempfile.TemporaryDirectory() as made:
        directory = given or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        rows = [*_rows(directory), *_quantised(directory)]
    order = [*FAMILIES, *_INT4]
    merge(RESULTS / "families.csv", rows, "recipe", {row.recipe for row in rows}, order)
    return 0


def _quantised(directory: Path) -> Iterator[Row]:
    """Yield the rows of recipes whose MatMuls have weights of four bits, in blocks of 32."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    for name, recipe in _INT4.items():
        path = directory / f"{name}.onnx"
        made = MatMulNBitsQuantizer(onnx.load(_RECIPES / f"{recipe}.onnx"), bits=4, block_size=32)
        made.process()
        made.model.save_model_to_file(str(path))
        yield _counted(name, "onnxruntime", path)


def _rows(directory: Path) -> Iterator[Row]:
    for name, (source, make) in FAMILIES.items():
        torch.manual_seed(0)
        try:
            model, inputs = make()
        except ModuleNotFoundError as error:
            print(f"{name:12} not counted: {error}")
            continue
        path = directory / f"{name}.onnx"
        with torch.no_grad():
            _randomised(model)
            torch.onnx.export(model, inputs, str(path), dynamo=False, opset_version=18)
        yield _counted(name, source, path)


def _counted(name: str, source: str, path: Path) -> Row:
    row = _row(name, source, onnxfold.inspect(path, target="kernels", fold="always"))
    print(f"{name:12} {row.foldable:2} of {row.layer_norms:2} {row.left}")
    return row


def _randomised(model: torch.nn.Module) -> None:
    model.eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
        elif not parameter.any():  # gates start at 0
            parameter.copy_(0.1 * torch.randn_like(parameter))


def _spelled(self: torch.nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (self.eps or 1e-6))
    return y if self.weight is None else y * self.weight


def _row(name: str, source: str, document: Mapping[str, Any]) -> Row:
    summary = document["summary"]
    left = Counter(
        norm["reason"]["code"]
        for norm in document["norms"]
        if norm["kind"] == "layer_norm" and not norm["foldable"]
    )
    counted = ("norms", "layer_norms", "foldable", "inserted_centerings", "centrings",
               "folded_centrings", "gamma_fused", "beta_fused")  # fmt: skip
    return Row(
        recipe=name,
        source=source,
        **{key: summary[key] for key in counted},
        left="; ".join(f"{count} {code}" for code, count in left.items()),
    )


if __name__ == "__main__":
    sys.exit(main())
