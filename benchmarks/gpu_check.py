"""The whole correctness list of the CUDA kernels on a GPU, then under compute-sanitizer.

    python -m benchmarks.gpu_check [--list thorough] [--tools memcheck racecheck ...]

Builds the driver for this GPU, or takes a built one (--driver), runs CHECKS of
tests/custom_ops/cuda_list.py in full (--list quick: in part, none: not at all) and what a device
alone can show (cuda_device_list.py), then the quick part of CHECKS under each tool. Where a command
may take minutes only, one part for each call:

    for tool in memcheck racecheck initcheck synccheck; do
      python -m benchmarks.gpu_check --list none --tools $tool; done

Building needs nvcc and CMake; all needs CuPy, NumPy, ml_dtypes, onnx and onnx-ir. Exits 1 if
anything fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import BUILD, ROOT, build, device
from tests.custom_ops.cuda_device_list import ON_DEVICE_ALONE, NotHereError
from tests.custom_ops.cuda_kernels import CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS, Check

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND_SOMETHING = 99


def run(kernels: Kernels, checks: Sequence[Check], *, thorough: bool) -> int:
    """The number of checks that fail; each is printed with its time."""
    failures = 0
    for check in checks:
        start, outcome = time.perf_counter(), "passed"
        try:
            check(kernels, thorough)
        except NotHereError as reason:
            outcome = f"not run: {reason}"
        except (AssertionError, RuntimeError, OSError):
            failures, outcome = failures + 1, "FAILED"
            traceback.print_exc()
        print(f"{check.__name__}: {outcome}, {time.perf_counter() - start:.1f} s", flush=True)
    return failures


def run_under(tool: str, driver: Path) -> int:
    """1 where the quick list fails under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        print(f"{tool}: FAILED, compute-sanitizer is not on the PATH")
        return 1
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    command += [sys.executable, "-m", "benchmarks.gpu_check", "--driver", str(driver)]
    command += ["--list", "quick", "--tools"]
    print(f"{tool}:", flush=True)
    done = subprocess.run(command, check=False, cwd=ROOT)
    print(f"{tool}: {'passed' if done.returncode == 0 else f'FAILED, exit {done.returncode}'}")
    return int(done.returncode != 0)


def main() -> int:
    """Run all; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--driver", type=Path, help="a built driver: nothing is compiled")
    parser.add_argument("--list", choices=("thorough", "quick", "none"), default="thorough")
    parser.add_argument("--tools", nargs="*", choices=TOOLS, default=TOOLS)
    options = parser.parse_args()
    found = device()
    driver = options.driver.resolve() if options.driver else build(options.build)
    print(f"{found.name}, compute capability {found.capability / 10}", flush=True)
    failures, thorough = 0, options.list == "thorough"
    if options.list != "none":
        # The tools look at the kernels: the rest makes contexts and graphs of its own.
        checks = (*CHECKS, *ON_DEVICE_ALONE) if thorough else CHECKS
        failures += run(Kernels(driver, CudaMemory()), checks, thorough=thorough)
    failures += sum(run_under(tool, driver) for tool in options.tools)
    print("all passed" if failures == 0 else f"{failures} FAILED")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
