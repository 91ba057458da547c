from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.operators.functions import SIGNATURES
from onnxfold.runtime.library import get_library_path
from tests.calls import call_model, random_inputs
from tests.custom_ops.bounds import allowed

RUNNER = Path(__file__).parent / "version_runner.py"
VERSIONS = ("1.17.3", "1.20.1", "1.24.4", "1.31.1")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every op in the types that NumPy can feed, by its kernel alone and with its body."""
    folder = tmp_path_factory.mktemp("cases")
    for name in SIGNATURES:
        for dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            inputs = random_inputs(name, (6, 70), dtype)
            arrays = {f"in_{key}": value for key, value in inputs.items()}
            for key, (exact, limit) in allowed(name, inputs).items():
                arrays |= {f"out_{key}": exact, f"bound_{key}": limit}
            for with_body in (False, True):
                stem = folder / f"{name}-{dtype.name}-{'body' if with_body else 'kernel'}"
                model = call_model(name, ("rows", 70), dtype, opset=17, with_body=with_body)
                stem.with_suffix(".onnx").write_bytes(model.SerializeToString())
                np.savez(stem.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]  # bool option
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_op_runs_in_onnxruntime(version: str, cases: Path, tmp_path: Path) -> None:
    # The older wheels were built against NumPy 1; the newest needs nothing particular.
    numpy = "numpy<2" if version < "1.19" else "numpy"
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", f"onnxruntime=={version}", numpy]
    subprocess.run(install, check=True)
    assert_passes(python, cases, version)


@pytest.mark.campaign
def test_every_op_runs_in_the_onnxruntime_at_hand(cases: Path) -> None:
    assert_passes(sys.executable, cases, "")


def assert_passes(python: str, cases: Path, version: str) -> None:
    command = [python, str(RUNNER), get_library_path(), str(cases)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"onnxruntime {version}" in done.stdout
    assert f"{len(list(cases.glob('*.onnx')))} models, 0 problems" in done.stdout
