"""Time of whole models in ONNX Runtime on a GPU, before and after folding.

    python -m models.skeleton strip gpt2.onnx -o models/fp32/gpt2.onnx      (where the exports are)
    python -m benchmarks.gpu_models MODELS [--models NAME ...] [--dtypes fp16 fp32] [--budget S]

MODELS contains fp16/NAME.onnx and fp32/NAME.onnx, exports or skeletons of exports, which need no
torch; a skeleton is filled with random weights first. A method is the original with all
optimizations of ONNX Runtime, or the result of ONNX Runtime's transformers optimizer, each
unchanged and folded: for onnxfold's kernels, with and without them, and for the targets onnx and
ort; with the launches one by one and with a CUDA graph. A sequence of 1 is decoding: one token,
without a cache. Dimensions are fixed, inputs and outputs stay on the device, and the methods of one
case are timed in turns. A ratio is the median over the rounds of the stock method's time to the
method's.

Prints a table and appends rows to benchmarks/results/gpu_models.csv after every case; one model and
type for each call stays within the budget of 540 seconds, and no case begins beyond it.
``--provider cpu`` runs all of it except the CUDA graphs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.gpu import device, device_named
from benchmarks.harness import BUDGET, CPU, Budget, arguments, failed, quantiles, show
from benchmarks.rows import RESULTS, Row, append
from benchmarks.subjects import File, filled, geometric_mean, prepare, run_optimizer, scratch_in
from onnxfold import model_io
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.runtime.interleaved_timing import (
    Bound,
    Provider,
    RunCounts,
    Variant,
    outputs_on,
    take_turns,
    values_on,
)
from onnxfold.runtime.library import CUDA_PROVIDERS

__all__ = ["METHODS", "SUBJECTS", "GpuMethod", "GpuSubject", "main"]

_LEAST_ROUNDS, _MOST_ROUNDS, _CASE_S = 7, 201, 8.0
_STOCK = "stock"
_ONNX = {"target": "onnx"}
_ORT = {"target": "ort", "device": "cuda"}


@dataclass(frozen=True, slots=True)
class GpuSubject:
    """A recipe: its longest sequence (0 for images), heads, and the optimizer's name for it."""

    name: str
    longest: int
    heads: int
    family: str


SUBJECTS: Final[Mapping[str, GpuSubject]] = {
    subject.name: subject
    for subject in (
        GpuSubject("gpt2", 1024, 12, "gpt2"),
        GpuSubject("bert-base", 512, 12, "bert"),
        GpuSubject("opt-125m", 2048, 12, "gpt2"),
        GpuSubject("vit-b16", 0, 12, "vit"),
        GpuSubject("phi-2", 4096, 32, "gpt2"),
        GpuSubject("llama-small", 2048, 8, "gpt2"),
    )
}


@dataclass(frozen=True, slots=True)
class GpuMethod:
    """A form of the model, with or without onnxfold's kernels and a CUDA graph."""

    form: str
    kernels: bool = False
    graph: bool = False

    @property
    def name(self) -> str:
        """The form and what it runs with."""
        return f"{self.form}{', kernels' * self.kernels}{', graph' * self.graph}"


METHODS: Final = tuple(
    GpuMethod(form, kernels, graph)
    for graph in (False, True)
    for form, kernels in (
        (_STOCK, False),
        ("optimizer", False),
        ("folded", True),
        ("folded", False),
        ("folded, onnx", False),
        ("folded, ort", False),
        ("optimizer, folded", True),
        ("optimizer, folded, ort", False),
    )
)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and return the exit code."""
    options = _options(words)
    budget = Budget(options.budget)
    if options.provider == "cuda":
        _refuse_without_cuda()
    rows: list[Row] = []
    for dtype, name in product(options.dtypes, options.models):
        given = options.folder / dtype / f"{name}.onnx"
        if not given.exists():
            print(f"{given} is not there: left out")
            continue
        with budget.case(f"{name} {dtype}"):
            for case in _cases(given, SUBJECTS[name], dtype, budget, options):
                append(options.out, case)
                _show(case)
                rows += case
    _summarise(rows)
    return int(budget.incomplete) if rows else 2


def _cases(
    given: Path, subject: GpuSubject, dtype: str, budget: Budget, options: argparse.Namespace
) -> Iterator[list[Row]]:
    """Yield the rows of each size of a model, of those sizes at which anything runs."""
    left = f"{subject.name} {dtype} is not complete"
    if budget.ended(left):
        return
    with scratch_in(options.scratch) as scratch:
        files = _files(given, scratch, subject)
        for batch, sequence in _sizes(subject, options):
            if budget.ended(left):
                return
            about = _about(options.provider, subject.name, dtype, batch, sequence)
            case = list(_measure(about, files, options))
            if case:
                yield case


def _refuse_without_cuda() -> None:
    device()
    if CUDA_PROVIDERS[0] not in ort.get_available_providers():
        raise SystemExit(f"onnxruntime {ort.__version__} has no {CUDA_PROVIDERS[0]}")


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    return arguments(
        __doc__,
        {
            "folder": Path,
            "--models": tuple(SUBJECTS),
            "--dtypes": ("fp16", "fp32"),
            "--batches": [1, 8],
            "--sequences": [1, 64, 512, 1024, 4096],
            "--provider": {"choices": ["cuda", "cpu"], "default": "cuda"},
            "--budget": BUDGET,
            "--case": {"type": float, "default": _CASE_S, "help": "seconds of one case's rounds"},
            "--largest": {"type": float, "default": 4e9, "help": "bytes of scores of one layer"},
            "--scratch": {"type": Path, "help": "folder for the models that are made"},
            "--out": RESULTS / "gpu_models.csv",
        },
        words,
    )


def _sizes(subject: GpuSubject, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield batches and sequences, limited to the longest sequence of the model."""
    for batch in options.batches:
        if not subject.longest:
            yield batch, 0
            continue
        for sequence in sorted({min(each, subject.longest) for each in options.sequences}):
            if 4 * batch * subject.heads * sequence**2 <= options.largest:
                yield batch, sequence


def _files(given: Path, scratch: Path, subject: GpuSubject) -> dict[str, File]:
    """Make every form; those of ONNX Runtime's optimizer only if it is installed."""
    source = filled(given, scratch)
    files = prepare(
        source, scratch, {_STOCK: None, "folded": {}, "folded, onnx": _ONNX, "folded, ort": _ORT}
    )
    optimized = scratch / "optimizer.onnx"
    try:
        run_optimizer(source, optimized, subject.family, gpu=True)
        forms = prepare(
            optimized,
            scratch,
            {"optimizer": None, "optimizer, folded": {}, "optimizer, folded, ort": _ORT},
        )
    except Exception as error:  # said by name; the others still run
        failed(f"{subject.name}, ONNX Runtime's transformers optimizer", error)
        return files
    return {**files, **forms}


def _about(provider: str, name: str, dtype: str, batch: int, sequence: int) -> dict[str, Any]:
    return {
        "onnxruntime": ort.__version__,
        "device": device_named(provider),
        "provider": provider,
        "model": name,
        "dtype": dtype,
        "batch": batch,
        "sequence": sequence,
    }


def _measure(
    about: Mapping[str, Any], files: Mapping[str, File], options: argparse.Namespace
) -> Iterator[Row]:
    """Yield one row for each method that runs."""
    dimensions = (("batch", about["batch"]), ("sequence", about["sequence"]))
    feeds = _feeds(files[_STOCK].path, dict(dimensions))
    inputs = values_on(options.provider, feeds)
    outputs: dict[str, ort.OrtValue] = {}
    opened: dict[GpuMethod, Bound] = {}
    for method in METHODS:
        if method.form not in files or (method.graph and options.provider == "cpu"):
            continue
        variant = Variant(files[method.form].path, method.kernels, (), dimensions)
        try:
            session = variant.session(1, _providers(options.provider, method.graph))
            outputs = outputs or outputs_on(options.provider, session, feeds)
            bound = Bound(session, inputs, outputs)
            bound.run()
        except Exception as error:  # said by name; the others still run
            failed(f"{about['model']}, {method.name}", error)
            continue
        opened[method] = bound
    if not opened:
        return
    turns = RunCounts(_MOST_ROUNDS, _LEAST_ROUNDS, options.case)
    seconds = take_turns([bound.run for bound in opened.values()], turns)
    yield from _rows(about, files, list(opened), seconds)


def _feeds(path: Path, dimensions: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    model = model_io.load(path)
    first = model.graph.inputs[0]
    sizes = tuple(
        dim if isinstance(dim, int) else dimensions[str(dim.value)] for dim in first.shape or ()
    )
    return make_inputs(model, InputSpec({first.name or "": sizes}), count=1, seed=0)[0]


def _providers(provider: str, graph: bool) -> list[Provider]:
    cpu: Provider = CPU
    if provider == "cpu":
        return [cpu]
    return [("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graph))}), cpu]


def _rows(
    about: Mapping[str, Any],
    files: Mapping[str, File],
    methods: Sequence[GpuMethod],
    seconds: npt.NDArray[np.float64],
) -> Iterator[Row]:
    for index, method in enumerate(methods):
        stock = GpuMethod(_STOCK, graph=method.graph)
        ratios = np.full(1, np.nan)
        if stock in methods:
            ratios = seconds[methods.index(stock)] / seconds[index]
        file = files[method.form]
        # One method on one model at one size; ``sequence`` is 0 for images. ``to_stock`` compares
        # with the original as stock ONNX Runtime runs it, both with a CUDA graph or both without.
        yield Row(
            **about,
            method=f"{method.form}{', kernels' * method.kernels}",
            cuda_graph=method.graph,
            rounds=seconds.shape[1],
            **quantiles(1e3 * seconds[index], 5, median_ms=50, p10_ms=10, p90_ms=90),
            **quantiles(ratios, 4, to_stock=50, to_stock_p10=10, to_stock_p90=90),
            nodes=file.nodes,
            folded=file.folded,
            gamma_fused=file.gamma_fused,
            beta_fused=file.beta_fused,
        )


def _show(rows: Sequence[Row]) -> None:
    first = rows[0]
    size = f"batch {first.batch}, sequence {first.sequence}" if first.sequence else first.batch
    columns = ("method", "graph", "ms", "10% - 90%", "to stock", "10% - 90%", "nodes", "folded")
    lines = [
        (
            row.method,
            "yes" if row.cuda_graph else None,
            f"{row.median_ms:.3f}",
            f"{row.p10_ms:.3f} - {row.p90_ms:.3f}",
            f"{row.to_stock:.3f}",
            f"{row.to_stock_p10:.3f} - {row.to_stock_p90:.3f}",
            row.nodes,
            row.folded,
        )
        for row in rows
    ]
    show(f"{first.model} {first.dtype}, {size}", columns, lines)


def _summarise(rows: Sequence[Row]) -> None:
    """Print mean and worst of every method, for each type."""
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in rows:
        if np.isfinite(row.to_stock):
            groups.setdefault((row.dtype, row.method, row.cuda_graph), []).append(row)
    lines = []
    for (dtype, method, graph), group in groups.items():
        worst = min(group, key=lambda row: row.to_stock)
        mean = geometric_mean([row.to_stock for row in group])
        case = f"{worst.model}, {worst.batch} x {worst.sequence}"
        numbers = (len(group), f"{mean:.3f}", f"{worst.to_stock:.3f}", case)
        lines.append((dtype, method, "yes" if graph else None, *numbers))
    columns = ("type", "method", "graph", "cases", "mean", "worst", "worst case")
    show("to stock: geometric mean and worst", columns, lines)


if __name__ == "__main__":
    sys.exit(main())
