"""Give jobs to the worker of an environment, and outlive the crashes of native code."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["answers"]

Job = dict[str, Any]
_LIMIT_S = 300.0
_SHOWN = 400


def answers(
    command: Sequence[str],
    jobs: Sequence[Job],
    variables: dict[str, str],
    limit_s: float = _LIMIT_S,
) -> list[Job]:
    """Return the answer to each job; a job that ends the worker is answered with how it ended.

    The worker is restarted for the jobs after one that ended it, or that took more than `limit_s`.
    """
    found: list[Job] = []
    while len(found) < len(jobs):
        found += _until_death(command, jobs[len(found) :], variables, limit_s)
        sys.stderr.write(f"  {len(found)} of {len(jobs)}\n")
    return found


def _until_death(
    command: Sequence[str], jobs: Sequence[Job], variables: dict[str, str], limit_s: float
) -> list[Job]:
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w+b") as said:
        file = Path(folder, "jobs.jsonl")
        file.write_text("".join(json.dumps(job) + "\n" for job in jobs), encoding="utf-8")
        worker = subprocess.Popen(
            [*command, str(file)],
            stdout=subprocess.PIPE,
            stderr=said,
            env=variables,
            cwd=folder,
            text=True,
        )
        found, late = _read(worker, len(jobs), limit_s)
        if len(found) < len(jobs):
            last = _last_line(Path(folder, "said"))
            found.append(_ending(worker.returncode, late, limit_s, last))
    return found


def _read(worker: subprocess.Popen[str], count: int, limit_s: float) -> tuple[list[Job], bool]:
    """Return the answers up to the worker's end, and whether it was ended for being late."""
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_pass_on, args=(worker, lines), daemon=True)
    reader.start()
    found: list[Job] = []
    late = False
    while len(found) < count:
        try:
            line = lines.get(timeout=limit_s)
        except queue.Empty:
            late = True
            break
        if not line:
            break
        found.append(json.loads(line))
    if late:
        worker.kill()
    worker.wait()
    reader.join()
    return found, late


def _pass_on(worker: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert worker.stdout is not None
    with worker.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _ending(code: int, late: bool, limit_s: float, last: str) -> Job:
    if late:
        return {"outcome": "late", "text": f"no answer within {limit_s:.0f} s"}
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return {"outcome": "crashed", "text": f"{how}; {last}"}


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:_SHOWN] if lines else "nothing said"
