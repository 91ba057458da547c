"""Models on which ONNX Runtime would end the process: an error that names the node, or no session.

Each test runs in a process of its own, since the fault that it shows ends the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.builders import model_of

_FLOATS = (onnx.TensorProto.FLOAT, [4, 8])
_NAMED = "bad.onnx: the empty bias of LayerNormalization->n ends the process of ONNX Runtime"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A LayerNormalization whose bias has an empty name, as the standard allows."""
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "W"], ["h"]),
        make("LayerNormalization", ["h", "g", ""], ["n"]),
        make("MatMul", ["n", "V"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(8, 8)).astype("f") for name in "WV"}
    model = model_of(nodes, {"x": _FLOATS}, {"y": _FLOATS}, {**weights, "g": np.ones(8, "f")})
    onnx.save(model, tmp_path / "bad.onnx")
    return tmp_path / "bad.onnx"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "onnxfold", *words)


def test_a_model_that_would_end_the_process_is_folded_and_its_session_is_not_counted(
    bad: Path,
) -> None:
    done = command(bad.parent, "optimize", "bad.onnx", "-o", "out.onnx", "--fold", "always")
    assert done.returncode == 0, done.stderr
    assert f"before: {_NAMED}" in " ".join(done.stdout.split())
    assert "1 of 1 LayerNorm folds to RMSNorm" in done.stdout


@pytest.mark.parametrize("words", [("bench", "bad.onnx"), ("tune", "bad.onnx", "-o", "out.onnx")])
def test_what_needs_a_session_names_the_node(bad: Path, words: tuple[str, ...]) -> None:
    done = command(bad.parent, *words)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert _NAMED in last
    assert last.endswith("leave this input out")
    assert "SIGSEGV" not in done.stderr


def test_norms_with_an_empty_bias_are_measured(bad: Path) -> None:
    done = command(bad.parent, "measure", "bad.onnx", "--report", "found.json")
    assert done.returncode == 0, done.stderr


def test_a_server_does_not_open_such_a_model(bad: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from onnxfold.errors import ModelError\n"
        "from onnxfold.serving.session import open_session\n"
        "try: open_session(Path('bad.onnx'), name='bad', library=None)\n"
        "except ModelError as error: sys.exit(str(error))\n"
    )
    done = python(bad.parent, "-c", program)
    assert done.returncode == 1
    assert _NAMED in done.stderr
