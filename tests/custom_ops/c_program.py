"""run_model.c: built, and run on a model."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from tests.oracle import Array

__all__ = ["build", "pattern", "run"]

_HERE = Path(__file__).parent


def build(path: Path) -> Path:
    """Compile the program to a path; every warning is an error."""
    compiler = shutil.which("cc")
    assert compiler is not None
    include = _HERE.parents[1] / "custom_ops" / "include"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include}"]
    command = [compiler, *flags, str(_HERE / "run_model.c"), "-ldl", "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def run(
    program: Path, library: str, model: Path, shape: Sequence[int]
) -> tuple[list[Array], list[tuple[str, str]]]:
    """Outputs as flat arrays, and the (input, output) addresses of each probe."""
    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    command = [str(program), str(runtime), library, str(model), *map(str, shape)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    probes = [(line[1], line[2]) for line in lines if line[0] == "probe"]
    return [np.array(line, np.float32) for line in lines if line[0] != "probe"], probes


def pattern(count: int, shape: Sequence[int]) -> list[Array]:
    """The inputs that the program makes."""
    elements = np.arange(np.prod(shape), dtype=np.float32) % 7 - 3
    return [(elements + k).reshape(shape) for k in range(count)]
