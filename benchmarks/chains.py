"""Send exports through chains of tools, and count what a session of ONNX Runtime executes.

    python -m benchmarks.chains [--models bert-base gpt2 ...] [--out benchmarks/results/chains.csv]

Needs onnxslim and onnxsim in addition to the extra `models`. Small recipes (two layers, untrained
weights, eager and sdpa attention) are exported by TorchScript at opset 17 and by dynamo at opset
20. A row has the nodes that a CPU session without onnxfold's kernels executes, its fused operators,
and the distance of its outputs from the export's without optimizations: the largest difference for
two inputs of other sizes, relative to the largest output. Each step runs in a separate process;
crashes, timeouts and load failures are recorded in a row. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import onnx

from benchmarks.rows import RESULTS, Conditions, conditions, merge
from models.exporter import trace
from models.parameters import randomise_constants
from models.recipe import Attention, DynamicAxes, ExporterName, Settings
from models.table import find

P, T = ParamSpec("P"), TypeVar("T")
Feeds = dict[str, Any]
LIMIT_S: Final = 600
OPSETS: Final[Mapping[ExporterName, int]] = {"torchscript": 17, "dynamo": 20}
# By the name of a recipe, what the transformers optimizer calls it.
MODEL_TYPES: Final = {
    "bert-base": "bert", "clip-text": "clip", "gpt2": "gpt2", "vit-b16": "vit", "swin-t": "swin",
    "whisper-tiny-encoder": "bart",
}  # fmt: skip
SDPA: Final = ("bert-base", "gpt2")
SHOWN: Final = (
    "Attention", "MultiHeadAttention", "EmbedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "LayerNormalization", "SimplifiedLayerNormalization",
    "ReduceMean", "Gelu", "BiasGelu", "FastGelu",
)  # fmt: skip
QUANTISED: Final = (
    "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "ConvInteger",
    "MatMulNBits", "QLinearMatMul", "QLinearConv", "QGemm",
)  # fmt: skip
_IMPORTED: Final = (
    "torch", "onnxruntime.transformers.optimizer", "onnxruntime.quantization",
    "onnxscript.rewriter.ort_fusions", "onnxscript.optimizer", "onnxslim", "onnxsim",
    "onnxfold.pipeline.run", "onnxfold.runtime.session_graph",
)  # fmt: skip
_INPUTS: Final = "inputs.npz"
_SECOND: Final = {"batch": 1, "sequence": 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRow(Conditions):
    """One chain of tools on one export.

    ``nodes`` are the session's; ``quantised`` counts its integer operators; ``failed`` names the
    step without a loadable file.
    """

    onnxruntime: str
    model: str
    attention: str
    exporter: str
    chain: str
    nodes: int = 0
    operators: str = ""
    quantised: int = 0
    error: float = 0.0
    failed: str = ""

    @property
    def subject(self) -> str:
        """Which export it is a row of."""
        return f"{self.model} {self.attention} {self.exporter}"


def _onnxfold(source: Path, target: Path, option: str) -> None:
    import onnxfold

    # Unchecked: what comes out of all steps is compared.
    onnxfold.optimize(source, target, target=option or "onnx", check=None)


def _onnxslim(source: Path, target: Path, _: str) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def _onnxsim(source: Path, target: Path, _: str) -> None:
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], target)


def _onnxscript(source: Path, target: Path, _: str) -> None:
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


def _fusions(source: Path, target: Path, _: str) -> None:
    """Run what onnxscript writes for ONNX Runtime's own operators."""
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model = ir.load(source)
    optimize_for_ort(model)
    ir.save(model, target)


def _optimizer(source: Path, target: Path, option: str) -> None:
    """Run ONNX Runtime's transformers optimizer: without the heads it misses some Attention."""
    from onnxruntime.transformers import optimizer

    model_type, heads, width = option.split()
    made = optimizer.optimize_model(
        str(source), model_type=model_type, num_heads=int(heads), hidden_size=int(width)
    )
    made.save_model_to_file(str(target))


def _float16(source: Path, target: Path, _: str) -> None:
    from onnxruntime.transformers import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def _int8(source: Path, target: Path, kind: str) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

    # For what onnx infers no type of: results of ONNX Runtime's own operators.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    if kind != "static":
        quantize_dynamic(source, target, extra_options=options)
        return
    with np.load(source.with_name(_INPUTS)) as arrays:
        left = [dict(arrays)]

    class Once(CalibrationDataReader):  # type: ignore[misc] # onnxruntime is untyped
        def get_next(self) -> Feeds | None:
            return left.pop() if left else None

    quantize_static(source, target, Once(), extra_options=options)


def _int4(source: Path, target: Path, _: str) -> None:
    """Quantise the weights of products; a Gemm, as GPT-2 has, is none before it is made one."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = ONNXModel(onnx.load(source))
    model.replace_gemm_with_matmul()
    made = MatMulNBitsQuantizer(model.model, block_size=16, is_symmetric=True)
    made.process()
    made.model.save_model_to_file(str(target))


STEPS: Final[Mapping[str, Callable[[Path, Path, str], None]]] = {
    "onnxfold": _onnxfold, "onnxslim": _onnxslim, "onnxsim": _onnxsim, "onnxscript": _onnxscript,
    "fusions": _fusions, "optimizer": _optimizer, "float16": _float16, "int8": _int8,
    "int4": _int4,
}  # fmt: skip
CHAINS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("onnxfold",),
    ("onnxfold ort",),
    ("onnxslim",),
    ("onnxsim",),
    ("onnxscript",),
    ("optimizer",),
    ("onnxslim", "optimizer"),
    ("onnxsim", "optimizer"),
    ("onnxfold", "optimizer"),
    ("optimizer", "onnxfold ort"),
    ("onnxslim", "optimizer", "onnxfold ort"),
    ("fusions",),
    ("fusions", "optimizer"),
    ("fusions", "onnxfold ort"),
    ("fusions", "optimizer", "onnxfold ort"),
    ("onnxfold", "onnxslim"),
    ("float16",),
    ("optimizer", "onnxfold ort", "float16"),
    ("fusions", "optimizer", "onnxfold ort", "float16"),
    ("int8",),
    ("onnxfold ort", "int8"),
    ("optimizer", "onnxfold ort", "int8"),
    ("fusions", "optimizer", "onnxfold ort", "int8"),
    ("int8 static",),
    ("onnxfold", "int8 static"),
    ("onnxfold ort", "int8 static"),
    ("int4",),
    ("onnxfold ort", "int4"),
    ("optimizer", "onnxfold ort", "int4"),
)


class Failed(Exception):  # noqa: N818  # a row says so
    """Why a step gave no file, or a file no session."""


def exported(
    name: str, attention: Attention, exporter: ExporterName
) -> tuple[onnx.ModelProto, list[Feeds], str]:
    """Export a small recipe with random weights of seed 0; return it with two inputs, and sizes.

    The sizes are those that the transformers optimizer asks for: heads and width, 0 where several.
    """
    import onnx_ir as ir
    import torch

    torch.manual_seed(0)
    settings = Settings(True, attention, OPSETS[exporter], exporter)
    example = find(name).build(settings)
    randomise_constants(example.module)
    model = ir.to_proto(trace(example, opset=settings.opset, exporter=exporter))
    first = {key: tensor.numpy() for key, tensor in example.inputs.items()}
    second = {key: _cut(array, example.dynamic_axes[key]) for key, array in first.items()}
    config = example.module.model.config
    sizes = [config.num_attention_heads, config.hidden_size]
    return model, [first, second], "0 0" if name == "swin-t" else "{} {}".format(*sizes)


def _cut(array: Any, axes: DynamicAxes) -> Any:
    """Return fewer elements along the axes that are symbolic."""
    return array[tuple(slice(_SECOND.get(axes.get(axis, ""))) for axis in range(array.ndim))]


def apart(made: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Return what a call gives in a process of its own; raises Failed where it gives nothing."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply_async(made, given, named).get(LIMIT_S)
        except multiprocessing.TimeoutError as error:
            raise Failed(f"no result in {LIMIT_S} s") from error
        # Whatever a tool raises is what the row says.
        except Exception as error:  # of another tool, kept in the row
            said = " ".join(str(error).split()).replace(f"{tempfile.gettempdir()}/", "")
            raise Failed(f"{type(error).__name__}: {said[:120]}") from error


def _session(path: Path, *, plain: bool = False) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _outputs(path: Path, inputs: list[Feeds], *, plain: bool = False) -> list[list[Any]]:
    session = _session(path, plain=plain)
    taken = {each.name for each in session.get_inputs()}
    return [
        session.run(None, {key: array for key, array in feeds.items() if key in taken})
        for feeds in inputs
    ]


def _looked_at(path: Path, inputs: list[Feeds], truth: list[list[Any]]) -> dict[str, Any]:
    """Return the fields of a row that the file gives."""
    from onnxfold.runtime.session_graph import session_operators

    counts: dict[str, int] = {}
    for name, count in (session_operators(path) or {}).items():
        kind = name.rpartition(".")[2]
        counts[kind] = counts.get(kind, 0) + count
    found = _outputs(path, inputs)
    error = max(
        float(np.abs(a - b).max() / np.abs(a).max())
        for expected, got in zip(truth, found, strict=True)
        for a, b in zip(expected, got, strict=True)
    )
    return {
        "nodes": sum(counts.values()),
        "operators": " ".join(f"{kind}:{counts[kind]}" for kind in SHOWN if kind in counts),
        "quantised": sum(counts.get(kind, 0) for kind in QUANTISED),
        "error": float(f"{error:.2g}"),
    }


class Export:
    """An export in a folder, and the files that chains made from it: common prefixes once."""

    def __init__(self, folder: Path, called: str, path: Path, inputs: list[Feeds]):
        self.folder, self.called, self.inputs = folder, called, inputs
        self.truth: list[list[Any]] = apart(_outputs, path, inputs, plain=True)
        self._made: dict[tuple[str, ...], Path | Failed] = {(): path}

    def row(self, row: ChainRow, chain: tuple[str, ...]) -> ChainRow:
        """Return the row of a chain."""
        row = replace(row, chain=" → ".join(chain) or "export")
        try:
            fields = apart(_looked_at, self._after(chain), self.inputs, self.truth)
        except Failed as failed:
            return replace(row, failed=str(failed))
        return replace(row, **fields)

    def _after(self, chain: tuple[str, ...]) -> Path:
        """Return the file behind all steps; raises Failed, again where it has before."""
        if chain not in self._made:
            try:
                self._made[chain] = self._step(self._after(chain[:-1]), chain)
            except Failed as failed:
                self._made[chain] = failed
        made = self._made[chain]
        if isinstance(made, Failed):
            raise made
        return made

    def _step(self, source: Path, chain: tuple[str, ...]) -> Path:
        name, _, option = chain[-1].partition(" ")
        target = self.folder / f"{len(self._made)}.onnx"
        try:
            apart(STEPS[name], source, target, self.called if name == "optimizer" else option)
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from failed
        return target


def rows_of(name: str) -> Iterator[ChainRow]:
    """Yield the rows of a recipe: every attention, exporter and chain."""
    ways: list[tuple[Attention, ExporterName]] = [
        (attention, exporter)
        for exporter in OPSETS
        for attention in (("eager", "sdpa") if name in SDPA else ("eager",))
    ]
    for attention, exporter in ways:
        row = ChainRow(**conditions(), onnxruntime=version("onnxruntime"), model=name,
                       attention=attention, exporter=exporter, chain="")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "export.onnx")
            try:
                model, inputs, sizes = apart(exported, name, attention, exporter)
            except Failed as failed:
                yield replace(row, chain="export", failed=str(failed))
                continue
            onnx.save(model, path)
            np.savez(path.with_name(_INPUTS), **inputs[0])
            export = Export(Path(folder), f"{MODEL_TYPES[name]} {sizes}", path, inputs)
            yield from (export.row(row, chain) for chain in CHAINS)


def main() -> None:
    """Write a row for every export and chain."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for package in _IMPORTED:  # once, and not in every process
        importlib.import_module(package)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "chains.csv")
    parser.add_argument("--models", nargs="+", choices=list(MODEL_TYPES), default=list(MODEL_TYPES))
    arguments = parser.parse_args()
    for name in arguments.models:
        rows = []
        for row in rows_of(name):
            rows.append(row)
            print(f"{row.subject:24} {row.chain:46} {row.nodes:5} nodes {row.error:8.1e}  "
                  f"{row.failed or row.operators}", flush=True)  # fmt: skip
        merge(arguments.out, rows, "model", [name], list(MODEL_TYPES))


if __name__ == "__main__":
    main()
