"""A newcomer's way: the source distribution, the wheel from it, a fresh environment, README."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.test_readme import ROOT, commands

pytestmark = pytest.mark.slow

_SDIST = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
_MOST_SDIST_BYTES = 1 << 20


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command as a new user would: without this checkout on Python's path."""
    names = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")}
    done = subprocess.run(
        words, cwd=cwd, env=names, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer") / "venv"
    venv.create(folder, with_pip=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def sdist(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(environment / "python", "-m", "pip", "install", "-q", "scikit-build-core", cwd=folder)
    run(environment / "python", "-c", _SDIST, folder, cwd=ROOT)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(environment: Path, sdist: Path) -> Path:
    words = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", sdist.parent, sdist)
    run(environment / "python", *words, cwd=sdist.parent)
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


def test_the_commands_of_the_readme_run_from_the_wheel_alone(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    words = ("-m", "pip", "install", "-q", f"{wheel}[ort]")
    run(environment / "python", *words, cwd=tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    home = run(
        environment / "python", "-c", "import onnxfold; print(onnxfold.__file__)", cwd=tmp_path
    )
    assert Path(home.strip()).is_relative_to(environment.parent)
    ran = [command for command in commands() if command.startswith("onnxfold ")]
    assert len(ran) > 3
    for command in ran:
        run(environment / "onnxfold", *command.split()[1:], cwd=tmp_path)
    report = tmp_path / "report.html"
    digits = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
    run(environment / "onnxfold", "optimize", digits, "new.onnx", "--report", report, cwd=tmp_path)
    assert report.stat().st_size > 10_000
