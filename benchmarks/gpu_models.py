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
method's, both with a CUDA graph or both without.

Prints rows and appends them to benchmarks/results/gpu_models.csv after every case; one model and
type for each call stays within the budget of 540 seconds, and no case begins beyond it.
``--provider cpu`` runs all of it except the CUDA graphs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from benchmarks.gpu import device, device_named
from benchmarks.harness import BUDGET, CPU, Budget, arguments, failed, outputs_on, quantiles
from benchmarks.rows import RESULTS, Row, append, tell
from benchmarks.subjects import File, filled, first_input, prepare, run_optimizer, scratch_in
from onnxfold import model_io
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.runtime.interleaved_timing import (
    Bound,
    Provider,
    RunCounts,
    Variant,
    take_turns,
    values_on,
)
from onnxfold.runtime.library import CUDA_PROVIDERS

__all__ = ["main"]

_LEAST_ROUNDS, _MOST_ROUNDS = 7, 201
_STOCK = "stock"
_ORT = {"target": "ort", "device": "cuda"}
# The longest sequence (0 for images), heads, and the optimizer's name.
_SUBJECTS: Final = {
    "gpt2": (1024, 12, "gpt2"),
    "bert-base": (512, 12, "bert"),
    "opt-125m": (2048, 12, "gpt2"),
    "vit-b16": (0, 12, "vit"),
    "phi-2": (4096, 32, "gpt2"),
    "llama-small": (2048, 8, "gpt2"),
}


class _Method(NamedTuple):
    """A form of the model, with or without onnxfold's kernels and a CUDA graph."""

    form: str
    kernels: bool = False
    graph: bool = False

    @property
    def name(self) -> str:
        return f"{self.form}{', kernels' * self.kernels}"


_METHODS: Final = tuple(
    _Method(form, kernels, graph)
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
    options = arguments(
        __doc__,
        {
            "folder": Path,
            "--models": tuple(_SUBJECTS),
            "--dtypes": ("fp16", "fp32"),
            "--batches": [1, 8],
            "--sequences": [1, 64, 512, 1024, 4096],
            "--provider": {"choices": ["cuda", "cpu"], "default": "cuda"},
            "--budget": BUDGET,
            "--case": {"type": float, "default": 8.0, "help": "seconds of one case's rounds"},
            "--largest": {"type": float, "default": 4e9, "help": "bytes of scores of one layer"},
            "--scratch": {"type": Path, "help": "folder for the models that are made"},
            "--out": RESULTS / "gpu_models.csv",
        },
        words,
    )
    budget, measured = Budget(options.budget), False
    if options.provider == "cuda" and CUDA_PROVIDERS[0] not in ort.get_available_providers():
        raise SystemExit(f"{device().name}: onnxruntime has no {CUDA_PROVIDERS[0]}")
    for dtype, name in product(options.dtypes, options.models):
        given = options.folder / dtype / f"{name}.onnx"
        if not given.exists():
            print(f"{given} is not there: left out")
            continue
        with budget.case(f"{name} {dtype}"):
            for case in _cases(given, name, dtype, budget, options):
                append(options.out, case)
                tell(case)
                measured = True
    return int(budget.incomplete) if measured else 2


def _cases(
    given: Path, name: str, dtype: str, budget: Budget, options: argparse.Namespace
) -> Iterator[list[Row]]:
    """Yield the rows of each size of a model, of those sizes at which anything runs."""
    left = f"{name} {dtype} is not complete"
    if budget.ended(left):
        return
    with scratch_in(options.scratch) as scratch:
        files = _files(given, scratch, name)
        for batch, sequence in _sizes(name, options):
            if budget.ended(left):
                return
            about = {"model": name, "dtype": dtype, "batch": batch, "sequence": sequence}
            if case := list(_measure(about, files, options)):
                yield case


def _sizes(name: str, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield batches and sequences, limited to the longest sequence of the model."""
    longest, heads, _ = _SUBJECTS[name]
    lengths = sorted({min(each, longest) for each in options.sequences}) if longest else [0]
    for batch, sequence in product(options.batches, lengths):
        if 4 * batch * heads * sequence**2 <= options.largest:
            yield batch, sequence


def _files(given: Path, scratch: Path, name: str) -> dict[str, File]:
    """Make every form; those of ONNX Runtime's optimizer only if it is installed."""
    source, onnx = filled(given, scratch), {"target": "onnx"}
    files = prepare(
        source, scratch, {_STOCK: None, "folded": {}, "folded, onnx": onnx, "folded, ort": _ORT}
    )
    optimized = scratch / "optimizer.onnx"
    try:
        run_optimizer(source, optimized, _SUBJECTS[name][2], gpu=True)
        forms = {"optimizer": None, "optimizer, folded": {}, "optimizer, folded, ort": _ORT}
        return files | prepare(optimized, scratch, forms)
    except Exception as error:  # said by name; the others still run
        failed(f"{name}, ONNX Runtime's transformers optimizer", error)
        return files


def _measure(
    about: Mapping[str, Any], files: Mapping[str, File], options: argparse.Namespace
) -> Iterator[Row]:
    """Yield one row for each method that runs."""
    opened = _opened(about, files, options.provider)
    if not opened:
        return
    turns = RunCounts(_MOST_ROUNDS, _LEAST_ROUNDS, options.case)
    seconds = dict(zip(opened, take_turns([b.run for b in opened.values()], turns), strict=True))
    for method, own in seconds.items():
        file, nothing = files[method.form], np.full(1, np.nan)
        ratios = seconds.get(_Method(_STOCK, graph=method.graph), nothing) / own
        # One method on one model at one size; ``sequence`` is 0 for images.
        yield Row(
            onnxruntime=ort.__version__,
            device=device_named(options.provider),
            provider=options.provider,
            **about,
            method=method.name,
            cuda_graph=method.graph,
            rounds=own.size,
            **quantiles(1e3 * own, 5, median_ms=50, p10_ms=10, p90_ms=90),
            **quantiles(ratios, 4, to_stock=50, to_stock_p10=10, to_stock_p90=90),
            **file.counts("nodes", "folded", "gamma_fused", "beta_fused"),
        )


def _opened(
    about: Mapping[str, Any], files: Mapping[str, File], provider: str
) -> dict[_Method, Bound]:
    """Open a session for each method that runs, all with the same inputs and outputs."""
    batch, sequence = about["batch"], about["sequence"]
    model = model_io.load(files[_STOCK].path)
    spec = InputSpec.of((first_input(model, batch, sequence),))
    feeds = make_inputs(model, spec, count=1, seed=0)[0]
    inputs, outputs = values_on(provider, feeds), dict[str, ort.OrtValue]()
    opened: dict[_Method, Bound] = {}
    for method in _METHODS:
        if method.form not in files or (method.graph and provider == "cpu"):
            continue
        fixed = (("batch", batch), ("sequence", sequence))
        variant = Variant(files[method.form].path, method.kernels, (), fixed)
        try:
            session = variant.session(1, _providers(provider, method.graph))
            outputs = outputs or outputs_on(provider, session, feeds)
            bound = Bound(session, inputs, outputs)
            bound.run()
        except Exception as error:  # said by name; the others still run
            failed(f"{about['model']}, {method.name}", error)
            continue
        opened[method] = bound
    return opened


def _providers(provider: str, graph: bool) -> list[Provider]:
    cuda: Provider = ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graph))})
    return [CPU] if provider == "cpu" else [cuda, CPU]


if __name__ == "__main__":
    sys.exit(main())
