"""Two ranks under gloo train the centered model that one process trains, and measure the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")

from onnxfold.model_io import signed
from onnxfold.torch import AnglesCallback
from tests.training.ranks import ROWS, STEPS, model, trained


def assert_alike(first: Any, second: Any) -> None:
    """Two reports agree: counts exactly, numbers to the rounding of the trainings."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            if key != "histogram":  # an angle on the edge of a bar may fall on either side
                assert_alike(value, second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, two in zip(first, second, strict=True):
            assert_alike(one, two)
    elif isinstance(first, float):
        # A quantile may be in the next bar of the sketch: 1 percent. The others agree to three
        # steps of rounding, which Adam's division by a small root makes 1e-9 at most.
        assert first == pytest.approx(second, rel=0.011, abs=1e-9)
    else:
        assert first == second


def test_two_ranks_train_and_measure_as_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.training.ranks"]
    runs = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    alone = model()
    angles = AnglesCallback(alone)
    trained(alone, slice(ROWS), angles)
    assert [run.wait(timeout=200) for run in runs] == [0, 0]
    state = alone.state_dict()
    for kind in ("ddp", "fsdp"):
        for rank in (0, 1):
            other = torch.load(tmp_path / f"{kind}{rank}.pt")
            assert other.keys() == state.keys()
            for name, value in state.items():
                # Gradients that differ by rounding, three steps of Adam with length 0.1.
                assert float((other[name] - value).abs().max()) <= 1e-9, (kind, name)
            model().load_state_dict(other)
    reports = [json.loads((tmp_path / f"reports{rank}.json").read_text()) for rank in (0, 1)]
    assert reports[0] == reports[1]
    assert len(reports[0]) == STEPS
    assert_alike(reports[0], angles.reports)
    assert angles.reports[0]["norms"][0]["before"]["mean"]["count"] == ROWS
    written = sorted(path.name for path in (tmp_path / "angles").iterdir())
    assert written == [f"step_{step:08}.json" for step in range(STEPS)]
    assert json.loads((tmp_path / "angles" / written[-1]).read_text()) == signed(reports[0][-1])
