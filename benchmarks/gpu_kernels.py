"""Time the CUDA kernels against other kernels and a device copy of as many bytes, in one run.

    python -m benchmarks.gpu_kernels [--out benchmarks/results/gpu_kernels.csv] [--repeats 30]

Each method computes the same operation on the same tensors; a CUDA graph of many calls is replayed
and timed by events. `cold`: the calls go round buffers that are together four times the second
level cache. `warm`: one set of buffers. Methods are timed in turns within each shape. Bytes are the
sizes of the tensors that must be read and written, so that bytes/s compare with the copy's. A
method whose result is wrong, or that fails, is named in one line and not timed; where it is ours,
the exit status is 1. What is not installed is left out: Triton, onnxruntime-gpu (with the library
of `make cuda`). Rows are written after each shape. Needs PyTorch, a CUDA device, and nvcc and CMake
or a built driver. When the budget is spent what is left is counted, and the exit status is 1; with
--resume the next call continues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu import BUILD, build, device, gpu_conditions
from benchmarks.gpu_methods import (
    EPSILON,
    METHODS,
    OPERATIONS,
    OURS,
    Call,
    Method,
    Operation,
    Tensors,
    UnavailableError,
)
from benchmarks.harness import BUDGET, Budget, arguments, failed, quantiles
from benchmarks.rows import RESULTS, Row, append, read, tell

LARGE = 128 << 20  # bytes of a tensor: beyond any second level cache
SIZES = (64, 128, 256, 512, 768, 1024, 2048, 4096, 5120, 8192, 16384, 32768)
ODD = (767, 1023, 4095)
SMALL = ((1, 4096), (197, 768), (512, 768), (512, 4096), (2048, 1024))
LONG = ((1, 1 << 20), (16, 1 << 18))  # which blocks share
LONGEST = 1 << 16  # of a row that kernels hold in one block, as others than ours and torch's do
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
MOST_CALLS = 400
COPY = "copy"


@dataclass(frozen=True, slots=True)
class Shape:
    """An operation at a shape, and how its calls go round the buffers."""

    operation: str
    dtype: str
    rows: int
    size: int
    warm: bool

    @property
    def what(self) -> Operation:
        return OPERATIONS[self.operation]

    @property
    def bytes(self) -> int:
        return self.what.streams * self.rows * self.size * TYPES[self.dtype].itemsize

    @property
    def sets(self) -> int:
        if self.warm:
            return 1
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        return min(MOST_CALLS, 1 + -(-4 * cache // self.bytes))

    @property
    def calls(self) -> int:
        return max(self.sets, 20)


def graph_of(call: Call, shape: Shape) -> tuple[torch.cuda.CUDAGraph, list[object]]:
    """A graph of the calls, and what they gave, which has to stay alive."""
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(shape.sets):
            call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(i % shape.sets) for i in range(shape.calls)]
    return graph, kept


def replay(graph: torch.cuda.CUDAGraph) -> float:
    """Seconds of one replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def copy_call(shape: Shape) -> Call:
    """A device copy that reads and writes as many bytes as the operation."""
    count = shape.bytes // 2
    buffers = [torch.empty(2, count, dtype=torch.uint8, device="cuda") for _ in range(shape.sets)]
    for buffer in buffers:
        buffer.random_(0, 255)
    return lambda i: buffers[i][1].copy_(buffers[i][0])


def reference(shape: Shape, tensors: Tensors) -> torch.Tensor:
    """Y of the first rows of set 0 in float64."""
    x = tensors.x[0][:16]
    residual = tensors.residual[0]
    if residual is not None:
        x = x + residual[:16]
    v = x.double()
    if shape.what.layer or shape.operation == "center":
        v = v - v.mean(-1, keepdim=True)
    if shape.operation != "center":
        squares = v.square().sum(-1, keepdim=True)
        count = shape.size
        if shape.operation == "crms":
            squares, count = squares + v.sum(-1, keepdim=True).square(), count + 1
        v = v / (squares / count + EPSILON).sqrt()
    if tensors.scale is not None:
        v = v * tensors.scale.double()
    return v if tensors.bias is None else v + tensors.bias.double()


def is_right(call: Call, shape: Shape, tensors: Tensors) -> bool:
    """Whether y is near float64: a few units of the element type, of values up to eight."""
    expected = reference(shape, tensors)
    given = call(0)
    y = (tensors.y[0] if given is None else given[0])[:16].double()
    unit = {"float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}[shape.dtype]
    return bool((y - expected).abs().max() <= 2 * unit * (1 + expected.abs().max()))


def graphs_of(
    shape: Shape, tensors: Tensors, driver: Path, methods: Mapping[str, Method]
) -> dict[str, tuple[torch.cuda.CUDAGraph, list[object]]]:
    """A captured graph for each method that there is, ours first, and for the copy."""
    graphs = {}
    for name, method in methods.items():
        if shape.size > LONGEST and name not in (OURS, "torch"):
            continue
        try:
            call = method(driver, shape.what, tensors)
            if is_right(call, shape, tensors):
                graphs[name] = graph_of(call, shape)
            else:
                print(f"{shape}: {name} is wrong and is not timed", flush=True)
        except UnavailableError:
            continue
        except Exception as error:  # said by name; the others still run
            failed(f"{shape}: {name}", error)
    graphs[COPY] = graph_of(copy_call(shape), shape)
    return graphs


def onnxruntime_times(
    shape: Shape, tensors: Tensors, repeats: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds of a call inside ONNX Runtime, of its own operator and of ours."""
    try:
        from benchmarks import gpu_ort
    except ImportError:
        return {}
    found = {}
    for ours in (False, True):
        form = OURS if ours else gpu_ort.FORMS.get(shape.operation, ("",))[0]
        try:
            found[f"ort {form}"] = gpu_ort.seconds(
                shape.operation,
                shape.what,
                tensors,
                ours=ours,
                calls=min(shape.calls, 100),
                repeats=repeats,
            )
        except UnavailableError:
            continue
        except Exception as error:  # said by name; the others still run
            failed(f"{shape}: ort {form}", error)
    return found


def measure(
    shape: Shape, driver: Path, methods: Mapping[str, Method], repeats: int
) -> Iterator[Row]:
    """One row for each method."""
    tensors = Tensors(shape.what, shape.rows, shape.size, TYPES[shape.dtype], shape.sets)
    graphs = graphs_of(shape, tensors, driver, methods)
    times = {name: np.empty(repeats) for name in graphs}
    for repeat in range(-3, repeats):
        for name, (graph, _) in graphs.items():
            elapsed = replay(graph) / shape.calls
            if repeat >= 0:
                times[name][repeat] = elapsed
    times |= onnxruntime_times(shape, tensors, repeats)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    for name, values in times.items():
        # One method at one shape; `of_copy` and `times_ours` are ratios of medians.
        yield Row(
            **gpu_conditions(),
            operation=shape.operation,
            dtype=shape.dtype,
            rows=shape.rows,
            size=shape.size,
            cache="warm" if shape.warm else "cold",
            method=name,
            calls=shape.calls,
            **quantiles(1e6 * values, 3, us=50, p10=10, p90=90),
            gigabytes_per_s=round(shape.bytes / medians[name] / 1e9, 1),
            of_copy=round(medians[COPY] / medians[name], 3),
            times_ours=round(medians[name] / medians[OURS], 3) if OURS in medians else 0.0,
        )


def shapes(operations: list[str], dtypes: list[str], *, small: bool) -> Iterator[Shape]:
    """Yield tensors beyond the cache, and tensors of single requests."""
    for operation in operations:
        for dtype in dtypes:
            sizes = ODD if operation == "crms" else (*SIZES, *ODD)
            for size in sizes:
                rows = LARGE // (size * TYPES[dtype].itemsize)
                yield Shape(operation, dtype, rows, size, warm=False)
            if small:
                for rows, size in (*SMALL, *LONG):
                    for warm in (False, True):
                        yield Shape(operation, dtype, rows, size, warm)


def measured(path: Path) -> set[tuple[str, ...]]:
    """The shapes that the file has of this device."""
    names = ("operation", "dtype", "rows", "size", "cache")
    rows = read(path) if path.exists() else []
    return {tuple(row[name] for name in names) for row in rows if row["device"] == device().name}


def key(shape: Shape) -> tuple[str, ...]:
    cache = "warm" if shape.warm else "cold"
    return shape.operation, shape.dtype, str(shape.rows), str(shape.size), cache


def main() -> int:
    """Measure and append what the command line asks for; 1 where shapes are left or ours fails."""
    options = arguments(
        __doc__,
        {
            "--out": RESULTS / "gpu_kernels.csv",
            "--build": BUILD,
            "--driver": {"type": Path, "help": "a built driver: nothing is compiled"},
            "--resume": {"action": "store_true", "help": "leave out what the file has"},
            "--budget": BUDGET,
            "--repeats": 30,
            "--operations": tuple(OPERATIONS),
            "--dtypes": tuple(TYPES),
            "--no-small": {"action": "store_true", "help": "tensors beyond the cache alone"},
        },
    )
    budget, _ = Budget(options.budget), device()
    driver = options.driver.resolve() if options.driver else build(options.build)
    known = measured(options.out) if options.resume else set()
    every = shapes(options.operations, options.dtypes, small=not options.no_small)
    wanted = [shape for shape in every if key(shape) not in known]
    for done, shape in enumerate(wanted):
        if budget.ended(f"{len(wanted) - done} of {len(wanted)} shapes are left"):
            return 1
        with budget.case(str(shape)):
            rows = list(measure(shape, driver, METHODS, options.repeats))
            append(options.out, rows)
            tell(rows)
            budget.incomplete |= all(row.method != OURS for row in rows)
            torch.cuda.empty_cache()
    return int(budget.incomplete)


if __name__ == "__main__":
    sys.exit(main())
