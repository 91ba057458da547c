"""Time of whole models in ONNX Runtime on the CPU, before and after folding.

    python -m benchmarks.models [EXPORTS] [--models NAME ...] [--sequences N ...] [--budget SECONDS]

EXPORTS contains NAME.onnx or NAME/model.onnx for the recipes of ``models``; what is missing is
exported there first. The methods of one case are timed in turns, in sessions that are opened twice;
a ratio is the median over the rounds of a baseline's time to the method's, so that more than 1 is
faster than the baseline. The baselines are ONNX Runtime with all its optimizations on the original,
which users get, and the same without SkipLayerNormFusion, since the fused operator of ONNX Runtime
1.31 is slower than what it replaces; the better of the two is the one with the smaller median.

Prints a table and appends rows to benchmarks/results/models.csv. With ``--clock processor`` the
time is the calling thread's, which other work on the machine affects less than the wall clock; it
means something for one thread only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.harness import CPU, arguments, quantiles, show
from benchmarks.rows import RESULTS, Row, append
from benchmarks.subjects import (
    NORMS,
    SUBJECTS,
    File,
    Subject,
    export_of,
    geometric_mean,
    prepare,
    run_optimizer,
)
from onnxfold.runtime.interleaved_timing import (
    OperatorTime,
    RunCounts,
    Variant,
    operators,
    take_turns,
)

__all__ = ["METHODS", "Method", "bars", "main", "per_norm_us", "rows_of"]

_PROVIDERS = (CPU,)
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 101
_CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
STOCK, NO_SKIP, FOLDED, PORTABLE = "stock", "no SkipLN fusion", "onnxfold", "without library"
ONNX, ORT, OPTIMIZER, BOTH = "target onnx", "target ort", "optimizer", "optimizer, target ort"

# Forms of a model: options of onnxfold.optimize, None for the original.
_FORMS: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "original": None,
    "folded": {},
    "affine-kept": {"fuse_affine": False},
    "target-onnx": {"target": "onnx"},
    "target-ort": {"target": "ort"},
}
# The results of ONNX Runtime's transformers optimizer, and onnxfold's results for them.
_OPTIMIZED: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "optimizer": None,
    "optimizer-ort": {"target": "ort"},
}


@dataclass(frozen=True, slots=True)
class Method:
    """One way to run a model."""

    name: str
    form: str
    kernels: bool = False
    disabled: tuple[str, ...] = ()

    def variant(self, files: Mapping[str, File]) -> Variant:
        """The session to open."""
        return Variant(files[self.form].path, self.kernels, self.disabled)


METHODS: Final = (
    Method(STOCK, "original"),
    Method(NO_SKIP, "original", disabled=("SkipLayerNormFusion",)),
    Method(FOLDED, "folded", kernels=True),
    Method(PORTABLE, "folded"),
    Method("affine kept", "affine-kept", kernels=True),
    Method(ONNX, "target-onnx"),
    Method(ORT, "target-ort"),
    Method(OPTIMIZER, "optimizer"),
    Method(BOTH, "optimizer-ort"),
)
_BASELINES: Final = (STOCK, NO_SKIP)


@dataclass(frozen=True, slots=True)
class _Bar:
    """The ratio of a method that the geometric mean, or the worst, of some cases should reach.

    ``size`` leaves out the cases of another length or batch.
    """

    what: str
    method: str
    ratio: str
    least: float
    subjects: tuple[str, ...] = tuple(SUBJECTS)
    worst: bool = False
    size: int | None = None


# The bars of a model come from the share of its norms at sequence 128.
_BARS: Final = (
    *(
        _Bar(f"{subject} over stock, {what}", FOLDED, "to_stock", least, (subject,), size=size)
        for subject, least in (("minilm-int8", 1.35), ("minilm", 1.12), ("bert-base", 1.06))
        for what, size in (("sequence 128", 128), ("mean", None))
    ),
    _Bar("all over stock, mean", FOLDED, "to_stock", 1.08),
    _Bar("all over the better baseline, mean", FOLDED, "to_better", 1.0),
    _Bar("all over the better baseline, worst", FOLDED, "to_better", 0.99, worst=True),
    _Bar("without library over stock, worst", PORTABLE, "to_stock", 0.97, worst=True),
    *(
        _Bar(f"{subject} for ort over stock, mean", ORT, "to_stock", least, (subject,))
        for subject, least in (
            ("bert-base-int8", 1.10),
            ("minilm-int8", 1.20),
            ("minilm", 1.08),
            ("bert-base", 1.03),
        )
    ),
    _Bar("for ort over stock, worst", ORT, "to_stock", 0.99, worst=True),
    _Bar("for onnx over stock, worst", ONNX, "to_stock", 0.99, worst=True),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for, append the rows and return the exit code."""
    options = _options(words)
    subjects = [SUBJECTS[name] for name in options.models]
    cases = [(s, size) for s in subjects for size in _sizes(s, options)]
    end = time.perf_counter() + options.budget
    rows: list[Row] = []
    for subject in subjects:
        sizes = [size for other, size in cases if other is subject]
        with tempfile.TemporaryDirectory() as folder:
            source = export_of(subject.recipe, options.exports)
            files = _files(subject, source, Path(folder))
            left = len(cases) - len({(row.subject, row.size) for row in rows})
            share = max(0.0, end - time.perf_counter()) * len(sizes) / left
            measured = _measure(subject, sizes, files, share, options)
        append(options.out, measured)
        rows += measured
    _summarise(rows)
    return 0


def _files(subject: Subject, source: Path, folder: Path) -> dict[str, File]:
    files = prepare(source, folder, _FORMS, int8=subject.int8)
    if subject.family is None:
        return files
    optimized = folder / "optimizer.onnx"
    run_optimizer(source, optimized, subject.family)
    return {**files, **prepare(optimized, folder, _OPTIMIZED, int8=subject.int8)}


def _methods(files: Mapping[str, File]) -> list[Method]:
    return [method for method in METHODS if method.form in files]


def _measure(
    subject: Subject,
    sizes: Sequence[int],
    files: Mapping[str, File],
    budget: float,
    options: argparse.Namespace,
) -> list[Row]:
    """Measure a subject at its sizes with sessions that are opened several times.

    Where a session's memory happens to lie changes the time of its matrix products by tens of
    percent, for all its life.
    """
    load = os.getloadavg()[0]
    feeds = {size: subject.feeds(files["original"].path, size) for size in sizes}
    seconds: dict[int, list[npt.NDArray[np.float64]]] = {size: [] for size in sizes}
    turns = RunCounts(
        _MOST_ROUNDS,
        -(-_LEAST_ROUNDS // options.sessions),
        budget / len(sizes) / options.sessions,
        clock=_CLOCKS[options.clock],
    )
    for _ in range(options.sessions):
        sessions = [
            method.variant(files).session(options.threads, _PROVIDERS) for method in _methods(files)
        ]
        for size in sizes:
            runs = [partial(session.run, None, feeds[size]) for session in sessions]
            seconds[size].append(take_turns(runs, turns))
        del sessions
    profiled = sizes[len(sizes) // 2]
    rows: list[Row] = []
    for size in sizes:
        profiles = _profiles(files, options.threads, feeds[size]) if size == profiled else None
        about = _about(subject, size, load, options)
        case = list(rows_of(about, files, profiles, np.concatenate(seconds[size], axis=1)))
        _show(case, profiles)
        rows += case
    return rows


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    return arguments(
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


def _sizes(subject: Subject, options: argparse.Namespace) -> tuple[int, ...]:
    asked = options.sequences if subject.axis == "sequence" else options.batches
    return subject.sizes if asked is None else tuple(asked)


def _profiles(
    files: Mapping[str, File], threads: int, feeds: Mapping[str, npt.NDArray[Any]]
) -> list[tuple[OperatorTime, ...]]:
    return [
        operators(method.variant(files), threads, _PROVIDERS, dict(feeds))
        for method in _methods(files)
    ]


def _about(
    subject: Subject, size: int, load: float, options: argparse.Namespace
) -> dict[str, str | int | float]:
    return {
        "onnxruntime": ort.__version__,
        "threads": options.threads,
        "clock": options.clock,
        "sessions": options.sessions,
        "load": round(load, 2),
        "subject": subject.name,
        "axis": subject.axis,
        "size": size,
    }


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
    better = min((seconds[names.index(name)] for name in _BASELINES), key=np.median)
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
            folded=file.folded,
            gamma_fused=file.gamma_fused,
            beta_fused=file.beta_fused,
            scales_fused=file.scales_fused,
        )


def _norm_ms(profile: Sequence[OperatorTime]) -> float:
    return round(sum(found.milliseconds for found in profile if found.name in NORMS), 4)


def per_norm_us(profile: Sequence[OperatorTime]) -> float | None:
    """Return the mean time of a norm in microseconds, or None if there are none."""
    norms = [found for found in profile if found.name in NORMS]
    count = sum(found.nodes for found in norms)
    return 1e3 * sum(found.milliseconds for found in norms) / count if count else None


def _show(rows: Sequence[Row], profiles: Sequence[Sequence[OperatorTime]] | None) -> None:
    first, lines = rows[0], []
    for number, row in enumerate(rows):
        each = None if profiles is None else per_norm_us(profiles[number])
        lines.append(
            (
                row.method,
                f"{row.median_ms:.2f}",
                f"{row.to_stock:.3f}",
                f"{row.to_stock_p10:.3f} - {row.to_stock_p90:.3f}",
                f"{row.to_better:.3f}",
                *(row.nodes, row.removed, row.executed),
                None if row.norm_ms is None else f"{row.norm_ms:.3f}",
                None if each is None else f"{each:.1f}",
                *(row.folded, row.gamma_fused, row.beta_fused, row.scales_fused),
            )
        )
    columns = ("method", "ms", "to stock", "10% - 90%", "to better", "nodes", "removed", "ran")
    columns += ("norms ms", "us/norm", "folded", "gammas", "betas", "scales")
    show(f"{first.subject}, {first.axis} {first.size}, {first.rounds} rounds", columns, lines)


@dataclass(frozen=True, slots=True)
class Reached:
    """One bar: the value, what it should be at least, and the case that is worst."""

    what: str
    value: float
    least: float
    worst: str


def bars(rows: Sequence[Row]) -> Iterator[Reached]:
    """Yield the bars for which something was measured."""
    for bar in _BARS:
        chosen = {
            f"{row.subject}, {row.axis} {row.size}": getattr(row, bar.ratio)
            for row in rows
            if row.method == bar.method
            and row.subject in bar.subjects
            and bar.size in (None, row.size)
        }
        if chosen:
            worst = min(chosen, key=lambda case: chosen[case])
            value = chosen[worst] if bar.worst else geometric_mean(list(chosen.values()))
            yield Reached(bar.what, value, bar.least, f"{worst}: {chosen[worst]:.3f}")


def _summarise(rows: Sequence[Row]) -> None:
    lines = [
        (
            bar.what,
            f"{bar.value:.3f}{'' if bar.value >= bar.least else '  MISSED'}",
            f"{bar.least:g}",
            bar.worst,
        )
        for bar in bars(rows)
    ]
    show("bars (mean: geometric)", ("", "reached", "bar", "worst case"), lines)


if __name__ == "__main__":
    sys.exit(main())
