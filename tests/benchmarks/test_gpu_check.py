"""What the check on a GPU does with its budget, on checks that need none."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import Budget
from tests.custom_ops.cuda_device_list import NotHereError
from tests.custom_ops.cuda_kernels import Kernels

KERNELS = cast(Kernels, SimpleNamespace())


def passes(kernels: Kernels, thorough: bool) -> None:
    del kernels, thorough


def fails(kernels: Kernels, thorough: bool) -> None:
    raise AssertionError(kernels, thorough)


def is_not_here(kernels: Kernels, thorough: bool) -> None:
    raise NotHereError(kernels, thorough)


def test_a_failure_is_counted_and_what_is_not_here_is_none() -> None:
    checks = (passes, fails, is_not_here)
    outcome = gpu_check.run(KERNELS, checks, Budget(60.0), thorough=True)
    assert (outcome.failures, outcome.left) == (1, [])


def test_what_has_not_begun_is_left_and_its_command_is_told() -> None:
    spent = Budget(-1.0)
    listed = gpu_check.run(KERNELS, (passes, fails), spent, thorough=True)
    under = gpu_check.run_tools(("memcheck",), cast(Any, None), (), spent)
    assert (listed.failures, listed.left) == (0, ["passes", "fails"])
    commands = list(gpu_check.rest(argparse.Namespace(list="thorough"), listed, under))
    assert commands == [
        "--list thorough --checks passes fails --tools",
        "--list none --tools memcheck",
    ]


def test_without_a_device_it_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.driver", lambda: SimpleNamespace(devices=()))
    monkeypatch.setattr("sys.argv", ["gpu_check", "--list", "none", "--tools"])
    with pytest.raises(SystemExit, match=r"^no CUDA device$"):
        gpu_check.main()
