"""The process of a command: one of its own, so that even a killed command ends with a message.

onnx and ONNX Runtime are native code, and a damaged file may crash their process; the system kills
it if memory runs out. A second process, which only waits, reports this, removes the staged files,
and passes on signals.

The command also starts and ends quickly. ``import onnxfold`` does nothing for that: how a process
imports and collects garbage is its owner's choice, and only the command owns its process.
"""

import atexit
import ctypes
import gc
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from onnxfold.errors import ModelError

# By name: not every system has all of them. The first are sent by a user or a system to a command.
_ASKED = tuple(n for n in signal.Signals if n.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"))
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS", "SIGTRAP", "SIGSYS")
_NAMES = {number.value: number.name for number in signal.Signals}
_PR_SET_PDEATHSIG = 1  # prctl(2)
_BOARD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Work:
    """The state of a command: model, output folder, stage, and whether the stage has ended."""

    model: str = ""
    folder: str = ""
    stage: str = ""
    ended: bool = False


class _Board:
    """Memory that outlives the process that writes to it, for the one that waits."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BOARD_BYTES)
        self.work = _Work()

    def note(self, work: _Work) -> None:
        self.work = work
        text = json.dumps(asdict(work)).encode()
        if len(text) <= _BOARD_BYTES:
            self._memory[:] = text.ljust(_BOARD_BYTES)

    def read(self) -> _Work:
        """Return what another process noted; nothing if it was killed while writing."""
        try:
            return _Work(**json.loads(self._memory[:]))
        except ValueError:
            return _Work()


_BOARD = _Board()


def note_work(model: Path, folder: Path | None) -> None:
    """Record what a message about this process needs: its model, and its output folder."""
    _BOARD.note(_Work(model=str(model), folder="" if folder is None else str(folder.absolute())))


def note_stage(stage: str, *, ended: bool) -> None:
    """Record which stage is in progress, or has just ended."""
    if (stage, ended) != (_BOARD.work.stage, _BOARD.work.ended):
        _BOARD.note(replace(_BOARD.work, stage=stage, ended=ended))


def guarded(work: Callable[[], None]) -> None:
    """Run `work` in a child process and end as it ended.

    Returns, or raises what `work` raises, only in the child; the parent ends with the child's exit
    code, or by the child's signal if somebody sent it. On systems other than Linux the work is done
    in this process.

    Raises ModelError in the parent if an unrequested signal ended the child.
    """
    if sys.platform != "linux":
        work()
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, a child leaves no status
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, (*_ASKED, signal.SIGCHLD))
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        work()
    else:
        _end_as(child, _status(child))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(128 + signal.SIGKILL)


def _status(child: int) -> int:
    """Pass on signals while waiting, and return how the child ended."""
    while True:
        info = signal.sigwaitinfo((*_ASKED, signal.SIGCHLD))
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif info.si_code <= 0:  # sent by a process to this one; a terminal's reach the child too
            os.kill(child, info.si_signo)


def _end_as(child: int, status: int) -> NoReturn:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))  # nothing to clean up that would need its time
    number = os.WTERMSIG(status)
    # Imports that only this case needs.
    import tempfile

    from onnxfold.model_io.staging import remove_left_by

    work = _BOARD.read()
    for folder in filter(None, (work.folder, tempfile.gettempdir())):
        remove_left_by(child, Path(folder))
    if number in _ASKED:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        sys.exit(128 + number)  # the first process of a container is not ended by a signal
    raise ModelError(_sentence(number, work))


def _sentence(number: int, work: _Work) -> str:
    killed = number == signal.SIGKILL
    name = _NAMES.get(number, f"signal {number}")
    crashed = f"native code crashed ({name})" if name in _CRASHES else f"was ended by {name}"
    what = "was killed, as by a system that runs out of memory," if killed else crashed
    when = f" {'after' if work.ended else 'in'} the stage '{work.stage}'" if work.stage else ""
    output = "; the output is as it was, or whole" if work.folder else ""
    if not killed:
        remedy = "--verbose shows where"
    elif work.stage == "verify":
        remedy = "--memory bounds what the check takes"
    else:
        remedy = "give it more memory"
    return f"{work.model or 'the command'}: {what}{when}{output}; {remedy}"


# onnx-ir imports sympy for arithmetic with symbolic dimensions, which no command needs; that is
# half of its import time.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
# Nodes and values are many, long-lived and cyclic: collecting garbage at every 700 of them finds
# nothing and takes a tenth of the time. The imports alone create 80,000, and one collection of
# these takes as long as the analysis of a small model.
_COLLECT_EVERY = 300_000
_USUAL = gc.get_threshold()


class _Deferring:
    """Finder of deferred modules; importlib loads them when an attribute is first used."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _DEFERRED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def start_quickly() -> None:
    """Defer imports that most runs never use, and collect garbage rarely, and not at the end."""
    sys.meta_path.insert(0, _Deferring)
    gc.set_threshold(_COLLECT_EVERY)
    # On exit Python collects twice over everything left, which the process frees anyway.
    atexit.register(gc.freeze)


def go_on_as_usual() -> None:
    """Undo :func:`start_quickly`, for a long-running command with several threads.

    Deferred modules are loaded now: two threads that use one for the first time would find it half
    loaded.
    """
    gc.set_threshold(*_USUAL)
    atexit.unregister(gc.freeze)
    if _Deferring in sys.meta_path:
        sys.meta_path.remove(_Deferring)
    for name in _DEFERRED & sys.modules.keys():
        dir(sys.modules[name])
