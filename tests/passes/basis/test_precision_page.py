"""The commands of docs/precision.md run as printed, and `rotate` says what it does wrong."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ModelError, UsageError
from tests.passes.basis.wide_streams import post_norms, wide_stream
from tests.project.test_commands import shown
from tests.project.test_readme import ROOT, run

PRECISION = ROOT / "docs" / "precision.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model whose stream is too large for float16, and samples of its inputs."""
    onnx.save(wide_stream("rms pieces"), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", ids=np.arange(12).reshape(4, 3))
    (tmp_path / "models").symlink_to(ROOT / "models")
    return tmp_path


@pytest.mark.campaign
def test_the_commands_of_precision_md_run(folder: Path) -> None:
    for command in shown(PRECISION, "sh"):
        words = shlex.split(command)
        assert words[0] == "onnxfold"
        run(
            [sys.executable, "-m", *words, *(["--seeds=1"] if words[1] == "rotate" else [])], folder
        )
    assert (folder / "fast.onnx").exists()
    assert (folder / "turned.onnx").exists()


@pytest.mark.campaign
def test_a_search_reports_every_candidate(folder: Path) -> None:
    words = "rotate model.onnx -o t.onnx --to int4 --seeds 1 --json".split()
    report = json.loads(run([sys.executable, "-m", "onnxfold", *words], folder))
    assert [row["name"] for row in report["candidates"]] == ["as it is", "seed 0"]
    assert report["best"] in ("as it is", "seed 0")
    assert report["data"] == "4 drawn inputs"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"to": "int2"}, "to= takes int8, int8-channel, int4, not 'int2'"),
        ({"matrix": "off"}, "matrix= takes hadamard or random"),
        ({"seeds": 0}, "at least 1"),
    ],
)
def test_senseless_options_are_refused(folder: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        onnxfold.rotate(folder / "model.onnx", folder / "t.onnx", **options)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_rotated_writes_nothing(tmp_path: Path) -> None:
    onnx.save(post_norms("rms pieces", 1.0), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"norm 'post0\.node' keeps a gamma"):
        onnxfold.rotate(tmp_path / "model.onnx", tmp_path / "t.onnx", seeds=1)
    assert not (tmp_path / "t.onnx").exists()
