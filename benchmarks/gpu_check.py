"""The whole correctness list of the CUDA kernels on a GPU, then under compute-sanitizer.

    python -m benchmarks.gpu_check [--list thorough] [--tools memcheck racecheck ...]

Builds the driver for this GPU, or takes a built one (--driver), runs CHECKS of
tests/custom_ops/cuda_list.py in full (--list quick: in part, none: not at all) and what a device
alone can show (cuda_device_list.py), then the quick part of CHECKS under each tool. What has not
begun when the budget is spent is named, with the command that runs it. One part for each call:

    python -m benchmarks.gpu_check --tools
    for tool in memcheck racecheck initcheck synccheck; do
      python -m benchmarks.gpu_check --list none --tools $tool; done

Building needs nvcc and CMake; all needs CuPy, NumPy, ml_dtypes, onnx and onnx-ir. Exits 1 if
anything fails or is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu import BUILD, ROOT, build, device
from benchmarks.harness import BUDGET, Budget, arguments, failed
from tests.custom_ops.cuda_device_list import ON_DEVICE_ALONE, NotHereError
from tests.custom_ops.cuda_kernels import CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS, Check

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND_SOMETHING = 99
LONGEST_CHECK = 45.0  # seconds that the last check under a tool may take beyond the budget
NAMES = tuple(check.__name__ for check in (*CHECKS, *ON_DEVICE_ALONE))


@dataclass(slots=True)
class Outcome:
    """How many checks and tools failed, and which have not begun."""

    failures: int = 0
    left: list[str] = field(default_factory=list)


def run(kernels: Kernels, checks: Sequence[Check], budget: Budget, *, thorough: bool) -> Outcome:
    """Each check is printed with its time, as soon as it ends."""
    found = Outcome()
    for check in checks:
        if budget.spent:
            found.left.append(check.__name__)
            continue
        start, outcome = time.perf_counter(), "passed"
        try:
            check(kernels, thorough)
        except NotHereError as reason:
            outcome = f"not run: {reason}"
        except Exception as error:  # said by name; the others still run
            found.failures += 1
            failed(check.__name__, error)
            continue
        print(f"{check.__name__}: {outcome}, {time.perf_counter() - start:.1f} s", flush=True)
    return found


def run_under(tool: str, driver: Path, checks: Sequence[str], budget: Budget) -> int:
    """1 where the quick list fails under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        print(f"{tool}: FAILED, compute-sanitizer is not on the PATH")
        return 1
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    command += [sys.executable, "-m", "benchmarks.gpu_check", "--driver", str(driver)]
    command += ["--list", "quick", "--budget", str(budget.left), "--checks", *checks, "--tools"]
    print(f"{tool}:", flush=True)
    outcome = ended(command, budget.left + LONGEST_CHECK)
    print(f"{tool}: {outcome}", flush=True)
    return int(outcome != "passed")


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


def run_tools(tools: Sequence[str], driver: Path, checks: Sequence[str], budget: Budget) -> Outcome:
    found = Outcome()
    for tool in tools:
        if budget.spent:
            found.left.append(tool)
        else:
            found.failures += run_under(tool, driver, checks, budget)
    return found


def rest(options: argparse.Namespace, listed: Outcome, under: Outcome) -> Iterator[str]:
    """The options of the commands that run what is left."""
    if listed.left:
        yield f"--list {options.list} --checks {' '.join(listed.left)} --tools"
    if under.left:
        yield f"--list none --tools {' '.join(under.left)}"


def parsed() -> argparse.Namespace:
    return arguments(
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


def main() -> int:
    """Run all; the exit status."""
    options = parsed()
    budget, found = Budget(options.budget), device()
    driver = options.driver.resolve() if options.driver else build(options.build)
    print(f"{found.name}, compute capability {found.capability / 10}", flush=True)
    listed, thorough = Outcome(), options.list == "thorough"
    if options.list != "none":
        # The tools look at the kernels: the rest makes contexts and graphs of its own.
        every = (*CHECKS, *ON_DEVICE_ALONE) if thorough else CHECKS
        checks = [check for check in every if check.__name__ in options.checks]
        listed = run(Kernels(driver, CudaMemory()), checks, budget, thorough=thorough)
    under = run_tools(options.tools, driver, options.checks, budget)
    for more in rest(options, listed, under):
        print(f"the budget is spent; left: python -m benchmarks.gpu_check {more}")
    failures = listed.failures + under.failures
    left = len(listed.left) + len(under.left)
    print("all passed" if failures + left == 0 else f"{failures} FAILED, {left} left")
    return int(failures + left > 0)


if __name__ == "__main__":
    sys.exit(main())
