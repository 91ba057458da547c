"""Jobs in separate processes, with limits on seconds and memory, and the arrays that they read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import OnnxfoldError, one_line
from onnxfold.graph.constants import Array

_SIGNALS = {number.value: number.name for number in signal.Signals}
_TAIL_BYTES = 4096
_LEAST_FREE_BYTES = 1 << 20  # with fewer, what a job writes may be cut off
_MARK = "_"  # before names, some of which are keywords of numpy's function


class JobFailed(OnnxfoldError):  # noqa: N818
    """A job failed; the message is one line that explains why."""


class JobTookTooLong(JobFailed):
    """A job did not end within its time limit."""


@dataclass(slots=True)
class Processes:
    """Runs jobs, each as a separate command in a separate folder inside `folder`.

    memory_bytes: the allocation limit of each, or None.
    """

    folder: Path
    memory_bytes: int | None = None
    command: Sequence[str] = (sys.executable, "-m", "onnxfold.tuning.child")
    _numbers: Iterator[int] = field(default_factory=count)

    def run(self, kind: str, seconds: float, **job: Any) -> dict[str, Any]:
        """Return the result of a job; raises JobFailed if it ends without one."""
        place = self.folder / f"job{next(self._numbers)}"
        place.mkdir()
        try:
            document = {"kind": kind, "memory": self.memory_bytes, **job}
            (place / "job.json").write_text(json.dumps(document), encoding="utf-8")
            code = _ended(self.command, place, seconds)
            return _result(place, code)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _ended(command: Sequence[str], place: Path, seconds: float) -> int:
    """Run a job to its end and return its exit code; raises JobTookTooLong beyond the limit."""
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "PYTHONWARNINGS": "ignore"}
    with (place / "stderr").open("wb") as errors:
        process = subprocess.Popen(  # noqa: S603  # this interpreter, and a file of ours
            [*command, str(place / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise JobTookTooLong(f"took more than {seconds:.0f} s") from error
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _result(place: Path, code: int) -> dict[str, Any]:
    written = place / "result.json"
    if written.exists():
        result: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
        if "error" not in result:
            return result
        raise JobFailed(result["error"])
    if code < 0:
        name = _SIGNALS.get(-code, f"signal {-code}")
        what = "was killed, as where memory runs out" if name == "SIGKILL" else "crashed"
        raise JobFailed(f"{what} ({name})")
    full = shutil.disk_usage(place).free < _LEAST_FREE_BYTES
    why = f"the disk of {place.parent} is full" if full else f"ended with exit code {code}"
    raise JobFailed(_last_line(place / "stderr") or why)


def _last_line(path: Path) -> str:
    text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    return one_line(Exception(text.splitlines()[-1])) if text else ""


def store(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays under arbitrary names."""
    marked: dict[str, Any] = {_MARK + name: array for name, array in arrays.items()}
    np.savez(path, **marked)


def stored(path: Path) -> dict[str, Array]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as archive:
        return {name.removeprefix(_MARK): archive[name] for name in archive.files}
