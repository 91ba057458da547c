"""The command in a process of its own, with something done to it before one of its steps.

A step is whatever the interpreter reports before it asks the system to change the working folder or
to open a file in it, and every progress that the command reports, which falls between the parts of
one file too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn
from unittest import mock

import onnx

from onnxfold import api
from onnxfold.cli import application, terminal
from onnxfold.model_io import copying
from tests.hostile.case import build_commands_once
from tests.hostile.seeds import layer_norm_model
from tests.model_io.files import listing, save

__all__ = [
    "CHANGES",
    "STEPS",
    "Ended",
    "Subject",
    "broken",
    "change",
    "command",
    "kill",
    "remount",
    "small_disk",
    "two_at_once",
    "whole",
]

ROOT = Path(__file__).parents[2]
MOUNT, UMOUNT = (shutil.which(name) or name for name in ("mount", "umount"))

# What the interpreter reports before it asks the system to change a folder or open a file.
STEPS = (
    "open",
    "os.rename",
    "os.link",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.truncate",
)
CHANGES = ("touched", "other numbers", "replaced", "gone")
# Small, so that a step also falls between parts of one file.
_BATCH_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as files in.onnx and `data`, and the options with which it is optimized."""

    name: str
    model: onnx.ModelProto
    data: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def lay(self, folder: Path) -> Path:
        """Write it into a new folder that has a folder `out`; returns the path of the model."""
        (folder / "out").mkdir(parents=True)
        return save(self.model, folder / "in.onnx", *self.data)

    def arguments(self, output: str) -> list[str]:
        return ["optimize", "in.onnx", "-o", output, *self.options]


@dataclass(frozen=True, slots=True)
class Ended:
    """code: None if the process was killed; reached: whether its step came."""

    code: int | None
    said: str
    reached: bool


def command(
    arguments: Sequence[str], folder: Path, step: int = -1, act: Callable[[], object] = bool
) -> Ended:
    """Run `onnxfold ARGUMENTS` in a folder; `act` is called before a step, counted from 0."""
    said, reached = (folder.parent / f"{folder.name}.{name}" for name in ("said", "reached"))
    said.write_bytes(b"")
    _warm()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; the child needs none of them and ends without cleaning up.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(arguments, folder, said, _Steps(folder, step, act, reached))
    status = os.waitpid(child, 0)[1]
    code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    came = reached.exists()
    reached.unlink(missing_ok=True)
    return Ended(code, said.read_text(errors="replace"), came)


@cache
def _warm() -> None:
    """Do before the fork, once for all, what every first run does."""
    build_commands_once()
    api.optimize(layer_norm_model(), check=1)


class _Steps:
    """Counts steps and acts before one of them."""

    def __init__(self, folder: Path, step: int, act: Callable[[], object], reached: Path):
        self._folder, self._left, self._act, self._reached = f"{folder}{os.sep}", step, act, reached

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in STEPS or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        if os.path.abspath(os.fsdecode(arguments[0])).startswith(self._folder):
            self.take()

    def take(self, *_: object) -> None:
        self._left -= 1
        if self._left == -1:
            self._left = -2  # what is done now takes steps too
            self._reached.touch()
            self._act()

    @contextmanager
    def progress(self, *_: object, **_options: object) -> Iterator[Callable[[str, float], None]]:
        yield self.take


def _run(arguments: Sequence[str], folder: Path, said: Path, steps: _Steps) -> NoReturn:
    """The child: never returns."""
    code = 99
    try:
        sys.argv = ["onnxfold", *arguments]
        os.chdir(folder)
        with (
            open(os.devnull, "w") as out,
            open(said, "w") as err,
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(terminal, "progress", steps.progress),
            mock.patch.object(copying, "_BATCH_BYTES", _BATCH_BYTES),
        ):
            sys.addaudithook(steps.audit)
            application.main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        os._exit(code)


def kill() -> None:
    """Kill this process: nothing of it cleans up."""
    os.kill(os.getpid(), signal.SIGKILL)


def change(what: str, path: Path) -> None:
    """Do to a file what another process might while it is read."""
    if what == "touched":
        os.utime(path, ns=(1, 1))
    elif what == "gone":
        path.unlink()
    elif what == "replaced":
        shutil.copy2(path, copy := path.with_suffix(".copy"))
        os.replace(copy, path)
    else:
        with open(path, "r+b") as file:
            content = bytearray(file.read())
            # The first byte of every float32, which leaves structure and magnitudes alone.
            half = len(content) // 2 & ~3
            content[half::4] = bytes(byte ^ 1 for byte in content[half::4])
            file.seek(0)
            file.write(content)


def whole(path: Path) -> bytes | None:
    """A model with its data, wherever that lies; None: no valid model."""
    if not path.exists():
        return None
    return onnx.load(path).SerializeToString(deterministic=True)


def broken(
    ended: Ended, output: Path, before: bytes | None, results: Sequence[bytes | None]
) -> str | None:
    """Which promise a run broke: `before` or one of `results` is under the name, whole.

    A run that ended by itself leaves no other files, prints one line if it failed, and has written
    if it did not.
    """
    here = whole(output)
    if ended.code is None:
        return None if here in (before, *results) else "killed, and the output is neither"
    lines = ended.said.splitlines()
    if ended.code not in (0, 1, 3) or "internal error" in ended.said:
        return f"exit code {ended.code}: {ended.said[:300]}"
    if (ended.code != 0) != (len(lines) == 1):
        return f"said {ended.said[:300]!r}"
    if here not in (results if ended.code == 0 else [before]):
        return f"exit code {ended.code}, and the output is another"
    beside = listing(output.parent) if output.parent.exists() else []
    hidden = [name for name in beside if name.startswith(".")]
    return f"left {hidden}" if hidden else None


def two_at_once(
    results: Mapping[Path, bytes | None], output: Path, options: Sequence[str], delay_s: float = 0.0
) -> str | None:
    """Optimize two models to one output, one some time after the other; which promise broke.

    results: for each model, what comes of it alone.
    """
    runs = []
    for source in results:
        runs.append(
            subprocess.Popen(
                [sys.executable, "-m", "onnxfold", "optimize", source, "-o", output, *options],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
        time.sleep(delay_s)
    ended = [(process.communicate()[1], process.returncode) for process in runs]
    for said, code in ended:
        if code != 0 and not (code == 3 and "another process has written it" in said):
            return f"exit code {code}: {said[:300]}"
    if not any(code == 0 for _, code in ended):
        return "none of them won"
    if whole(output) not in results.values():
        return "the output is neither, or a mixture"
    hidden = [name for name in listing(output.parent) if name.startswith(".")]
    return f"left {hidden}" if hidden else None


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A new disk of half a megabyte in an empty folder; None if none can be mounted."""
    mount = [MOUNT, "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    try:
        allowed = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run([UMOUNT, str(folder)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run([MOUNT, "-o", f"remount,{options}", str(disk)], check=True)
