"""Applies onnxfold before and behind other tools, and says which folds and fusions are left.

    python -m benchmarks.orders [--models bert gpt2 vit] [--out benchmarks/results/orders.csv]

Needs onnxslim and onnxsim beside the extra `models`.  Three small models of transformers with eager
attention (exported by TorchScript, opset 17, untrained weights) go through every order of tools; a
row has what the folds and the fusions of the final file are, and how far its outputs are from the
original's, both in ONNX Runtime on the CPU, relative to the largest output.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort

import onnxfold
from benchmarks.rows import RESULTS, Conditions, conditions, write

HEADS, WIDTH, LAYERS, TOKENS = 4, 64, 2, 16
Feeds = dict[str, Any]
FUSED: Final = ("Attention", "MultiHeadAttention", "EmbedLayerNormalization",
                "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Gelu", "BiasGelu",
                "FastGelu")  # fmt: skip
NORMS: Final = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, its inputs, and what the transformers optimizer calls it."""

    model: onnx.ModelProto
    feeds: Feeds
    model_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRow(Conditions):
    """One order of tools on one model; ``folds`` are of the time when onnxfold ran."""

    onnxruntime: str
    architecture: str
    order: str
    norms: int
    folds: int
    nodes: int
    fusions: str
    bytes: int
    error: float


def _bert() -> Any:
    import transformers

    config = transformers.BertConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, vocab_size=100, max_position_embeddings=TOKENS,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False)


def _gpt2() -> Any:
    import transformers

    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=100, n_positions=TOKENS,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return transformers.GPT2Model(config)


def _vit() -> Any:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, image_size=32, patch_size=8, attn_implementation="eager",
    )  # fmt: skip
    return transformers.ViTModel(config, add_pooling_layer=False)


BUILDERS: Final[Mapping[str, Callable[[], Any]]] = {"bert": _bert, "gpt2": _gpt2, "vit": _vit}


def exported(name: str) -> Subject:
    """Export a model with random weights of seed 0, no gamma of ones and no bias of zeros."""
    import torch

    torch.manual_seed(0)
    module = BUILDERS[name]().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    if name != "vit":
        ids = torch.randint(0, 100, (2, TOKENS))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module  # whose weights are then initializers, which quantizers look for

        def forward(self, *arrays: Any) -> Any:
            return self.module(**dict(zip(inputs, arrays, strict=True))).last_hidden_state

    target = io.BytesIO()
    torch.onnx.export(
        Plain(), tuple(inputs.values()), target, input_names=list(inputs),
        output_names=["last_hidden_state"], opset_version=17, dynamo=False,
        dynamic_axes={key: {0: "batch"} for key in inputs},
    )  # fmt: skip
    feeds = {key: tensor.numpy() for key, tensor in inputs.items()}
    return Subject(onnx.load_from_string(target.getvalue()), feeds, name)


class Chain:
    """Applies steps to a model; remembers what onnxfold found."""

    def __init__(self, subject: Subject, folder: Path):
        self.subject, self.folder = subject, folder
        self.norms = self.folds = 0

    def run(self, steps: Sequence[str]) -> onnx.ModelProto:
        """Return the model after all steps."""
        model = onnx.ModelProto()
        model.CopyFrom(self.subject.model)
        for step in steps:
            name, _, option = step.partition(" ")
            model = getattr(self, f"_{name}")(model, option)
        return model

    def _onnxfold(self, model: onnx.ModelProto, target: str) -> onnx.ModelProto:
        # Unchecked: what comes out of all steps is compared.
        result = onnxfold.optimize(model, target=target or "onnx", check=None)
        self.norms = result.report["inspect"]["summary"]["layer_norms"]
        self.folds = len(result.plan.folds)
        found: onnx.ModelProto = result.model
        return found

    def _onnxslim(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        import onnxslim

        found: onnx.ModelProto = onnxslim.slim(model)
        return found

    def _onnxsim(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        import onnxsim

        found: onnx.ModelProto = onnxsim.simplify(model)[0]
        return found

    def _onnxscript(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        import onnxscript.optimizer

        found: onnx.ModelProto = onnxscript.optimizer.optimize(model)
        return found

    def _transformers(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        from onnxruntime.transformers import optimizer

        made = optimizer.optimize_model(
            str(self._saved(model)),
            model_type=self.subject.model_type,
            num_heads=HEADS,
            hidden_size=WIDTH,
        )
        found: onnx.ModelProto = made.model
        return found

    def _float16(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        from onnxruntime.transformers import float16

        found: onnx.ModelProto = float16.convert_float_to_float16(model, keep_io_types=True)
        return found

    def _int8(self, model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            quantize_dynamic,
            quantize_static,
        )

        path, target = self._saved(model), self.folder / "int8.onnx"
        # For what onnx infers no type of: results of ONNX Runtime's own operators.
        options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        if kind == "dynamic":
            quantize_dynamic(path, target, extra_options=options)
            return onnx.load(target)
        left = [self.subject.feeds]

        class Once(CalibrationDataReader):  # type: ignore[misc] # onnxruntime is untyped
            def get_next(self) -> Feeds | None:
                return left.pop() if left else None

        quantize_static(path, target, Once(), extra_options=options)
        return onnx.load(target)

    def _int4(self, model: onnx.ModelProto, _: str) -> onnx.ModelProto:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True)
        made.process()
        found: onnx.ModelProto = made.model.model
        return found

    def _saved(self, model: onnx.ModelProto) -> Path:
        path = self.folder / "model.onnx"
        onnx.save(model, path)
        return path


ORDERS: Final[tuple[tuple[str, ...], ...]] = (
    ("onnxfold",),
    ("onnxfold ort",),
    ("onnxslim",),
    ("onnxslim", "onnxfold"),
    ("onnxfold", "onnxslim"),
    ("onnxsim",),
    ("onnxsim", "onnxfold"),
    ("onnxfold", "onnxsim"),
    ("onnxscript",),
    ("onnxscript", "onnxfold"),
    ("onnxfold", "onnxscript"),
    ("transformers",),
    ("transformers", "onnxfold"),
    ("onnxfold", "transformers"),
    ("onnxfold ort", "transformers"),
    ("transformers", "onnxfold ort"),
    ("float16",),
    ("float16", "onnxfold"),
    ("onnxfold", "float16"),
    ("onnxfold", "transformers", "float16"),
    ("transformers", "onnxfold ort", "float16"),
    ("int8 dynamic",),
    ("int8 dynamic", "onnxfold"),
    ("onnxfold", "int8 dynamic"),
    ("onnxfold ort", "int8 dynamic"),
    ("transformers", "int8 dynamic"),
    ("transformers", "onnxfold ort", "int8 dynamic"),
    ("transformers", "int8 dynamic", "onnxfold ort"),
    ("int8 static",),
    ("int8 static", "onnxfold"),
    ("onnxfold", "int8 static"),
    ("int4",),
    ("int4", "onnxfold"),
    ("onnxfold", "int4"),
)


def measured(name: str, subject: Subject, steps: Sequence[str]) -> OrderRow:
    """Apply one order; raises what a tool raises."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Chain(subject, Path(folder))
        model = chain.run(steps)
    kinds = Counter(node.op_type for node in model.graph.node)
    kept = {kind: kinds[kind] for kind in (*FUSED, *NORMS) if kinds[kind]}
    return OrderRow(
        **conditions(),
        onnxruntime=version("onnxruntime"),
        architecture=name,
        order=", ".join(steps),
        norms=chain.norms,
        folds=chain.folds,
        nodes=len(model.graph.node),
        fusions=" ".join(f"{kind}:{count}" for kind, count in kept.items()),
        bytes=model.ByteSize(),
        error=float(f"{_error(subject, model):.2g}"),
    )


def _error(subject: Subject, model: onnx.ModelProto) -> float:
    expected, got = (_outputs(m, subject.feeds) for m in (subject.model, model))
    return max(
        float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(expected, got, strict=True)
    )


def _outputs(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[Any] = session.run(None, feeds)
    return outputs


def main() -> None:
    """Write a row for every model and order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "orders.csv")
    parser.add_argument("--models", nargs="+", choices=list(BUILDERS), default=list(BUILDERS))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        subject = exported(name)
        for steps in ORDERS:
            rows.append(measured(name, subject, steps))
            row = rows[-1]
            print(f"{name:5} {row.order:36} {row.folds} of {row.norms}  {row.nodes:4} nodes  "
                  f"{row.error:8.1e}  {row.fusions}", flush=True)  # fmt: skip
    write(arguments.out, rows)


if __name__ == "__main__":
    main()
