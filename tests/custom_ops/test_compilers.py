"""The compilers that users have, switches of the build, and what is done where none is fit."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

OPS = Path(__file__).parents[2] / "custom_ops"
# Beside c++, with which `make demo` installs them; `.ci/run` has its warnings be errors too.
COMPILERS = ("g++-11", "g++-12", "clang++-14")
NVCC = shutil.which("nvcc")
LIBRARIES = ("libonnxfold_ops.so", "libonnxfold_weights.so")


def path_of(name: str) -> Path | None:
    """Return the file of a compiler behind all links."""
    found = shutil.which(name)
    return None if found is None else Path(found).resolve()


present = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"))
    for name in COMPILERS
    if path_of(name) is None or path_of(name) != path_of("c++")
]


def configured(folder: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    options = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DONNXFOLD_STRICT=ON"]
    command = ["cmake", "-S", str(OPS), "-B", str(folder), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def installed(folder: Path) -> set[str]:
    build = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count())]
    install = ["cmake", "--install", str(folder), "--prefix", str(folder)]
    for command in (build, install):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {path.name for path in (folder / "onnxfold").rglob("*.so")}


def compiler_that_refuses(option: str, path: Path) -> str:
    """The machine's compiler, but for one option, which it says it does not know."""
    path.write_text(
        f'#!/bin/sh\nfor option in "$@"; do\n  case $option in *{option}*)\n'
        f'    echo "unknown: $option" >&2; exit 1;;\n  esac\ndone\nexec c++ "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other architectures have no levels")
def test_where_a_compiler_is_not_fit_all_goes_on_without_kernels(tmp_path: Path) -> None:
    compiler = compiler_that_refuses("-march=x86-64-v4", tmp_path / "compiler")
    done = configured(tmp_path / "build", compiler)
    assert done.returncode == 0
    assert "onnxfold is installed without its kernel library" in " ".join(done.stderr.split())
    assert "unknown: -march=x86-64-v4" in done.stderr
    assert installed(tmp_path / "build") == set()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", present)
def test_each_compiler_builds_the_libraries_without_a_warning(
    compiler: str, tmp_path: Path
) -> None:
    assert configured(tmp_path, compiler).returncode == 0
    assert installed(tmp_path) == set(LIBRARIES)


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_every_kernel_waits_for_the_one_before_where_launches_overlap(tmp_path: Path) -> None:
    """ONNXFOLD_PDL: a kernel that begins early must wait before it reads what another writes."""
    assert NVCC is not None
    switches = ["-DONNXFOLD_PDL", "-Werror=all-warnings"]
    options = ["-std=c++17", "-O3", f"-I{OPS / 'include'}", *switches]
    source, ptx = str(OPS / "cuda" / "kernels_bfloat16.cu"), tmp_path / "kernels.ptx"
    command = [NVCC, *options, "-arch=compute_90", "-ptx", source, "-o", str(ptx)]
    subprocess.run(command, check=True)
    kernels = ptx.read_text().split("\n.entry ")[1:]
    assert len(kernels) > 100
    for kernel in kernels:
        body, name = kernel.split("{", 1)[1], kernel.split("(", 1)[0]
        waits = body.find("griddepcontrol.wait")
        first = re.search(r"\b(?:ld|st|atom|red)\.(?!param)", body)
        assert first is not None, name
        assert 0 <= waits < first.start(), name
        assert waits < body.find("griddepcontrol.launch_dependents"), name
    options.append('-DONNXFOLD_ARCHITECTURES="90"')
    launch = [NVCC, *options, "-c", str(OPS / "cuda" / "launch.cpp"), "-o", str(tmp_path / "o")]
    subprocess.run(launch, check=True)
