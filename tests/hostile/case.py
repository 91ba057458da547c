"""One hostile file through the command line, in this process, and what that broke of its promises.

Promises: exit code 0, 1, 2 or 3; on failure one printable line on standard error and no output; on
success nothing on standard error and a model that can be read; in either case, the input is
unchanged and the folder contains nothing more.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from onnxfold import model_io
from onnxfold.cli import application
from onnxfold.errors import OnnxfoldError
from tests.hostile.mutation import MODEL, Mutant

__all__ = ["COMMANDS", "Outcome", "build_commands_once", "run_case"]

OUTPUT = "out.onnx"
COMMANDS = {"inspect": ["inspect", MODEL, "--json"], "optimize": ["optimize", MODEL, "-o", OUTPUT]}
_LONGEST_MESSAGE = 3000
_APP = application.app
_BY_CODE = {0: "done", 1: "check failed", 2: "usage", 3: "refused"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one command ended; fault: the promise that it broke."""

    command: str
    ended: str
    fault: str | None
    message: str
    cpu_s: float
    wall_s: float
    peak_mb: float


def build_commands_once() -> None:
    """Build the commands now: typer does it at every call, in half of the time of a small case."""
    if application.app is _APP:
        application.app = get_command(_APP)  # type: ignore[assignment]  # called in the same way


def run_case(folder: Path, mutant: Mutant) -> list[Outcome]:
    """Run every command on the files of a mutant in a new folder, which is removed again."""
    outcomes = []
    for command in COMMANDS:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in mutant.files.items():
            (folder / name).write_bytes(content)
        for name, target in mutant.links.items():
            (folder / name).symlink_to(target)
        outcomes.append(_run(folder, command, mutant))
    shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def _run(folder: Path, command: str, mutant: Mutant) -> Outcome:
    before = _resident_mb("VmRSS")
    _reset_peak()
    started, cpu = time.monotonic(), _cpu_s()
    with _captured(folder) as streams:
        code = _exit_code(COMMANDS[command])
    wall_s, cpu_s = time.monotonic() - started, _cpu_s() - cpu
    peak_mb = max(0.0, _resident_mb("VmHWM") - before)
    stdout, stderr = streams
    fault = _fault(folder, command, mutant, code, stdout, stderr)
    ended = _BY_CODE.get(code, f"exit code {code}")
    return Outcome(command, ended, fault, stderr[:_LONGEST_MESSAGE], cpu_s, wall_s, peak_mb)


def _exit_code(arguments: list[str]) -> int:
    sys.argv = ["onnxfold", *arguments]
    try:
        application.main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _fault(
    folder: Path, command: str, mutant: Mutant, code: int, stdout: str, stderr: str
) -> str | None:
    if "internal error" in stderr:
        return "internal error: " + re.sub(r"[0-9]+", "N", stderr)[:200]
    if code not in _BY_CODE:
        return f"exit code {code}"
    if code and (len(lines := stderr.splitlines()) != 1 or not lines[0].isprintable()):
        return f"not one printable line: {stderr[:200]!r}"
    if code and len(stderr) > _LONGEST_MESSAGE:
        return "a very long message"
    if not code and stderr:
        return f"said on success: {stderr[:200]!r}"
    for name, content in mutant.files.items():
        if (folder / name).read_bytes() != content:
            return f"the input {name} was changed"
    new = set(os.listdir(folder)) - set(mutant.files) - set(mutant.links)
    allowed = {OUTPUT} if command == "optimize" and not code else set()
    if not allowed <= new:
        return "no output on success"
    if any(not name.startswith(OUTPUT) or code for name in new - allowed):
        return f"left behind: {sorted(new - allowed)}"
    return _content_fault(folder / OUTPUT, command, stdout) if not code else None


def _content_fault(output: Path, command: str, stdout: str) -> str | None:
    if command == "inspect":
        try:
            json.loads(stdout)
        except ValueError:
            return "inspect --json printed no JSON"
        return None
    try:
        model_io.load(output)
    except OnnxfoldError as error:
        return f"the output cannot be read: {error}"
    return None


@contextmanager
def _captured(folder: Path) -> Iterator[list[str]]:
    """Run in the folder, with what C++ and Python write to both standard streams kept."""
    texts: list[str] = []
    kept = [os.dup(1), os.dup(2)]
    paths = [folder.parent / f"{folder.name}.{number}" for number in (1, 2)]
    here = os.getcwd()
    try:
        for number, path in enumerate(paths, start=1):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        with (
            open(1, "w", closefd=False) as out,
            open(2, "w", closefd=False) as err,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            yield texts
    finally:
        os.chdir(here)
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for path in paths:
            texts.append(path.read_text(errors="replace"))
            path.unlink()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then the peak is the process's so far


def _resident_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0
