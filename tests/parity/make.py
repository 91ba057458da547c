"""Write the files of this folder: four architectures, four exports, five tools each.

    python -m tests.parity.make

needs torch 2.13, transformers 5, onnxscript, onnxsim, onnxslim and onnxruntime.  Two layers of 12
channels with random one-dimensional parameters; names of code and documentation are left out.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

__all__ = ["EXPORTS", "TOOLS", "main"]

FOLDER = Path(__file__).parent
WIDTH, HEADS = 12, 2
EXPORTS = {"script14": 14, "dynamo18": 18, "dynamo20": 20, "dynamo23": 23}


def _gpt2() -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=24, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, use_cache=False
    )
    return GPT2LMHeadModel(config), _tokens()


def _opt() -> tuple[Any, dict[str, Any]]:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=24,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        ffn_dim=24,
        max_position_embeddings=16,
        use_cache=False,
    )
    return OPTForCausalLM(config), _tokens()


def _bert() -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=24,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    return BertModel(config, add_pooling_layer=False), _tokens()


def _vit() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        num_labels=5,
    )
    generator = torch.Generator().manual_seed(1)
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(1, 3, 16, 16, generator=generator)
    }


def _tokens() -> dict[str, Any]:
    import torch

    return {
        "input_ids": torch.arange(3, 11)[None],
        "attention_mask": torch.ones(1, 8, dtype=torch.long),
    }


ARCHITECTURES = {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "vit": _vit}


def _model(name: str) -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) / 4)
    return model.eval(), inputs


def _export(name: str, export: str, path: Path) -> None:
    import torch

    model, inputs = _model(name)
    opset = EXPORTS[export]
    with torch.no_grad():
        if export.startswith("dynamo"):
            torch.onnx.export(
                model,
                (),
                path,
                kwargs=inputs,
                opset_version=opset,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        else:
            names = list(inputs)
            torch.onnx.export(
                _positional(model, names),
                tuple(inputs.values()),
                path,
                input_names=names,
                opset_version=opset,
                dynamo=False,
            )


def _positional(model: Any, names: list[str]) -> Any:
    """Return the model with positional inputs and one output, as TorchScript likes them."""
    import torch

    class Positional(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(names, values, strict=True)))[0]

    return Positional().eval()


def _onnxsim(source: Path, name: str) -> onnx.ModelProto:
    import onnxsim

    return onnxsim.simplify(onnx.load(source))[0]


def _onnxslim(source: Path, name: str) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(onnx.load(source))


def _onnxscript(source: Path, name: str) -> onnx.ModelProto:
    import onnxscript.optimizer

    return onnxscript.optimizer.optimize(onnx.load(source))


def _onnxruntime(source: Path, name: str) -> onnx.ModelProto:
    from onnxruntime.transformers import optimizer

    made = optimizer.optimize_model(
        str(source),
        model_type={"opt": "gpt2"}.get(name, name),
        num_heads=HEADS,
        hidden_size=WIDTH,
        opt_level=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        made.save_model_to_file(f"{folder}/model.onnx")  # which sorts, and imports domains
        return onnx.load(f"{folder}/model.onnx")


TOOLS: dict[str, Callable[[Path, str], onnx.ModelProto]] = {
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxscript": _onnxscript,
    "onnxruntime": _onnxruntime,
}


def _stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Leave out where nodes come from in the exporter's code."""
    del model.metadata_props[:]
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            node.doc_string = ""
            del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        tensor.doc_string = ""
    return model


def main(names: list[str]) -> int:
    """Write what is missing and return the exit code."""
    for name in names or list(ARCHITECTURES):
        for export in EXPORTS:
            source = FOLDER / f"{name}-{export}.onnx"
            if not source.exists():
                with contextlib.redirect_stdout(sys.stderr):
                    _export(name, export, source)
                onnx.save(_stripped(onnx.load(source)), source)
            for tool, rewritten in TOOLS.items():
                target = FOLDER / f"{name}-{export}-{tool}.onnx"
                if not target.exists():
                    onnx.save(_stripped(rewritten(source, name)), target)
                    sys.stdout.write(f"{target.name}: {target.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
