"""The emulation of the CUDA kernels as a shared object, compiled once for all test processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["build_emulation"]

HERE = Path(__file__).parent
OPS = HERE.parents[1] / "custom_ops"
SOURCES = (
    *(HERE / f"emulation{part}.cpp" for part in ("_float", "_half", "_brain", "")),
    *(OPS / "cuda" / "plan.cpp", OPS / "ort" / "table.cpp"),
)
# Unoptimised: compiling takes longer than running. The warnings are those of the library's build.
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


def build_emulation(folder: Path) -> Path:
    """The shared object in `folder`; another process that builds it is waited for."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None
    folder.mkdir(exist_ok=True)
    library = folder / "libemulation.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            command = [compiler, *FLAGS, f"-I{OPS / 'include'}"]
            objects = [folder / f"{source.stem}.o" for source in SOURCES]
            compilations = [
                subprocess.Popen([*command, "-c", str(source), "-o", str(target)])
                for source, target in zip(SOURCES, objects, strict=True)
            ]
            assert [process.wait() for process in compilations] == [0] * len(SOURCES)
            unfinished = folder / "unfinished.so"
            subprocess.run(
                [compiler, "-shared", *map(str, objects), "-o", str(unfinished)], check=True
            )
            unfinished.rename(library)
    return library
