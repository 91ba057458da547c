"""Times onnxfold's kernels beside every way that ONNX Runtime has to compute the same, in one run.

    python -m benchmarks.kernels [--out benchmarks/results/kernels.csv] [--rounds 41]

Each method is a chain of nodes in one session, so that the cost of a call to a session vanishes
(and of the first and last link, whose tensors the other methods have driven out of the cache) and
memory is used as in a model: each node reads what the one before it wrote, from the second level
cache. The methods of one operation and shape take turns, one run each
per round; the result is the median over the rounds, of nanoseconds per element of one tensor, with
the 10th and 90th percentile and the best round: a machine with other work shows in their distance,
and then the best says more than the median.

Operations, on tensors of 98304 elements in rows of n:
    rms, layer          y = norm(x), scale, and bias for layer
    add_rms, add_layer  y, s = norm(y + s), s as in a pre-norm model: the sum is used again
    post_layer, post_rms  y = norm(y + r) as in a post-norm model: the sum is used once
    bias_layer          y = norm(y + b + r), b a vector
    center              y = y - mean(y)
    bias                y = y + b, b a vector: an Add of its own, on any target

The costs of plans in ``onnxfold/passes/lower/targets.py`` are those of rms, layer, center and bias
of 768 float32 elements: ``--operations rms layer center bias --sizes 768 --dtypes float32``.

"loads and stores" is no way to compute them: it moves the memory that a link must move, in place,
and nothing else (moves.c, which needs a C compiler).  Where it takes more than a half of the best
time of ONNX Runtime, no kernel is twice as fast as that; the table of bars at the end says where.
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
from onnx import TensorProto, helper, numpy_helper

from benchmarks.moves import MOVES, Moves, compiled
from benchmarks.rows import RESULTS, Conditions, append, conditions
from onnxfold.operators.functions import DOMAIN, VERSION
from onnxfold.runtime.library import register

ELEMENTS = 128 * 768
SIZES = (384, 768, 1024, 4096)
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
LENGTH = 96
EPSILON = 1e-5
OURS = "onnxfold"
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


@dataclass(frozen=True, slots=True)
class Method:
    """One way to compute an operation: op templates, `{0}` in place of the index of the link.

    `disabled` names optimizers of ONNX Runtime to leave out; `left` are the ops that a link must
    still be made of when the session is ready, so that what is timed is what is named.
    """

    name: str
    link: Sequence[tuple[str, str, str, str]]  # op, domain, inputs, outputs
    left: tuple[str, ...]
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow(Conditions):
    """One method at one shape.

    `times_ours` is the median of the rounds' ratios to our kernel (for `bias`, of which there is
    none, to the Add itself), `best_times_ours` the ratio of the best rounds.
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


SKIP = "com.microsoft"
NO_SKIP = ("SkipLayerNormFusion",)
SIMPLIFIED = ("SimplifiedLayerNormalization", "", "y{0} scale", "y{1}")
LAYER_OF_SUM = ("LayerNormalization", "", "t{1} scale bias", "y{1}")
ADD = ("Add", "", "y{0} s{0}", "s{1}")
OPERATIONS: dict[str, tuple[Method, ...]] = {
    "rms": (
        Method(OURS, [("RMSNormScale", DOMAIN, "y{0} scale", "y{1}")], ("RMSNormScale",)),
        Method("SimplifiedLayerNormalization", [SIMPLIFIED], ("SimplifiedLayerNormalization",)),
        Method(
            "RMSNormalization",
            [("RMSNormalization", "", "y{0} scale", "y{1}")],
            ("RMSNormalization",),
        ),
    ),
    "layer": (
        Method(
            OURS, [("LayerNormAffine", DOMAIN, "y{0} scale bias", "y{1}")], ("LayerNormAffine",)
        ),
        Method(
            "LayerNormalization",
            [("LayerNormalization", "", "y{0} scale bias", "y{1}")],
            ("LayerNormalization",),
        ),
    ),
    "center": (
        Method(OURS, [("Center", DOMAIN, "y{0}", "y{1}")], ("Center",)),
        Method(
            "ReduceMean + Sub",
            [("ReduceMean", "", "y{0} axes", "m{1}"), ("Sub", "", "y{0} m{1}", "y{1}")],
            ("ReduceMean", "Sub"),
        ),
    ),
    "bias": (Method("Add", [("Add", "", "y{0} bias", "y{1}")], ("Add",)),),
    "add_rms": (
        Method(
            OURS,
            [("AddRMSNormScaleWithSum", DOMAIN, "y{0} s{0} scale", "y{1} s{1}")],
            ("AddRMSNormScaleWithSum",),
        ),
        Method(
            "Add + SimplifiedLayerNormalization",
            [ADD, ("SimplifiedLayerNormalization", "", "s{1} scale", "y{1}")],
            ("Add", "SimplifiedLayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "SkipSimplifiedLayerNormalization",
            [("SkipSimplifiedLayerNormalization", SKIP, "y{0} s{0} scale", "y{1} - - s{1}")],
            ("SkipSimplifiedLayerNormalization",),
        ),
    ),
    "add_layer": (
        Method(
            OURS,
            [("AddLayerNormAffineWithSum", DOMAIN, "y{0} s{0} scale bias", "y{1} s{1}")],
            ("AddLayerNormAffineWithSum",),
        ),
        Method(
            "Add + LayerNormalization",
            [ADD, ("LayerNormalization", "", "s{1} scale bias", "y{1}")],
            ("Add", "LayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "SkipLayerNormalization",
            [("SkipLayerNormalization", SKIP, "y{0} s{0} scale bias", "y{1} - - s{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
    "post_layer": (
        Method(
            OURS,
            [("AddLayerNormAffine", DOMAIN, "y{0} s0 scale bias", "y{1}")],
            ("AddLayerNormAffine",),
        ),
        Method(
            "Add + LayerNormalization",
            [
                ("Add", "", "y{0} s0", "t{1}"),
                ("LayerNormalization", "", "t{1} scale bias", "y{1}"),
            ],
            ("Add", "LayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "Sum + LayerNormalization",
            [("Sum", "", "y{0} s0", "t{1}"), LAYER_OF_SUM],
            ("Sum", "LayerNormalization"),
        ),
        Method(
            "SkipLayerNormalization",
            [("SkipLayerNormalization", SKIP, "y{0} s0 scale bias", "y{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
    "post_rms": (
        Method(OURS, [("AddRMSNormScale", DOMAIN, "y{0} s0 scale", "y{1}")], ("AddRMSNormScale",)),
        Method(
            "Sum + SimplifiedLayerNormalization",
            [
                ("Sum", "", "y{0} s0", "t{1}"),
                ("SimplifiedLayerNormalization", "", "t{1} scale", "y{1}"),
            ],
            ("Sum", "SimplifiedLayerNormalization"),
        ),
        Method(
            "SkipSimplifiedLayerNormalization",
            [("SkipSimplifiedLayerNormalization", SKIP, "y{0} s0 scale", "y{1}")],
            ("SkipSimplifiedLayerNormalization",),
        ),
    ),
    "bias_layer": (
        Method(
            OURS,
            [("AddBiasLayerNormAffine", DOMAIN, "y{0} s0 bias scale bias", "y{1}")],
            ("AddBiasLayerNormAffine",),
        ),
        Method(
            "Add + Sum + LayerNormalization",
            [
                ("Add", "", "y{0} bias", "b{1}"),
                ("Sum", "", "b{1} s0", "t{1}"),
                LAYER_OF_SUM,
            ],
            ("Add", "Sum", "LayerNormalization"),
        ),
        Method(
            "Sum of three + LayerNormalization",
            [("Sum", "", "y{0} bias s0", "t{1}"), LAYER_OF_SUM],
            ("Sum", "LayerNormalization"),
        ),
        Method(
            "SkipLayerNormalization with bias",
            [("SkipLayerNormalization", SKIP, "y{0} s0 scale bias bias", "y{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
}


def chain(method: Method, size: int, dtype: str) -> onnx.ModelProto:
    """LENGTH links: y0 and s0 are inputs, the last y (and s) outputs."""

    def names(template: str, i: int) -> list[str]:
        return [name.strip("-") for name in template.format(i, i + 1).split()]

    nodes = []
    for i in range(LENGTH):
        for op, domain, inputs, outputs in method.link:
            node = helper.make_node(op, names(inputs, i), names(outputs, i), domain=domain)
            node.attribute.extend(_attributes(op, domain))
            nodes.append(node)
    rng = np.random.default_rng(0)
    weights = {
        "scale": (1 + 0.1 * rng.standard_normal(size)).astype(dtype),
        "bias": rng.standard_normal(size).astype(dtype),
        "axes": np.array([-1]),
    }
    used = {name for node in nodes for name in node.input}
    given = [name for name in ("y0", "s0") if name in used]
    made = {name for node in nodes for name in node.output}
    last = [name for name in (f"y{LENGTH}", f"s{LENGTH}") if name in made]

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TYPES[dtype], ["rows", size])

    graph = helper.make_graph(
        nodes,
        "chain",
        [info(name) for name in given],
        [info(name) for name in last],
        [numpy_helper.from_array(value, name) for name, value in weights.items() if name in used],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 23), (DOMAIN, VERSION), (SKIP, 1))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _attributes(op: str, domain: str) -> list[onnx.AttributeProto]:
    if op in ("Add", "ReduceMean", "Sub", "Sum"):
        return []
    found: dict[str, float | int | list[int]] = {}
    if op != "Center":
        found["epsilon"] = EPSILON
    if not op.startswith("Skip"):
        found["axis"] = -1
    return [helper.make_attribute(name, value) for name, value in found.items()]


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
    """How many times faster than ``method`` our kernel is, should be, and could be at most."""

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
