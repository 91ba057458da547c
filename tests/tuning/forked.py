"""Jobs of tune in forks of the test: they have what a process of their own first imports."""

from __future__ import annotations

import faulthandler
import multiprocessing
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from onnxfold.runtime.library import has_cuda
from onnxfold.tuning import child, processes, trials

__all__ = ["forked_jobs"]


def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork for each job and time few rounds; CUDA, which a fork cannot use, needs processes."""
    if not has_cuda():
        monkeypatch.setattr(processes, "_ended", _ended)
        monkeypatch.setattr(child, "_QUICK_ROUNDS", 3)
        monkeypatch.setattr(trials, "_ROUNDS", trials._LEAST_ROUNDS)


def _ended(_command: Sequence[str], place: Path, seconds: float) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads; also of what tools warn of
        job = multiprocessing.get_context("fork").Process(target=_do, args=(place,))
        job.start()
    job.join(seconds)
    if job.exitcode is None:
        job.kill()
        job.join()
        raise processes.JobTookTooLong(f"took more than {seconds:.0f} s")
    return job.exitcode


def _do(place: Path) -> None:
    faulthandler.disable()  # a planted crash is nobody's defect
    sys.exit(child.main(place / "job.json"))
