"""The whole correctness list of the CUDA kernels on a GPU, then under compute-sanitizer.

    python -m benchmarks.gpu_check [--list thorough] [--tools memcheck racecheck ...]

Builds the driver for this GPU, or takes a built one (--driver), runs CHECKS of
tests/custom_ops/cuda_list.py in full (--list quick: in part, none: not at all) and what a device
alone can show (cuda_device_list.py), then the quick part of CHECKS under each tool. What has not
begun when the budget is spent is named, as --checks and --tools take it. One part for each call:

    python -m benchmarks.gpu_check --tools
    for tool in memcheck racecheck initcheck synccheck; do
      python -m benchmarks.gpu_check --list none --tools $tool; done

Building needs nvcc and CMake; all needs CuPy, NumPy, ml_dtypes, onnx and onnx-ir. Exits 1 if
anything fails or is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import BUILD, ROOT, build, device
from benchmarks.harness import BUDGET, Budget, arguments
from tests.custom_ops.cuda_device_list import ON_DEVICE_ALONE, NotHereError
from tests.custom_ops.cuda_kernels import CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS, Check

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND_SOMETHING = 99
LONGEST_CHECK = 45.0  # seconds that the last check under a tool may take beyond the budget
NAMES = tuple(check.__name__ for check in (*CHECKS, *ON_DEVICE_ALONE))


def run(kernels: Kernels, checks: Sequence[Check], budget: Budget, *, thorough: bool) -> None:
    """Each check is printed with its time, as soon as it ends."""
    for check in checks:
        name = check.__name__
        if budget.ended(f"{name} is left"):
            continue
        start, outcome = time.perf_counter(), "passed"
        with budget.case(name):
            try:
                check(kernels, thorough)
            except NotHereError as reason:
                outcome = f"not run: {reason}"
            print(f"{name}: {outcome}, {time.perf_counter() - start:.1f} s", flush=True)


def run_under(tool: str, driver: Path, checks: Sequence[str], budget: Budget) -> None:
    """Run the quick list under a tool of compute-sanitizer; RuntimeError where it fails."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise RuntimeError("compute-sanitizer is not on the PATH")
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    command += [sys.executable, "-m", "benchmarks.gpu_check", "--driver", str(driver)]
    command += ["--list", "quick", "--budget", str(budget.left), "--checks", *checks, "--tools"]
    print(f"{tool}:", flush=True)
    outcome = ended(command, budget.left + LONGEST_CHECK)
    print(f"{tool}: {outcome}", flush=True)
    budget.incomplete |= outcome != "passed"


def ended(command: Sequence[str], seconds: float) -> str:
    """How a command ended; with all that it started, after so many seconds."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"FAILED, not at its end after {seconds:.0f} s"
    return "passed" if status == 0 else f"FAILED, exit {status}"


def run_tools(tools: Sequence[str], driver: Path, checks: Sequence[str], budget: Budget) -> None:
    for tool in tools:
        if not budget.ended(f"{tool} is left"):
            with budget.case(tool):
                run_under(tool, driver, checks, budget)


def main() -> int:
    """Run all; the exit status."""
    options = arguments(
        __doc__,
        {
            "--build": BUILD,
            "--driver": {"type": Path, "help": "a built driver: nothing is compiled"},
            "--list": {"choices": ("thorough", "quick", "none"), "default": "thorough"},
            "--checks": {"nargs": "+", "choices": NAMES, "default": NAMES, "metavar": "NAME"},
            "--tools": TOOLS,
            "--budget": BUDGET,
        },
    )
    budget, found = Budget(options.budget), device()
    driver = options.driver.resolve() if options.driver else build(options.build)
    print(f"{found.name}, compute capability {found.capability / 10}", flush=True)
    thorough = options.list == "thorough"
    if options.list != "none":
        # The tools look at the kernels: the rest makes contexts and graphs of its own.
        every = (*CHECKS, *ON_DEVICE_ALONE) if thorough else CHECKS
        checks = [check for check in every if check.__name__ in options.checks]
        run(Kernels(driver, CudaMemory()), checks, budget, thorough=thorough)
    run_tools(options.tools, driver, options.checks, budget)
    print("some FAILED or are left" if budget.incomplete else "all passed")
    return int(budget.incomplete)


if __name__ == "__main__":
    sys.exit(main())
