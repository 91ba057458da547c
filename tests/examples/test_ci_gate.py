"""The gates of examples/ci/gate run as printed, by a stand-in for GitHub and GitLab."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.check.converted import change_weight, dynamic, encoder, rows
from tests.examples.stand_in_runner import run_action, run_job

pytest.importorskip("onnxruntime.quantization")
ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "examples" / "ci" / "gate"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a model, a sound and a bad conversion, and data."""
    models = tmp_path / "models"
    models.mkdir()
    onnx.save(encoder(), models / "model.onnx")
    int8 = dynamic(encoder(), tmp_path)
    onnx.save(int8, models / "model.int8.onnx")
    onnx.save(change_weight(int8, "Wdown_scale", lambda s: s / 10), models / "bad.onnx")
    feeds = rows(4)
    arrays = {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}
    np.savez(models / "rows.npz", **arrays)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """Variables with which the onnxfold of these sources is the command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(("changed", "code"), [("model.int8.onnx", 0), ("bad.onnx", 1)])
def test_the_action_of_github_gates_a_file(
    folder: Path, environment: dict[str, str], changed: str, code: int
) -> None:
    given = {
        "original": "models/model.onnx",
        "changed": f"models/{changed}",
        "metric": "relative cosine",
        "max-error": "0.1 0.01",
        "data": "models/rows.npz",
        "package": "",
    }
    done, printed = run_action(GATE / "action.yml", given, folder, environment)
    assert done == code, printed
    record = json.loads((folder / "verify.json").read_text(encoding="utf-8"))
    assert record["passed"] is (code == 0)
    assert record["budget"] == {"relative": 0.1, "cosine": 0.01}
    assert [one["node"] for one in record["blame"]] == (["node_down"] if code else [])


def test_the_action_demands_full_precision_without_a_metric(
    folder: Path, environment: dict[str, str]
) -> None:
    given = {"original": "models/model.onnx", "changed": "models/model.onnx", "package": ""}
    done, printed = run_action(GATE / "action.yml", given, folder, environment)
    assert done == 0, printed
    assert '"noise_ratio"' in printed
    done, printed = run_action(
        GATE / "action.yml", {**given, "changed": "models/none.onnx"}, folder, environment
    )
    assert done == 3
    assert "none.onnx" in printed


@pytest.mark.parametrize(("changed", "code"), [("model.int8.onnx", 0), ("bad.onnx", 1)])
def test_the_job_of_gitlab_gates_a_file(
    folder: Path, environment: dict[str, str], changed: str, code: int
) -> None:
    given = {"CHANGED": f"models/{changed}"}
    done, printed = run_job(GATE / "gitlab.yml", "gate", given, folder, environment)
    assert done == code, printed
    record = json.loads((folder / "verify.json").read_text(encoding="utf-8"))
    assert record["passed"] is (code == 0)
    assert '"budget"' in printed
