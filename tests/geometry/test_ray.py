"""Measuring by workers of Ray: the same report, whatever dies."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxfold
from onnxfold.errors import UsageError
from onnxfold.geometry import run
from onnxfold.geometry.data import open_data
from tests.builders import chain_model
from tests.geometry.deadly import Deadly

pytest.importorskip("ray", reason="needs ray (make test-training installs it)")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=rng.standard_normal((1000, 16)).astype(np.float32))
    return tmp_path / "x.npz"


def test_workers_give_the_same_report_though_one_is_killed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = onnxfold.measure(chain_model(), data)

    def opened(*given: Any) -> Deadly:
        return Deadly(open_data(*given), tmp_path / "killed", os.getpid())

    monkeypatch.setattr(run, "open_data", opened)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers load Deadly
    found = onnxfold.measure(chain_model(), data, workers=2, ray="local")
    assert json.dumps(found) == json.dumps(whole)
    assert (tmp_path / "killed").exists()


def test_a_cluster_that_is_not_there_is_told(data: Path) -> None:
    with pytest.raises(UsageError, match=r"--ray 127\.0\.0\.1:1: .*refused"):
        onnxfold.measure(chain_model(), data, ray="127.0.0.1:1")
