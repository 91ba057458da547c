"""A command from files on the disk to files on the disk, with its time and its memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DiskRun", "disk_to_disk", "ended"]

_SAMPLE_S = 0.02
_MIB = 1024


@dataclass(frozen=True, slots=True)
class DiskRun:
    """Wall and processor seconds of a command, and peaks of its resident memory in MiB.

    What two of its processes share counts twice.
    """

    seconds: float
    processor_seconds: float
    peak: float = 0.0
    anonymous: float = 0.0


def ended(command: Sequence[str]) -> DiskRun:
    """Run a command to its end, without a look at its memory."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, code, usage = os.wait4(process.pid, 0)
    return _run(command, process, code, usage, time.perf_counter() - start)


def disk_to_disk(command: Sequence[str], files: Sequence[Path]) -> DiskRun:
    """Run a command on files that are not in the page cache, until its output is on the disk."""
    _forget(files)
    start = time.perf_counter()
    process = subprocess.Popen(command)
    peak = anonymous = 0.0
    for status in _statuses(process.pid):
        peak = max(peak, status.get("VmHWM", 0.0))
        anonymous = max(anonymous, status.get("RssAnon", 0.0))
        pid, code, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(_SAMPLE_S)
    os.sync()
    return _run(command, process, code, usage, time.perf_counter() - start, peak, anonymous)


def _run(
    command: Sequence[str], process: subprocess.Popen[bytes], code: int, usage: Any, *found: float
) -> DiskRun:
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise RuntimeError(f"{command} exits {process.returncode}")
    seconds, *memory = found
    return DiskRun(seconds, usage.ru_utime + usage.ru_stime, *memory)


def _statuses(pid: int) -> Iterator[dict[str, float]]:
    """What the system says of the memory of a process and its children, in MiB, when asked."""
    while True:
        total: dict[str, float] = {}
        with suppress(OSError):  # one of them has just ended
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            for each in (pid, *map(int, children.split())):
                for key, mib in _memory(each).items():
                    total[key] = total.get(key, 0.0) + mib
        yield total


def _memory(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {key.rstrip(":"): int(kib) / _MIB for key, kib, _ in fields}


def _forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, so that every run reads them from the disk."""
    os.sync()
    for file in files if hasattr(os, "posix_fadvise") else ():
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
