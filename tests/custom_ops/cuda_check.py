"""The whole correctness list on a GPU, then under compute-sanitizer, in one call.

    python -m tests.custom_ops.cuda_check [--build build/cuda] [--tools memcheck racecheck initcheck]

Builds the driver (custom_ops/cuda/driver.cpp) for this machine's GPU where it is not built, runs
CHECKS of cuda_list.py in full, more than 2^31 elements where memory allows, a captured graph, and a
session of ONNX Runtime on CUDA where it has that provider; then the quick part of CHECKS under each
tool. Needs nvcc, CMake, CuPy, NumPy, ml_dtypes and onnx-ir; not pytest. Exits 1 if anything fails.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.calls import random_inputs
from tests.custom_ops.bounds import assert_outputs_right
from tests.custom_ops.cuda_kernels import Arguments, CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS

ROOT = Path(__file__).parents[2]
DRIVER = "libonnxfold_cuda_driver.so"
TOOLS = ("memcheck", "racecheck", "initcheck")
FAILED_UNDER_TOOL = 99


def build(folder: Path, architecture: str) -> Path:
    """The driver in `folder`, built where it is missing, for one compute capability."""
    driver = folder / DRIVER
    if not driver.exists():
        options = ["-DONNXFOLD_CUDA=ON", "-DONNXFOLD_DRIVER=ON"]
        options.append(f"-DONNXFOLD_CUDA_ARCHITECTURES={architecture}")
        subprocess.run(
            ["cmake", "-S", str(ROOT / "custom_ops"), "-B", str(folder), *options], check=True
        )
        jobs = str(min(8, os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", str(folder), "--parallel", jobs], check=True)
    return driver


def more_elements_than_32_bits_count(kernels: Kernels, thorough: bool) -> None:
    """Rows beyond 2^31 elements: the last is compared, and one that a 32-bit offset would hit."""
    del thorough
    runtime = CudaMemory().runtime
    rows, size = 140_000, 16_384
    free, _ = runtime.memGetInfo()
    if free < 3 * rows * size * 2:
        print("  skipped: less than 14 GB of device memory are free")
        return
    name, dtype = "LayerNorm", ir.DataType.FLOAT16
    block = random_inputs(name, (1000, size), dtype)["X"]
    x, y = runtime.malloc(rows * size * 2), runtime.malloc(rows * size * 2)
    try:
        for begin in range(0, rows, 1000):
            runtime.memcpy(x + begin * size * 2, block.ctypes.data, block.nbytes, 1)
        arguments = Arguments(x=x, y=y, rows=rows, size=size, epsilon=1e-5)
        kernels.call(name, dtype, arguments)
        got = np.empty_like(block)
        for begin in (0, 131_000, rows - 1000):
            runtime.memcpy(got.ctypes.data, y + begin * size * 2, got.nbytes, 2)
            assert_outputs_right(name, {"X": block}, [got])
    finally:
        runtime.free(x)
        runtime.free(y)


def a_captured_graph_reads_new_contents(kernels: Kernels, thorough: bool) -> None:
    """A call is captured; its replay sees what the inputs hold then."""
    del thorough
    import cupy

    name, dtype = "AddLayerNormWithSum", ir.DataType.FLOAT16
    first, second = (random_inputs(name, (300, 1000), dtype, seed=seed) for seed in (0, 1))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        buffers = {key: cupy.asarray(array) for key, array in first.items()}
        y, total = cupy.empty_like(buffers["X"]), cupy.empty_like(buffers["X"])
        pointers = {"x": buffers["X"], "residual": buffers["residual"], "y": y, "sum": total}
        arguments = Arguments(
            rows=300, size=1000, epsilon=1e-5, **{key: a.data.ptr for key, a in pointers.items()}
        )
        kernels.call(name, dtype, arguments, stream=stream.ptr)
        stream.begin_capture()
        kernels.call(name, dtype, arguments, stream=stream.ptr)
        graph = stream.end_capture()
        for inputs in (second, first):
            for key, array in inputs.items():
                buffers[key].set(array)
            graph.launch(stream)
            stream.synchronize()
            assert_outputs_right(name, inputs, [y.get(), total.get()])


def onnx_runtime_runs_every_op_on_cuda(kernels: Kernels, thorough: bool) -> None:
    """Kernels against bodies in sessions on CUDA, where this ONNX Runtime has the provider."""
    del kernels, thorough
    import onnxruntime as ort

    from onnxfold.runtime import CUDA_PROVIDERS, self_test

    if CUDA_PROVIDERS[0] not in ort.get_available_providers():
        print(f"  skipped: onnxruntime {ort.__version__} has no {CUDA_PROVIDERS[0]}")
        return
    result = self_test(CUDA_PROVIDERS[0])
    assert result.passed, result.failures


ON_DEVICE_ALONE = (
    more_elements_than_32_bits_count,
    a_captured_graph_reads_new_contents,
    onnx_runtime_runs_every_op_on_cuda,
)


def run_list(
    kernels: Kernels, checks: Sequence[Callable[[Kernels, bool], None]], thorough: bool
) -> int:
    """The number of checks that fail; each is printed."""
    failures = 0
    for check in checks:
        start = time.perf_counter()
        try:
            check(kernels, thorough)
        except (AssertionError, RuntimeError):
            failures += 1
            traceback.print_exc()
        gc.collect()
        print(f"{check.__name__}: {time.perf_counter() - start:.1f} s", flush=True)
    print(f"{len(checks)} checks, {failures} failures")
    return failures


def run_under(tool: str, driver: Path) -> int:
    """The quick list under one tool of compute-sanitizer; 1 where it fails."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        print(f"{tool}: compute-sanitizer is not on the PATH")
        return 1
    command = [program, "--tool", tool, "--error-exitcode", str(FAILED_UNDER_TOOL)]
    command += [sys.executable, "-m", __spec__.name, "--driver", str(driver), "--quick", "--tools"]
    done = subprocess.run(command, check=False, cwd=ROOT)
    print(f"{tool}: {'passed' if done.returncode == 0 else f'FAILED ({done.returncode})'}")
    return int(done.returncode != 0)


def device() -> dict[str, Any]:
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "name": properties["name"].decode(),
        "capability": f"{properties['major']}{properties['minor']}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cuda")
    parser.add_argument("--driver", type=Path, help="a driver that is built already")
    parser.add_argument("--quick", action="store_true", help="the quick part of the list")
    parser.add_argument("--tools", nargs="*", choices=TOOLS, default=TOOLS)
    options = parser.parse_args()
    found = device()
    driver = options.driver or build(options.build.resolve(), found["capability"])
    print(f"{found['name']}, sm_{found['capability']}, {driver}", flush=True)
    kernels = Kernels(driver, CudaMemory())
    checks = CHECKS if options.quick else (*CHECKS, *ON_DEVICE_ALONE)
    failures = run_list(kernels, checks, not options.quick)
    failures += sum(run_under(tool, driver) for tool in options.tools)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
