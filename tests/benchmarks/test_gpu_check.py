"""What the check on a GPU does with its budget, on checks that need none."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import gpu_check
from benchmarks.harness import Budget
from tests.custom_ops.cuda_device_list import NotHereError
from tests.custom_ops.cuda_kernels import Kernels
from tests.custom_ops.cuda_list import Check

KERNELS = cast(Kernels, SimpleNamespace())


def passes(kernels: Kernels, thorough: bool) -> None:
    del kernels, thorough


def fails(kernels: Kernels, thorough: bool) -> None:
    raise AssertionError(kernels, thorough)


def is_not_here(kernels: Kernels, thorough: bool) -> None:
    raise NotHereError(kernels, thorough)


@pytest.mark.parametrize(
    ("check", "incomplete"), [(passes, False), (is_not_here, False), (fails, True)]
)
def test_a_failure_is_noted_and_what_is_not_here_is_none(check: Check, incomplete: bool) -> None:
    budget = Budget(60.0)
    gpu_check.run(KERNELS, (check, passes), budget, thorough=True)
    assert budget.incomplete is incomplete


def exhausts(kernels: Kernels, thorough: bool) -> None:
    raise MemoryError("out of\ndevice memory")


def test_a_failure_of_any_kind_is_one_line_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpu_check.run(KERNELS, (exhausts, passes), Budget(60.0), thorough=True)
    failure, success = capsys.readouterr().out.splitlines()
    assert failure.startswith(
        "exhausts: FAILED, MemoryError: out of device memory (test_gpu_check.py:"
    )
    assert success.startswith("passes: passed, ")


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    program = f"sleep 5 && touch {tmp_path}/survived"
    assert gpu_check.ended(["sh", "-c", f"({program}); {program}"], 0.3) == (
        "FAILED, not at its end after 0 s"
    )
    assert gpu_check.ended(["sh", "-c", "exit 99"], 30.0) == "FAILED, exit 99"
    assert gpu_check.ended(["sh", "-c", "exit 0"], 30.0) == "passed"
    time.sleep(5.2)
    assert not (tmp_path / "survived").exists()


def test_what_has_not_begun_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    spent = Budget(-1.0)
    gpu_check.run(KERNELS, (passes, fails), spent, thorough=True)
    gpu_check.run_tools(("memcheck",), cast(Any, None), (), spent)
    assert spent.incomplete
    said = capsys.readouterr().out.splitlines()
    assert said == [f"the budget is spent: {n} is left" for n in ("passes", "fails", "memcheck")]


def test_without_a_device_it_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.driver", lambda: SimpleNamespace(devices=()))
    monkeypatch.setattr("sys.argv", ["gpu_check", "--list", "none", "--tools"])
    with pytest.raises(SystemExit, match=r"^no CUDA device$"):
        gpu_check.main()
