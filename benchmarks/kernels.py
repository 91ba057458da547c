"""Time onnxfold's kernels against every way of ONNX Runtime to compute the same, in one run.

    python -m benchmarks.kernels [--out benchmarks/results/kernels.csv] [--rounds 41]

Each method is a chain of nodes in one session, so that the cost of a call to a session vanishes
(and of the first and last link, whose tensors the other methods have driven out of the cache) and
memory is used as in a model: each node reads what the one before it wrote, from the second level
cache. The methods of one operation and shape are timed in turns, one run each per round; the result
is the median over the rounds, of nanoseconds per element of one tensor, with the 10th and 90th
percentile and the best round: a machine with other work shows in their distance, and then the best
says more than the median.

Operations, on tensors of 98304 elements in rows of n:
    rms, layer          y = norm(x), scale, and bias for layer
    add_rms, add_layer  y, s = norm(y + s), s as in a pre-norm model: the sum is used again
    post_layer, post_rms  y = norm(y + r) as in a post-norm model: the sum is used once
    bias_layer          y = norm(y + b + r), b a vector
    center              y = y - mean(y)
    bias                y = y + b, b a vector: an Add of its own, on any target

The costs of plans in ``onnxfold/targets/lowering.py`` are rms, layer, center and bias of 768
float32 elements: ``--operations rms layer center bias --sizes 768 --dtypes float32``.

"loads and stores" is a lower bound, not a method: it only moves the memory that a link must move,
in place (moves.c, which needs a C compiler). If it takes more than half of the best time of ONNX
Runtime, no kernel is twice as fast as that; the bars at the end say the most that one could be.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.harness import Bar, arguments, quantiles, show_bars
from benchmarks.kernel_methods import OPERATIONS, OURS, bound
from benchmarks.moves import MOVES, Moves, compiled
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold.runtime.interleaved_timing import RunCounts, take_turns

ELEMENTS, LENGTH = 128 * 768, 96
SIZES = (384, 768, 1024, 4096)
# Least factors: over the best way with AVX-512 and with AVX2, over the fused operators.
BEST_WAY = {"v4": 2.0, "v3": 1.3}
SKIPS = {"SkipLayerNormalization": 15.0, "SkipSimplifiedLayerNormalization": 3.0}


def measure(
    operation: str, size: int, dtype: str, threads: int, rounds: int, moves: Path
) -> Iterator[Row]:
    """One row for each method, ours first, the loads and stores last if there is one thread."""
    rows = ELEMENTS // size
    runs = {
        name: bound(link, LENGTH, (rows, size), dtype, threads).run
        for name, link in OPERATIONS[operation].items()
    }
    if threads == 1:
        nbytes = ELEMENTS * np.dtype(dtype).itemsize
        runs[MOVES] = Moves(moves, operation, nbytes, LENGTH).run
    turns = RunCounts(rounds, turn_s=0.0)  # one run each
    times = 1e9 * take_turns(list(runs.values()), turns) / (LENGTH * ELEMENTS)
    for name, own in zip(runs, times, strict=True):
        # ``times_ours`` is the median of the rounds' ratios to our kernel (for ``bias``, which
        # lacks one, to the Add itself), ``best_times_ours`` the ratio of the best rounds.
        yield Row(
            onnxruntime=ort.__version__,
            kernels=instruction_set(),
            threads=threads,
            dtype=dtype,
            operation=operation,
            rows=rows,
            size=size,
            method=name,
            **quantiles(own, 4, ns_per_element=50, p10=10, p90=90, best=0),
            times_ours=round(float(np.median(own / times[0])), 2),
            best_times_ours=round(float(own.min() / times[0].min()), 2),
        )


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Yield the bars of one norm, type and size; the best way is the one of least median.

    What no kernel reaches is told as the most that it could, by its loads and stores.
    """
    by_method = {row.method: row for row in rows}
    if not {MOVES, OURS} <= by_method.keys() or rows[0].operation == "center":
        return
    plain = [row for row in rows if row.method not in (OURS, MOVES, *SKIPS)]
    best = min(plain, key=lambda row: row.ns_per_element)
    least = {row.method: SKIPS[row.method] for row in rows if row.method in SKIPS}
    least[best.method] = BEST_WAY.get(best.kernels, 1.0)
    for method, factor in least.items():
        row = by_method[method]
        most = row.times_ours / by_method[MOVES].times_ours
        what = f"{row.operation} {row.dtype} {row.size} over {method}, at most {most:.2f}"
        yield Bar(what, row.times_ours, factor)


def half_bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Yield for each operation and size how much faster float16 is than float32, by best rounds."""
    best = {(row.operation, row.size, row.dtype): row.best for row in rows if row.method == OURS}
    for (operation, size, dtype), wide in best.items():
        half = best.get((operation, size, "float16"))
        if dtype == "float32" and half:
            yield Bar(f"{operation} float16 {size} over float32", wide / half, 1.0)


def instruction_set() -> str:
    """The instruction set of the kernels: the machine's best, or a lower one that was asked for."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.exists() else set()
    levels = {"avx512vl": "v4", "avx2": "v3", "ssse3": "v2"}
    best = next((level for flag, level in levels.items() if flag in flags), platform.machine())
    return min(best, os.environ.get("ONNXFOLD_ISA", best))


def main() -> None:
    """Measure what the command line asks for, and append the rows to the results."""
    options = arguments(
        __doc__,
        {
            "--out": RESULTS / "kernels.csv",
            "--rounds": 41,
            "--threads": 1,
            "--operations": tuple(OPERATIONS),
            "--dtypes": ("float32", "float16"),
            "--sizes": list(SIZES),
        },
    )
    found, every = list[Bar](), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        moves = compiled(Path(folder))
        for operation, dtype, size in product(options.operations, options.dtypes, options.sizes):
            rows = list(measure(operation, size, dtype, options.threads, options.rounds, moves))
            append(options.out, rows)
            found += bars(rows)
            every += rows
            tell(rows)
    show_bars([*found, *half_bars(every)])


if __name__ == "__main__":
    main()
