"""llama.cpp accepts a checkpoint with weightless norms, and computes the same with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from onnxfold.checkpoint import fold_checkpoint
from tests.checkpoint.packages import installed, pip, run

PROGRAM = Path(__file__).parent / "llama_cpp.py"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp as a package, and what its converter imports."""
    return installed(tmp_path_factory.mktemp("packages"), "xllamacpp", "sentencepiece")


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converter is in the sources of llama-cpp-python, and in no wheel."""
    folder = tmp_path_factory.mktemp("sources")
    name = "llama-cpp-python"
    pip("download", "--quiet", "--no-deps", "--no-binary", name, "--dest", folder, name)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    (found,) = folder.glob("*/vendor/llama.cpp/convert_hf_to_gguf.py")
    return found


@pytest.mark.slow
def test_llama_cpp_takes_a_weightless_checkpoint(
    packages: Path, converter: Path, tmp_path: Path
) -> None:
    """What it computes of the two checkpoints errs as much from float64."""
    run(packages, PROGRAM, "make", tmp_path / "in")
    assert len(fold_checkpoint(tmp_path / "in", tmp_path / "out").folded) == 5
    errors = []
    for name in ("in", "out"):
        file = tmp_path / f"{name}.gguf"
        run(packages, converter, tmp_path / name, "--outtype", "f32", "--outfile", file)
        errors.append(float(run(packages, PROGRAM, "error", tmp_path / "in", file).split()[-1]))
    assert errors[1] <= 2 * errors[0]
    assert errors[0] < 1e-4  # of logarithms between 0 and 20
