"""The emulation of the CUDA kernels as a shared object, compiled once for all test processes.

It has `onnxfold_run`, and `RegisterCustomOps` as libonnxfold_ops_cuda has it, whose launches go to
the pretended devices of fake_cuda.cpp.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["build_emulation"]

HERE = Path(__file__).parent
OPS = HERE.parents[1] / "custom_ops"
SOURCES = (
    *(HERE / f"emulation{part}.cpp" for part in ("_float", "_half", "_bfloat16", "")),
    *(HERE / "fake_cuda.cpp", OPS / "cuda" / "plan.cpp", OPS / "cuda" / "launch.cpp"),
    *(OPS / "ort" / f"{part}.cpp" for part in ("table", "check", "kernel", "bind")),
)
# Unoptimized: compiling takes longer than running. The warnings are the same as in the library's
# build.
FLAGS = (
    *("-std=c++17", "-O0", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    *("-DONNXFOLD_CUDA", '-DONNXFOLD_ARCHITECTURES="75 90 ptx 80"'),
)


def build_emulation(folder: Path) -> Path:
    """The shared object in `folder`; another process that builds it is waited for.

    The folder may be one that other runs of the tests share: the file is of these sources' content.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None
    folder = folder.with_name(f"{folder.name}-{digest_of_sources()}")
    folder.mkdir(exist_ok=True)
    library = folder / "libemulation.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            command = [compiler, *FLAGS, f"-I{OPS / 'include'}", f"-I{HERE / 'fake_cuda'}"]
            objects = [folder / f"{source.parent.name}_{source.stem}.o" for source in SOURCES]
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


def digest_of_sources() -> str:
    """Of all that the shared object is compiled from, and how."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for folder in (OPS, HERE):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".cpp", ".h", ".inc", ".def"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
