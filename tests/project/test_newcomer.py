"""A newcomer's way: the source distribution, the wheel from it, a fresh environment, README.

README is followed from its top to its bottom with nothing but the wheel, what pip installs beside
it, and the shipped model.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.test_readme import README, ROOT

pytestmark = pytest.mark.slow

_SDIST = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
_MOST_SDIST_BYTES = 1 << 20
_NEWEST_GLIBC = (2, 28)  # of manylinux_2_28, which the release promises
# What takes the sources, or the extra for the server, with the test that follows it.
_ELSEWHERE = {
    "make demo\nmake test\n": ".ci/run",
    "$ onnxfold serve": "tests/serving/server/test_serving.py",
}


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command as a new user would: without this checkout on Python's path."""
    names = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")}
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
    needed = ("auditwheel", "cmake", "ninja", "scikit-build-core")
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", *needed, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def sdist(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(builder / "python", "-c", _SDIST, folder, cwd=ROOT)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(builder: Path, sdist: Path) -> Path:
    words = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", sdist.parent)
    run(builder / "python", *words, sdist, cwd=sdist.parent)
    (made,) = sdist.parent.glob("*.whl")
    return made


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
    for name in ("onnxfold/py.typed", "onnxfold/report/report.html", "onnxfold/__main__.py"):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "models/"))]


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is for Linux")
def test_the_wheel_suits_old_systems_too(builder: Path, wheel: Path) -> None:
    said = run(builder / "auditwheel", "show", wheel, cwd=wheel.parent)
    major, minor = re.findall(r'platform tag:\s+"manylinux_(\d+)_(\d+)_', said)[0]
    assert (int(major), int(minor)) <= _NEWEST_GLIBC, said


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
            shell(text.replace("$ ", "").replace("onnxfold[ort]", f"{wheel}[ort]"), tmp_path)
        ran += 1
    assert ran == 6
    home = run(python, "-c", "import onnxfold; print(onnxfold.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / ".venv")


def shell(script: str, folder: Path) -> str:
    """Run lines of README in a shell that has the environment, and stop at the first that fails."""
    return run("bash", "-ec", f"source .venv/bin/activate\n{script}", cwd=folder)


@pytest.mark.parametrize("test", _ELSEWHERE.values())
def test_what_is_followed_elsewhere_is(test: str) -> None:
    assert re.search("README|readme|two commands", (ROOT / test).read_text(encoding="utf-8"))
