"""Every program of examples/ is short, and runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import onnxfold
from onnxfold.runtime.library import get_library_path
from tests.custom_ops import c_program
from tests.examples import tiny_decoder
from tests.sessions import outputs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
# Where each example is run; one that is new has to be added, with its test.
RUN_HERE = {"plain.py", "hf_optimum.py", "genai.py", "cpp/run.cpp"}


def run(command: list[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_onnxfold() -> dict[str, str]:
    """Variables with which another Python finds these sources, and the library installed here."""
    return {"PYTHONPATH": str(ROOT), "ONNXFOLD_LIBRARY": str(get_library_path("cpu"))}


def differences(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"by at most (\S+)", printed)]


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own: optimum-onnx 0.1.0 needs transformers below 4.58.

    Packages of the tests' environment, such as torch, are found after its own.
    """
    folder = tmp_path_factory.mktemp("examples") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    frameworks = ("optimum-onnx[onnxruntime]==0.1.0", "torch==2.13.0", "onnxruntime-genai")
    needed = ("ml_dtypes", "onnx", "onnx-ir", "rich", "scipy", "typer")
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", *frameworks, *needed])
    return python


def test_every_example_is_short_and_has_its_test() -> None:
    programs = [path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".cpp")]
    assert {path.relative_to(EXAMPLES).as_posix() for path in programs} == RUN_HERE
    for path in programs:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 40, path


def test_plain_says_how_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "plain.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "usage: python plain.py IN.onnx\n")


def test_plain_onnxruntime() -> None:
    original, folded, kernels = differences(run([sys.executable, EXAMPLES / "plain.py", DIGITS]))
    assert original == 0
    # Logits below 32, behind some hundred roundings of values no larger.
    assert max(folded, kernels) < 100 * 32 * 2.0**-24


def test_cpp(tmp_path: Path) -> None:
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime"]
    include = next((p for p in places if Path(p, "onnxruntime_cxx_api.h").is_file()), None)
    if include is None:
        pytest.skip("no headers of ONNX Runtime: libonnxruntime-dev, or ONNXRUNTIME_INCLUDE")
    compiler = shutil.which("c++")
    assert compiler is not None
    program, fast = tmp_path / "run", tmp_path / "fast.onnx"
    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so.1").symlink_to(runtime)
    link: list[str | Path] = [runtime, f"-Wl,-rpath,{tmp_path}", "-o", program]
    run([compiler, "-std=c++17", "-I", include, EXAMPLES / "cpp" / "run.cpp", *link])
    onnxfold.optimize(DIGITS, fast, target="kernels")
    printed = run([program, fast, get_library_path()])
    (images,) = c_program.pattern(1, (1, 1, 8, 8))
    (expected,) = outputs(DIGITS, {"images": images})
    # std::cout prints six digits.
    np.testing.assert_allclose(np.array(printed.split(), float), expected.ravel(), rtol=1e-5)


@pytest.mark.slow
def test_optimum(other_python: Path, tmp_path: Path) -> None:
    make = (
        "import sys; from transformers import BertConfig, BertModel; "
        "BertModel(BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, "
        "num_attention_heads=2, intermediate_size=64)).save_pretrained(sys.argv[1])"
    )
    run([other_python, "-c", make, tmp_path / "bert"], HF_HUB_OFFLINE="1")
    program = EXAMPLES / "hf_optimum.py"
    printed = run([other_python, program, tmp_path / "bert"], HF_HUB_OFFLINE="1", **with_onnxfold())
    assert "5 norms folded" in printed
    # Normalised values below 8, behind some hundred roundings.
    assert max(differences(printed)) < 100 * 8 * 2.0**-24


@pytest.mark.slow
def test_genai(other_python: Path, tmp_path: Path) -> None:
    tiny_decoder.write(tmp_path / "model")
    printed = run(
        [other_python, EXAMPLES / "genai.py", tmp_path / "model", tmp_path / "fast"],
        **with_onnxfold(),
    )
    assert "2 norms folded" in printed
    assert "same tokens: True" in printed
