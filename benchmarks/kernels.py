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
Runtime, no kernel is twice as fast as that; the table of bars at the end shows where.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.kernel_methods import LENGTH, OPERATIONS, OURS, TYPES, Method, chain
from benchmarks.moves import MOVES, Moves, compiled
from benchmarks.rows import RESULTS, Conditions, append, conditions
from onnxfold.runtime.library import register

ELEMENTS = 128 * 768
SIZES = (384, 768, 1024, 4096)
# Least factors: over the best way with AVX-512 and with AVX2, over the fused operators.
BEST_WAY = {"v4": 2.0, "v3": 1.3}
SKIPS = {"SkipLayerNormalization": 15.0, "SkipSimplifiedLayerNormalization": 3.0}
# The functions of moves.c, by operation.
MOVED = {
    "rms": "moves_norm",
    "layer": "moves_norm",
    "add_rms": "moves_add",
    "add_layer": "moves_add",
    "post_layer": "moves_post",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow(Conditions):
    """One method at one shape.

    `times_ours` is the median of the rounds' ratios to our kernel (for `bias`, which lacks one, to
    the Add itself), `best_times_ours` the ratio of the best rounds.
    """

    onnxruntime: str
    kernels: str
    threads: int
    dtype: str
    operation: str
    rows: int
    size: int
    method: str
    ns_per_element: float
    p10: float
    p90: float
    best: float
    times_ours: float
    best_times_ours: float


class Timed:
    """A session with bound inputs and outputs."""

    def __init__(self, method: Method, size: int, dtype: str, threads: int, scratch: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.optimized_model_filepath = str(scratch)
        register(options)
        model = chain(method, size, dtype).SerializeToString()
        self.session = ort.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(method.disabled),
        )
        ops = [node.op_type for node in onnx.load(scratch).graph.node]
        ops = [op for op in ops if op != "Cast"]
        if sorted(ops) != sorted(method.left * LENGTH):
            raise RuntimeError(f"{method.name} became {sorted(set(ops))}; its time means nothing")
        rng = np.random.default_rng(1)
        self.binding = self.session.io_binding()
        for value in self.session.get_inputs():
            array = rng.standard_normal((ELEMENTS // size, size)).astype(dtype)
            self.binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(array))
        for value in self.session.get_outputs():
            array = np.empty((ELEMENTS // size, size), dtype)
            self.binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(array))

    def run(self) -> int:
        """Nanoseconds of one run."""
        start = time.perf_counter_ns()
        self.session.run_with_iobinding(self.binding)
        return time.perf_counter_ns() - start


def measure(
    operation: str,
    size: int,
    dtype: str,
    threads: int,
    rounds: int,
    scratch: Path,
    moves: Path,
) -> Iterator[KernelRow]:
    """One row for each method, ours first, the loads and stores last if there is one thread."""
    methods = OPERATIONS[operation]
    names = [method.name for method in methods]
    timed: list[Timed | Moves] = [Timed(m, size, dtype, threads, scratch) for m in methods]
    if threads == 1:
        timed.append(Moves(moves, operation, ELEMENTS * np.dtype(dtype).itemsize, LENGTH))
        names.append(MOVES)
    times = np.empty((rounds, len(timed)))
    for i in range(-3, rounds):
        for k, candidate in enumerate(timed):
            elapsed = candidate.run()
            if i >= 0:
                times[i, k] = elapsed / (LENGTH * ELEMENTS)
    medians, best = np.median(times, axis=0), np.min(times, axis=0)
    for k, name in enumerate(names):
        p10, p90 = np.percentile(times[:, k], [10, 90])
        yield KernelRow(
            **conditions(),
            onnxruntime=ort.__version__,
            kernels=instruction_set(),
            threads=threads,
            dtype=dtype,
            operation=operation,
            rows=ELEMENTS // size,
            size=size,
            method=name,
            ns_per_element=round(float(medians[k]), 4),
            p10=round(float(p10), 4),
            p90=round(float(p90), 4),
            best=round(float(best[k]), 4),
            times_ours=round(float(np.median(times[:, k] / times[:, 0])), 2),
            best_times_ours=round(float(best[k] / best[0]), 2),
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """How many times as fast as ``method`` our kernel is, should be, and could be at most."""

    case: str
    method: str
    reached: float
    least: float
    possible: float

    @property
    def says(self) -> str:
        """One word."""
        if self.reached >= self.least:
            return "reached"
        return "beyond the memory" if self.possible < self.least else "missed"


def bars(rows: Sequence[KernelRow]) -> Iterator[Bar]:
    """Yield the bars of one norm, type and size; the best way is the one of least median."""
    by_method = {row.method: row for row in rows}
    if not {MOVES, OURS} <= by_method.keys() or rows[0].operation == "center":
        return
    limit = by_method[MOVES].times_ours
    plain = [row for row in rows if row.method not in (OURS, MOVES, *SKIPS)]
    best = min(plain, key=lambda row: row.ns_per_element)
    least = {row.method: SKIPS[row.method] for row in rows if row.method in SKIPS}
    least[best.method] = BEST_WAY.get(best.kernels, 1.0)
    for method, factor in least.items():
        row = by_method[method]
        case = f"{row.operation} {row.dtype} {row.size}"
        yield Bar(case, method, row.times_ours, factor, row.times_ours / limit)


def half_bars(rows: Sequence[KernelRow]) -> Iterator[Bar]:
    """Yield for each operation and size how much faster float16 is than float32, by best rounds."""
    best = {(row.operation, row.size, row.method, row.dtype): row.best for row in rows}
    for (operation, size, method, dtype), wide in best.items():
        half = best.get((operation, size, method, "float16"))
        limit = best.get((operation, size, MOVES, "float16"))
        if method == OURS and dtype == "float32" and half and limit:
            yield Bar(f"{operation} float16 {size}", "float32", wide / half, 1.0, wide / limit)


def instruction_set() -> str:
    """The instruction set of the kernels: the machine's best, or a lower one that was asked for."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.exists() else set()
    levels = {"avx512vl": "v4", "avx2": "v3", "ssse3": "v2"}
    best = next((level for flag, level in levels.items() if flag in flags), platform.machine())
    return min(best, os.environ.get("ONNXFOLD_ISA", best))


def main() -> None:
    """Measure what the command line asks for, and append the rows to the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels.csv")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--operations", nargs="*", default=list(OPERATIONS))
    parser.add_argument("--dtypes", nargs="*", default=list(TYPES))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    options = parser.parse_args()
    found: list[Bar] = []
    every: list[KernelRow] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch, moves = Path(folder) / "optimized.onnx", compiled(Path(folder))
        cases = [
            (o, d, n) for o in options.operations for d in options.dtypes for n in options.sizes
        ]
        for operation, dtype, size in cases:
            measured = measure(
                operation, size, dtype, options.threads, options.rounds, scratch, moves
            )
            rows = list(measured)
            append(options.out, rows)
            found += bars(rows)
            every += rows
            for row in rows:
                print(
                    f"{operation:10} {dtype} {size:5} {row.method:36} "
                    f"{row.ns_per_element:7.3f} ns [{row.p10:.3f}, {row.p90:.3f}] "
                    f"{row.times_ours:6.2f}x; best {row.best:.3f} ns {row.best_times_ours:6.2f}x"
                )
    for bar in (*found, *half_bars(every)):
        print(
            f"{bar.case:24} over {bar.method:36} {bar.reached:6.2f}x, bar {bar.least:g}x, "
            f"at most {bar.possible:6.2f}x: {bar.says}"
        )


if __name__ == "__main__":
    main()
