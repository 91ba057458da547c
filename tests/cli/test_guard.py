"""A command that is killed ends in one line, and leaves nothing; one that is asked to end, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a command is one process here")

# The command line, with an action at the start of a stage.
_PROGRAM = """
import ctypes, os, signal, sys, time
from onnxfold.cli import guard
from onnxfold.__main__ import run
from onnxfold.cli import terminal

def note_stage(stage, *, ended):
    guard.note_stage(stage, ended=ended)
    if (stage, ended) == ({stage!r}, False):
        {act}

terminal.note_stage = note_stage
run()
"""
# Whoever runs the tests may ignore some of these, as nohup does, and their children inherit that.
_HEEDFUL = """
import signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
_OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
_WAIT = "print(os.getpid(), flush=True); time.sleep(300)"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(model: Path, act: str, *words: str, stage: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HEEDFUL + _PROGRAM.format(act=act, stage=stage), *words],
        cwd=model.parent,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def optimized(model: Path, act: str, stage: str) -> tuple[int, str, str]:
    with start(
        model,
        act,
        *"optimize model.onnx -o fast.onnx --fold always --json".split(),
        stage=stage,
    ) as process:
        out, said = process.communicate(timeout=120)
    return process.returncode, out, said


@contextmanager
def waiting(model: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield an `optimize` that has staged its output and sleeps, and the process that works."""
    words = ("optimize", "model.onnx", "-o", "fast.onnx", "--fold", "always", "--json")
    with start(model, _WAIT, *words, stage="verify") as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert worker != process.pid
        assert list(model.parent.glob(".onnxfold-*"))
        try:
            yield process, worker
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("act", "name", "stage"),
    [
        ("ctypes.string_at(0)", "SIGSEGV", "load"),
        ("os.abort()", "SIGABRT", "prove"),
        ("os.kill(os.getpid(), signal.SIGFPE)", "SIGFPE", "verify"),
    ],
)
def test_a_crash_is_one_line_and_leaves_nothing(
    model: Path, act: str, name: str, stage: str
) -> None:
    assert optimized(model, act, stage) == (
        3,
        "",
        f"onnxfold: model.onnx: native code crashed ({name}) in the stage '{stage}'; "
        "the output is as it was, or whole; --verbose shows where\n",
    )
    assert os.listdir(model.parent) == ["model.onnx"]


def test_a_kill_by_the_system_is_one_line_and_leaves_nothing(model: Path) -> None:
    assert optimized(model, "os.kill(os.getpid(), signal.SIGKILL)", "verify") == (
        3,
        "",
        "onnxfold: model.onnx: was killed, as by a system that runs out of memory, in the "
        "stage 'verify'; the output is as it was, or whole; --memory bounds what the check takes\n",
    )
    assert os.listdir(model.parent) == ["model.onnx"]


def test_verbose_shows_where_it_crashed(model: Path) -> None:
    words = ("--verbose", "optimize", "model.onnx", "-o", "fast.onnx", "--fold", "always", "--json")
    with start(model, "ctypes.string_at(0)", *words, stage="prove") as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "Segmentation fault" in said
    assert "in note_stage" in said
    assert "native code crashed (SIGSEGV) in the stage 'prove'" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_who_asks_it_to_end_is_obeyed(model: Path, number: signal.Signals) -> None:
    with waiting(model) as (process, worker):
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == -number
        assert said == ""
        assert not is_running(worker)
    assert os.listdir(model.parent) == ["model.onnx"]


def test_an_interrupt_is_handed_on(model: Path) -> None:
    with waiting(model) as (process, worker):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert said == "onnxfold: interrupted, nothing was written\n"
        assert process.returncode == 130
        assert not is_running(worker)
    assert os.listdir(model.parent) == ["model.onnx"]


@pytest.mark.parametrize("imported", ["typer", "pydantic", "numpy", "onnxfold.pipeline"])
def test_an_interrupt_of_an_import_is_no_traceback(imported: str, model: Path) -> None:
    """Typer is imported before a command begins, pydantic by Typer, the others by the command."""
    program = f"""
import sys
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "{imported}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
from onnxfold.__main__ import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", str(model)],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = "onnxfold: interrupted, nothing was written\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_the_interrupt_of_a_terminal_comes_once(model: Path) -> None:
    """Both processes hear of it, and the one that waits must not hand it on."""
    # A byte for each signal that is delivered: Python's own handlers may run once for two.
    count = "r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)"
    quiet = "signal.signal(signal.SIGINT, lambda *_: None)"
    told = "os.write(1, b'told %d.' % len(os.read(r, 9)))"
    act = f"{count}; {quiet}; os.write(1, b'ready '); time.sleep(1); {told}; os._exit(7)"
    ours, theirs = os.openpty()
    program = _OWN_TERMINAL + _PROGRAM.format(act=act, stage="load")
    with subprocess.Popen(
        [sys.executable, "-c", program, "optimize", "model.onnx", "--dry-run"],
        cwd=model.parent,
        env=_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        read_until(ours, b"ready ")
        os.write(ours, b"\x03")
        assert process.wait(timeout=60) == 7
    said = read_until(ours, b"")
    os.close(ours)
    assert b"told 1." in said


def read_until(terminal: int, word: bytes) -> bytes:
    """Read until a word came, or, without one, until nothing is left."""
    said = b""
    while not word or word not in said:
        try:
            said += os.read(terminal, 1024)
        except OSError:  # the other end was closed
            break
    return said


def test_the_work_ends_with_the_one_who_waits_for_it(model: Path) -> None:
    with waiting(model) as (process, worker):
        process.kill()
        process.wait(timeout=60)
        until = time.monotonic() + 60
        while is_running(worker):
            assert time.monotonic() < until
            time.sleep(0.01)
    assert (model.parent / "model.onnx").exists()


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_what_its_caller_ignores_does_not_end_it(model: Path) -> None:
    """As under nohup: the hangup of a terminal reaches both processes, and the work is done."""
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    act = "os.kill(os.getppid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGHUP)"
    program = ignored + _PROGRAM.format(act=act, stage="verify")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            *"-q optimize model.onnx -o fast.onnx --fold always".split(),
        ],
        cwd=model.parent,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(model.parent)) == ["fast.onnx", "model.onnx"]
