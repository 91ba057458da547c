"""Jobs that crash, hang, take memory or fail end in one sentence, and alone."""

from __future__ import annotations

import re
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from onnxfold.tuning.processes import JobFailed, JobTookTooLong, Processes

_WRITES = (
    "import json, pathlib, sys; p = pathlib.Path(sys.argv[1]); job = json.loads(p.read_text());"
)


def _processes(folder: Path, program: str) -> Processes:
    return Processes(folder, None, (sys.executable, "-c", program))


def test_a_job_gives_its_result_and_leaves_nothing(tmp_path: Path) -> None:
    program = _WRITES + "p.with_name('result.json').write_text(json.dumps({'twice': 2 * job['x']}))"
    assert _processes(tmp_path, program).run("any", 30, x=21) == {"twice": 42}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed.*SIGKILL"),
        ("import sys; print('first', file=sys.stderr); sys.exit('the last line')", "the last line"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("raise ValueError('two\\nlines')", "lines"),
    ],
)
def test_how_a_job_ends_is_one_line(tmp_path: Path, program: str, sentence: str) -> None:
    with pytest.raises(JobFailed, match=sentence.replace("(", r"\(").replace(")", r"\)")) as caught:
        _processes(tmp_path, program).run("any", 30)
    assert "\n" not in str(caught.value)


def test_a_result_that_a_full_disk_cuts_off_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job cannot write one byte, nor say so."""
    child = f'ulimit -f 0; exec {sys.executable} -m onnxfold.tuning.child "$0"'
    processes = Processes(tmp_path, None, ("sh", "-c", child))
    with pytest.raises(JobFailed, match="ended with exit code 1"):
        processes.run("none", 60)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(8, 8, 0))
    with pytest.raises(JobFailed, match=re.escape(f"the disk of {tmp_path} is full")):
        processes.run("none", 60)


def test_a_job_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    late = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    program = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {late!r}]); time.sleep(60)"
    )
    folder = tmp_path / "jobs"
    folder.mkdir()
    with pytest.raises(JobTookTooLong, match="more than 1 s"):
        _processes(folder, program).run("any", 1)
    time.sleep(3)
    assert not mark.exists()


@pytest.mark.campaign
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A feed of 2 GiB does not fit where a job may take 1 GiB: the job fails, and says so."""
    import numpy as np

    large = tmp_path / "large.npz"
    with large.open("wb") as file:
        np.savez_compressed(file, x=np.zeros(1 << 29, dtype=np.float32))
    processes = Processes(tmp_path, 1 << 30)
    with pytest.raises(JobFailed, match="MemoryError"):
        processes.run(
            "step", 60, step="slim", source="", output="", facts={"model_type": "bert"},
            device="cpu", exclude=[], feeds=[str(large)],
        )  # fmt: skip


def test_what_a_library_raises_is_the_result(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="FileNotFoundError"):
        Processes(tmp_path).run(
            "step", 60, step="slim", source=str(tmp_path / "none.onnx"), output="",
            facts={"model_type": "bert"}, device="cpu", exclude=[], feeds=[],
        )  # fmt: skip
