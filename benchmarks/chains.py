"""Send exports through chains of tools, and count what a session of ONNX Runtime executes.

    python -m benchmarks.chains [--models bert-base gpt2 ...] [--out benchmarks/results/chains.csv]

Needs onnxslim and onnxsim in addition to the extra `models`. Small recipes (two layers, untrained
weights, eager and sdpa attention) are exported by TorchScript at opset 17 and by dynamo at opset
20; the steps are those of ``onnxfold tune``, and onnxsim. A row has the ``nodes`` that a CPU
session without onnxfold's kernels executes, its fused operators, how many are of integers
(``quantised``), and the distance of its outputs from the export's without optimizations: the
largest difference for two inputs of other sizes, relative to the largest output. Each step runs in
a separate process; crashes, timeouts and load failures are recorded in a row. Nothing is timed.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import onnx

from benchmarks.harness import CPU, arguments
from benchmarks.rows import RESULTS, Row, merge, tell
from models.exporter import trace
from models.parameters import randomise_constants
from models.recipe import Attention, DynamicAxes, ExporterName, Settings
from models.table import find
from onnxfold.runtime.interleaved_timing import Variant
from onnxfold.runtime.sessions import session_operators
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.steps import STEPS, Context, ToolStep

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
_SECOND: Final = {"batch": 1, "sequence": 7}


class _Sim(ToolStep):
    name = "onnxsim"

    def apply(self, source: Path, output: Path, context: Context) -> None:
        import onnxsim

        onnx.save(onnxsim.simplify(onnx.load(source))[0], output)


TOOLS: Final[dict[str, ToolStep]] = {
    "onnxfold": STEPS["fold-onnx"], "onnxfold ort": STEPS["fold-ort"], "onnxslim": STEPS["slim"],
    "onnxsim": _Sim(), "onnxscript": STEPS["script"], "fusions": STEPS["fusions"],
    "optimizer": STEPS["optimizer"], "float16": STEPS["fp16"], "int8": STEPS["int8"],
    "int8 static": STEPS["int8-static"], "int4": STEPS["int4-blocks32"],
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
) -> tuple[onnx.ModelProto, list[Feeds], ModelFacts]:
    """Export a small recipe with random weights of seed 0; return it with two inputs, and facts."""
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
    # Swin has several widths.
    sizes = () if name == "swin-t" else (config.num_attention_heads, config.hidden_size)
    return model, [first, second], ModelFacts(MODEL_TYPES[name], *sizes)


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
        except Exception as error:  # of another tool, kept in the row
            said = " ".join(str(error).split()).replace(f"{tempfile.gettempdir()}/", "")
            raise Failed(f"{type(error).__name__}: {said[:120]}") from error


def _outputs(path: Path, inputs: list[Feeds], *, optimize: bool = True) -> list[list[Any]]:
    session = Variant(path, optimize=optimize).session(1, [CPU])
    taken = {each.name for each in session.get_inputs()}
    return [
        session.run(None, {key: array for key, array in feeds.items() if key in taken})
        for feeds in inputs
    ]


def _looked_at(path: Path, inputs: list[Feeds], truth: list[list[Any]]) -> dict[str, Any]:
    """Return the columns of a row that the file gives."""
    counts = Counter[str]()
    for name, count in (session_operators(path) or {}).items():
        counts[name.rpartition(".")[2]] += count
    error = max(
        float(np.abs(a - b).max() / np.abs(a).max())
        for expected, got in zip(truth, _outputs(path, inputs), strict=True)
        for a, b in zip(expected, got, strict=True)
    )
    return {
        "nodes": counts.total(),
        "operators": " ".join(f"{kind}:{counts[kind]}" for kind in SHOWN if kind in counts),
        "quantised": sum(counts[kind] for kind in QUANTISED),
        "error": float(f"{error:.2g}"),
        "failed": "",
    }


class Export:
    """An export in a folder, and the files that chains made from it: common prefixes once."""

    def __init__(self, folder: Path, facts: ModelFacts, path: Path, inputs: list[Feeds]):
        self.folder, self.inputs = folder, inputs
        self.context = Context(facts, feeds=tuple(inputs[:1]))
        self.truth: list[list[Any]] = apart(_outputs, path, inputs, optimize=False)
        self._made: dict[tuple[str, ...], Path | Failed] = {(): path}

    def columns(self, chain: tuple[str, ...]) -> dict[str, Any]:
        """Return the columns of a chain; ``failed`` names the step without a loadable file."""
        try:
            return apart(_looked_at, self._after(chain), self.inputs, self.truth)
        except Failed as failed:
            return without_file(failed)

    def _after(self, chain: tuple[str, ...]) -> Path:
        """Return the file after all steps; raises Failed, again where it has before."""
        if chain not in self._made:
            target = self.folder / f"{len(self._made)}.onnx"
            try:
                source = self._after(chain[:-1])
                self._step(source, target, chain[-1])
                self._made[chain] = target
            except Failed as failed:
                self._made[chain] = failed
        made = self._made[chain]
        if isinstance(made, Failed):
            raise made
        return made

    def _step(self, source: Path, target: Path, step: str) -> None:
        try:
            apart(TOOLS[step].apply, source, target, self.context)
        except Failed as failed:
            raise Failed(f"{step.partition(' ')[0]}: {failed}") from failed


def without_file(failed: Failed) -> dict[str, Any]:
    """Return the columns of a chain that gave no file."""
    return {"nodes": 0, "operators": "", "quantised": 0, "error": 0.0, "failed": str(failed)}


def rows_of(name: str) -> Iterator[Row]:
    """Yield the rows of a recipe: every attention, exporter and chain."""
    attentions: list[Attention] = ["eager", "sdpa"] if name in SDPA else ["eager"]
    for exporter, attention in product(OPSETS, attentions):
        with tempfile.TemporaryDirectory() as folder:
            for chain, columns in _columns_of(name, attention, exporter, Path(folder)):
                yield Row(
                    onnxruntime=version("onnxruntime"),
                    model=name,
                    attention=attention,
                    exporter=exporter,
                    chain=" → ".join(chain) or "export",
                    **columns,
                )


def _columns_of(
    name: str, attention: Attention, exporter: ExporterName, folder: Path
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    try:
        model, inputs, facts = apart(exported, name, attention, exporter)
    except Failed as failed:
        yield (), without_file(failed)
        return
    onnx.save(model, folder / "export.onnx")
    export = Export(folder, facts, folder / "export.onnx", inputs)
    for chain in CHAINS:
        yield chain, export.columns(chain)


def main() -> None:
    """Write a row for every export and chain."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options = {"--models": tuple(MODEL_TYPES), "--out": RESULTS / "chains.csv"}
    chosen = arguments(__doc__, options)
    # Once, and not in every process.
    imported = ("torch", "onnxruntime.transformers.optimizer", "onnxruntime.quantization",
                "onnxscript.rewriter.ort_fusions", "onnxscript.optimizer", "onnxslim", "onnxsim",
                "onnxfold.pipeline.run")  # fmt: skip
    for package in imported:
        importlib.import_module(package)
    for name in chosen.models:
        rows = []
        for row in rows_of(name):
            rows.append(row)
            tell([row])
        merge(chosen.out, rows, "model", [name], list(MODEL_TYPES))


if __name__ == "__main__":
    main()
