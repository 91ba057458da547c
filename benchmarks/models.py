"""Time of whole models in ONNX Runtime on the CPU, before and after folding.

    python -m benchmarks.models [EXPORTS] [--models NAME ...] [--sequences N ...] [--budget SECONDS]

EXPORTS contains NAME.onnx or NAME/model.onnx for the recipes of ``models``; what is missing is
exported there first. The methods of one case are timed in turns, in sessions that are opened twice;
a ratio is the median over the rounds of a baseline's time to the method's, so that more than 1 is
faster than the baseline. The baselines are ONNX Runtime with all its optimizations on the original,
which users get, and the same without SkipLayerNormFusion, since the fused operator of ONNX Runtime
1.31 is slower than what it replaces; the better of the two is the one with the smaller median.

Prints rows, appends them to benchmarks/results/models.csv, and says which bars were reached
(docs/architecture.md). With ``--clock processor`` the time is the calling thread's, which other
work on the machine affects less than the wall clock; it means something for one thread only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.harness import CPU, Bar, arguments, quantiles, show_bars
from benchmarks.rows import RESULTS, Row, append, tell
from benchmarks.subjects import NORMS, SUBJECTS, File, Subject, export_of, prepare, run_optimizer
from onnxfold.runtime.interleaved_timing import (
    OperatorTime,
    RunCounts,
    Variant,
    operators,
    take_turns,
)

__all__ = ["bars", "main", "rows_of"]

_PROVIDERS = (CPU,)
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 101
_CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
STOCK, NO_SKIP, FOLDED, PORTABLE = "stock", "no SkipLN fusion", "onnxfold", "without library"

# Forms of a model: options of onnxfold.optimize, None for the original.
_FORMS: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "original": None,
    "folded": {},
    "affine-kept": {"fuse_affine": False},
    "target-onnx": {"target": "onnx"},
    "target-ort": {"target": "ort"},
    "rest": {"target": "ort", "exclude": "."},
}
# The results of ONNX Runtime's transformers optimizer, and onnxfold's results for them.
_OPTIMIZED: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "optimizer": None,
    "optimizer-ort": {"target": "ort"},
}


class _Method(NamedTuple):
    """One way to run a model."""

    name: str
    form: str
    kernels: bool = False
    disabled: tuple[str, ...] = ()

    def variant(self, files: Mapping[str, File]) -> Variant:
        """The session to open."""
        return Variant(files[self.form].path, self.kernels, self.disabled)


_METHODS: Final = (
    _Method(STOCK, "original"),
    _Method(NO_SKIP, "original", disabled=("SkipLayerNormFusion",)),
    _Method(FOLDED, "folded", kernels=True),
    _Method(PORTABLE, "folded"),
    _Method("affine kept", "affine-kept", kernels=True),
    _Method("target onnx", "target-onnx"),
    _Method("target ort", "target-ort"),
    _Method("target ort, nothing folded", "rest"),
    _Method("optimizer", "optimizer"),
    _Method("optimizer, target ort", "optimizer-ort"),
)
# Of a model at sequence 128, and of all at any size: method, ratio, least.
_BARS_AT_128: Final = {"minilm-int8": 1.35, "minilm": 1.12, "bert-base": 1.06}
_BARS: Final = (
    (FOLDED, "to_better", 0.99),
    (PORTABLE, "to_stock", 0.97),
    ("target ort", "to_stock", 0.99),
    ("target onnx", "to_stock", 0.99),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for, append the rows and return the exit code."""
    options = arguments(
        __doc__,
        {
            "exports": {"type": Path, "nargs": "?", "default": Path("build/bench")},
            "--models": tuple(SUBJECTS),
            "--sequences": {"type": int, "nargs": "+", "help": "of text, default: 16 128 512"},
            "--batches": {"type": int, "nargs": "+", "help": "of images, default: 1 8"},
            "--budget": 660.0,
            "--threads": 1,
            "--sessions": {"type": int, "default": 2, "help": "openings of each, default: 2"},
            "--clock": {"choices": list(_CLOCKS), "default": "wall"},
            "--out": RESULTS / "models.csv",
        },
        words,
    )
    asked = {"sequence": options.sequences, "batch": options.batches}
    cases = [(s, asked[s.axis] or s.sizes) for s in (SUBJECTS[name] for name in options.models)]
    left = sum(len(sizes) for _, sizes in cases)
    end, rows = time.perf_counter() + options.budget, list[Row]()
    for subject, sizes in cases:
        with tempfile.TemporaryDirectory() as folder:
            files = _files(subject, export_of(subject.recipe, options.exports), Path(folder))
            each_s = max(0.0, end - time.perf_counter()) / left
            measured = _measure(subject, sizes, files, each_s, options)
        append(options.out, measured)
        tell(measured)
        rows += measured
        left -= len(sizes)
    show_bars(bars(rows))
    return 0


def _files(subject: Subject, source: Path, folder: Path) -> dict[str, File]:
    files = prepare(source, folder, _FORMS, int8=subject.int8)
    if subject.family is None:
        return files
    optimized = folder / "optimizer.onnx"
    run_optimizer(source, optimized, subject.family)
    return {**files, **prepare(optimized, folder, _OPTIMIZED, int8=subject.int8)}


def _methods(files: Mapping[str, File]) -> list[_Method]:
    return [method for method in _METHODS if method.form in files]


def _measure(
    subject: Subject,
    sizes: Sequence[int],
    files: Mapping[str, File],
    each_s: float,
    options: argparse.Namespace,
) -> list[Row]:
    """Measure a subject at its sizes with sessions that are opened several times.

    Where a session's memory happens to lie changes the time of its matrix products by tens of
    percent, for all its life.
    """
    load, methods = os.getloadavg()[0], _methods(files)
    feeds = {size: subject.feeds(files["original"].path, size) for size in sizes}
    seconds: dict[int, list[npt.NDArray[np.float64]]] = {size: [] for size in sizes}
    least, clock = -(-_LEAST_ROUNDS // options.sessions), _CLOCKS[options.clock]
    turns = RunCounts(_MOST_ROUNDS, least, each_s / options.sessions, clock=clock)
    for _ in range(options.sessions):
        opened = [each.variant(files).session(options.threads, _PROVIDERS) for each in methods]
        for size in sizes:
            runs = [partial(session.run, None, feeds[size]) for session in opened]
            seconds[size].append(take_turns(runs, turns))
        del opened
    rows: list[Row] = []
    for size in sizes:
        about = {
            "onnxruntime": ort.__version__,
            "threads": options.threads,
            "clock": options.clock,
            "sessions": options.sessions,
            "load": round(load, 2),
            "subject": subject.name,
            "axis": subject.axis,
            "size": size,
        }
        profiles = None
        if size == sizes[len(sizes) // 2]:
            profiles = [
                operators(each.variant(files), options.threads, _PROVIDERS, feeds[size])
                for each in methods
            ]
        rows += rows_of(about, files, profiles, np.concatenate(seconds[size], axis=1))
    return rows


def rows_of(
    about: Mapping[str, Any],
    files: Mapping[str, File],
    profiles: Sequence[Sequence[OperatorTime]] | None,
    seconds: npt.NDArray[np.float64],
) -> Iterator[Row]:
    """Yield the rows of one case from seconds: [method, round]."""
    methods = _methods(files)
    names = [method.name for method in methods]
    stock = seconds[names.index(STOCK)]
    better = min((seconds[names.index(name)] for name in (STOCK, NO_SKIP)), key=np.median)
    for index, method in enumerate(methods):
        file, own = files[method.form], seconds[index]
        profile = profiles[index] if profiles is not None else None
        # One method on one subject (a model, or its quantized form) at one size. ``nodes`` are the
        # file's, ``removed`` how many more the original has. At one size of each model runs are
        # profiled as well: ``executed`` are the nodes that ran, after the runtime's own fusions,
        # and ``norm_ms`` is the time of the norms among them, with additions that they took in; it
        # is the time of the kernels, without what the runtime spends between them.
        yield Row(
            **about,
            method=method.name,
            rounds=own.size,
            **quantiles(1e3 * own, 4, median_ms=50, p10_ms=10, p90_ms=90),
            **quantiles(stock / own, 4, to_stock=50, to_stock_p10=10, to_stock_p90=90),
            to_better=round(float(np.median(better / own)), 4),
            nodes=file.nodes,
            removed=files["original"].nodes - file.nodes,
            executed=None if profile is None else sum(found.nodes for found in profile),
            norm_ms=None if profile is None else _norm_ms(profile),
            **file.counts("folded", "gamma_fused", "beta_fused", "scales_fused"),
        )


def _norm_ms(profile: Sequence[OperatorTime]) -> float:
    return round(sum(found.milliseconds for found in profile if found.name in NORMS), 4)


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Yield the bars for which something was measured, each by its worst case."""
    for row in rows:
        if row.method == FOLDED and row.size == 128 and row.subject in _BARS_AT_128:
            what = f"{row.subject} over stock, sequence 128"
            yield Bar(what, row.to_stock, _BARS_AT_128[row.subject])
    for method, ratio, least in _BARS:
        if own := [row for row in rows if row.method == method]:
            worst = min(own, key=lambda row: getattr(row, ratio))
            what = f"{method} {ratio}, worst: {worst.subject}, {worst.axis} {worst.size}"
            yield Bar(what, getattr(worst, ratio), least)


if __name__ == "__main__":
    sys.exit(main())
