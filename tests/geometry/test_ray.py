"""Measuring by workers of Ray: the same report, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.errors import UsageError
from onnxfold.geometry import measurement
from onnxfold.inputs.data import DataOptions, open_data
from tests.builders import chain_model
from tests.geometry.deadly import Deadly, Noting, wait_for

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

    monkeypatch.setattr(measurement, "open_data", opened)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers load Deadly
    found = onnxfold.measure(chain_model(), data, workers=2, ray="local")
    assert json.dumps(found) == json.dumps(whole)
    assert (tmp_path / "killed").exists()


def test_a_cluster_that_is_not_there_is_told(data: Path) -> None:
    with pytest.raises(UsageError, match=r"ray='127\.0\.0\.1:1': .*refused"):
        onnxfold.measure(chain_model(), data, ray="127.0.0.1:1")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes on this machine, each with processes and a store of its own."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers load Noting
    size: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    made: Any = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        made.add_node(**size)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_under_way_changes_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers are spread over two nodes; one node is killed with a shard of it begun."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=rng.standard_normal((3000, 16)).astype(np.float32))
    whole = onnxfold.measure(chain_model(), tmp_path / "x.npz")
    (tmp_path / "notes").mkdir()
    model = ir.from_proto(chain_model())
    noting = Noting(open_data(tmp_path / "x.npz", model, None, DataOptions()), tmp_path / "notes")
    monkeypatch.setattr(measurement, "open_data", lambda *_: noting)
    dying, lost = cluster.list_all_nodes()[1], dict[str, int]()

    def kill(stage: str, _share: float) -> None:
        """With the first shard's result here, and all others waiting for ``go``."""
        if stage == "measure" and not noting.go.exists():
            wait_for(lambda: len(noting.begun()) == 2)
            lost.update(noting.begun()[dying.node_id])
            cluster.remove_node(dying, allow_graceful=False)
            for process in set(lost.values()):  # orphans now, which a dead machine has not
                os.kill(process, signal.SIGKILL)
            noting.go.touch()

    words: dict[str, Any] = {"workers": 2, "ray": cluster.address, "progress": kill}
    found = onnxfold.measure(chain_model(), tmp_path / "x.npz", **words)
    assert json.dumps(found) == json.dumps(whole)
    assert lost
    (survivor,) = noting.begun().keys() - {dying.node_id}
    assert lost.keys() <= noting.begun()[survivor].keys()
