"""Files of chains are built once, and steps that change nothing leave no trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold.options import Device
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.processes import JobFailed, JobTookTooLong
from onnxfold.tuning.workshop import BudgetSpent, StepFailed, Workshop, digest
from tests.builders import pre_norm_model


@dataclass
class _Processes:
    """Carries steps out here: "fail" fails, "slow" ends too late, "slim" changes nothing."""

    done: list[str] = field(default_factory=list)

    def run(self, kind: str, seconds: float, **job: Any) -> dict[str, Any]:
        name = job["step"]
        self.done.append(name)
        if name == "fail":
            raise JobFailed("it failed")
        if name == "slow":
            raise JobTookTooLong("took more than 1 s")
        model = onnx.load(job["source"])
        model.producer_name = name
        if name != "slim":
            model.graph.node[0].name += name
        onnx.save(model, job["output"])
        return {}


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    onnx.save(pre_norm_model(), tmp_path / "model.onnx")
    return Workshop(
        tmp_path,
        tmp_path / "model.onnx",
        _Processes(),
        ModelFacts("bert"),
        Device.CPU,
        300.0,  # type: ignore[arg-type]
    )


def _end(seconds: float = 600.0) -> float:
    return time.monotonic() + seconds


def test_chains_share_what_they_begin_with(workshop: Workshop) -> None:
    for chain in (("script", "optimizer"), ("script", "fusions"), ("script", "optimizer")):
        workshop.build(chain, _end())
    assert workshop.processes.done == ["script", "optimizer", "fusions"]  # type: ignore[attr-defined]


def test_a_step_that_changes_nothing_is_left_out(workshop: Workshop) -> None:
    made = workshop.build(("slim", "optimizer"), _end())
    assert made.chain == ("optimizer",)
    assert made is workshop.build(("optimizer",), _end())
    assert workshop.build(("slim",), _end()).path == workshop.source


def test_a_failed_step_is_named_and_ends_every_chain_through_it(workshop: Workshop) -> None:
    for chain in (("fail",), ("fail", "optimizer")):
        with pytest.raises(StepFailed, match="fail: it failed"):
            workshop.build(chain, _end())
    assert workshop.processes.done == ["fail"]  # type: ignore[attr-defined]


def test_the_end_of_the_budget_is_no_fault_of_a_step(workshop: Workshop) -> None:
    with pytest.raises(BudgetSpent):
        workshop.build(("slow",), _end(10.0))
    with pytest.raises(BudgetSpent):
        workshop.build(("script",), _end(-1.0))
    with pytest.raises(StepFailed, match=r"more than 1 s \(step_seconds=\)"):
        workshop.build(("slow",), _end(1000.0), ("other",))


def test_exclusions_make_another_file(workshop: Workshop) -> None:
    plain = workshop.build(("int8",), _end())
    assert workshop.build(("int8",), _end(), ("node",)).path != plain.path


def test_a_digest_sees_weights_and_nodes_but_no_notes(tmp_path: Path) -> None:
    model = pre_norm_model()
    onnx.save(model, tmp_path / "a.onnx")
    model.producer_name, model.doc_string = "another", "a note"
    model.graph.node[0].doc_string = "a note"
    onnx.save(model, tmp_path / "b.onnx")
    assert digest(tmp_path / "a.onnx") == digest(tmp_path / "b.onnx")
    onnx.save(
        model, tmp_path / "c.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    first = digest(tmp_path / "c.onnx")
    data = bytearray((tmp_path / "d").read_bytes())
    data[0] ^= 1
    (tmp_path / "d").write_bytes(data)
    assert digest(tmp_path / "c.onnx") != first
    model.graph.node[0].op_type = "Neg"
    onnx.save(model, tmp_path / "e.onnx")
    assert digest(tmp_path / "e.onnx") != digest(tmp_path / "a.onnx")
