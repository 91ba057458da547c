"""Many models: finding them, their destinations, and the work on each, here or on Ray.

Models are distributed, never parts of one. An error of one is recorded in its row, and the others
continue. Native code may crash: where that must end only one, it runs as a command of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxfold.errors import (
    CommandInterruptedError,
    InvariantError,
    ModelError,
    OnnxfoldError,
    UsageError,
    VerificationError,
    one_line,
)

LOCAL = "local"  # the address of a cluster that is started here, and stopped after the work
_PATIENCE_S = 10.0
# Waiting threads of ONNX Runtime spin: beyond the number of cores each one costs time, and with
# 1,000 on two cores a run never ends. A setting for a larger machine is accepted.
_THREADS_PER_CORE, _THREADS_ANYWHERE = 4, 64


def check_threads(name: str, count: int) -> None:
    """Raise UsageError for more threads or processes than this machine can use."""
    most = max(_THREADS_ANYWHERE, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if count > most:
        raise UsageError(f"{name} must be {most} or less on this machine, not {count}")


@dataclass(frozen=True, slots=True)
class Errand:
    """A model and its destination, or None if nothing is written."""

    model: Path
    output: Path | None


# The work on a model returns its facts, or raises an OnnxfoldError. Ray pickles it.
Work = Callable[[Path, Path | None], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The outcome for one model: the facts, or the error."""

    model: str
    output: str | None
    found: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document: the facts and the other fields."""
        known = {"model": self.model, "output": self.output}
        return {**known, **self.found, "error": self.error, "exit_code": self.exit_code}

    @property
    def failure(self) -> str | None:
        """The error, which names the model, or None."""
        if self.error is None or self.model in self.error:
            return self.error
        return f"{self.model}: {self.error}"


def models_of(path: Path, without: Path | None = None) -> list[Path]:
    """Return a model, or every .onnx file under a folder except those under ``without``.

    Raises UsageError for a folder without any.
    """
    if not path.is_dir():
        return [path]
    left = None if without is None else without.resolve()
    found = sorted(
        file
        for file in path.rglob("*.onnx")
        if file.is_file() and (left is None or left not in file.resolve().parents)
    )
    if not found:
        raise UsageError(f"{path}: it contains no .onnx file")
    return found


def errands(given: Sequence[Path], folder: Path | None) -> list[Errand]:
    """Return every given model; a folder's keep their relative paths under the results folder.

    Raises UsageError for a folder without models, for a results folder that is a file, if two
    results would have one path, and if one would replace a model.
    """
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: it is a file; name a folder for the results")
    models: dict[str, Errand] = {}
    for path in given:
        root = path if path.is_dir() else path.parent
        for model in models_of(path, folder):
            output = None if folder is None else folder / model.relative_to(root)
            models.setdefault(os.path.realpath(model), Errand(model, output))
    taken: dict[str, Path] = {}
    for errand in models.values():
        if errand.output is None:
            continue
        place = os.path.realpath(errand.output)
        if place in models:
            raise UsageError(f"{folder}: '{errand.output}' is a model; name a folder of its own")
        if place in taken:
            both = f"'{taken[place]}' and '{errand.model}'"
            raise UsageError(f"{both} would both be written to '{errand.output}'; rename one")
        taken[place] = errand.model
    return list(models.values())


def spread(
    work: Work, todo: Sequence[Errand], *, jobs: int = 1, ray: str | None = None, cpus: int = 1
) -> Iterator[FleetRow]:
    """Yield the rows of models as they are done, ``jobs`` of them at once.

    ``ray`` is the address of a cluster whose nodes find all files under their paths, and whose
    tasks each use so many ``cpus``; "local" starts one here. Raises UsageError without Ray or the
    cluster.
    """
    if ray is not None:
        yield from _in_cluster(work, todo, ray, cpus)
    elif jobs == 1:  # in this thread, which an interrupt reaches
        yield from (attempted(work, errand) for errand in todo)
    else:
        pool = ThreadPoolExecutor(jobs)
        try:
            tasks = [pool.submit(attempted, work, errand) for errand in todo]
            yield from (task.result() for task in as_completed(tasks))
        finally:
            pool.shutdown(cancel_futures=True)


def attempted(work: Work, errand: Errand) -> FleetRow:
    """Do the work on one model; an error is recorded in its row."""
    output, names = errand.output, _names(errand)
    try:
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
        return FleetRow(*names, work(errand.model, output))
    except OnnxfoldError as error:
        return FleetRow(*names, error=str(error), exit_code=error.exit_code)
    except OSError as error:
        what = f"{error.filename or names[1]}: {error.strerror or one_line(error)}"
        return FleetRow(*names, error=what, exit_code=ModelError.exit_code)
    except Exception as error:  # a defect, which is reported and ends only this model's work
        what = f"internal error, {type(error).__name__}: {one_line(error)}"
        return FleetRow(*names, error=what, exit_code=InvariantError.exit_code)


def _in_cluster(work: Work, todo: Sequence[Errand], address: str, cpus: int) -> Iterator[FleetRow]:
    """Yield rows as models are done, each by a task of Ray."""
    with connected(address, "working on a cluster") as ray:
        remote = ray.remote(num_cpus=cpus, max_retries=1)(attempted)
        tasks: dict[Any, Errand] = {
            remote.remote(work, Errand(*map(_absolute, (each.model, each.output)))): each
            for each in todo
        }
        while tasks:
            (done, *_), _ = ray.wait(list(tasks), num_returns=1)
            names = _names(tasks.pop(done))
            try:
                yield replace(ray.get(done), model=names[0], output=names[1])
            except ray.exceptions.RayError as error:
                what = f"a worker of Ray died with it: {one_line(error)}"
                yield FleetRow(*names, error=what, exit_code=ModelError.exit_code)


def _names(errand: Errand) -> tuple[str, str | None]:
    return str(errand.model), None if errand.output is None else str(errand.output)


def _absolute(path: Path | None) -> Any:
    return None if path is None else path.absolute()


@contextmanager
def connected(address: str, doing: str) -> Iterator[Any]:
    """Connect to the cluster at an address, and yield Ray.

    Raises UsageError if Ray is not installed or the cluster does not exist.
    """
    from onnxfold.inputs.data.shards import optional  # here, for one model needs no inputs

    ray = optional("ray", "ray", doing, "ray")
    try:
        _await(address)
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"--ray '{address}': {one_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _await(address: str) -> None:
    """Connect to HOST:PORT, where Ray would try for minutes and then end the process.

    Raises OSError if nothing answers.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


_BY_EXIT_CODE = {error.exit_code: error for error in (VerificationError, UsageError, ModelError)}
_PREFIX = "onnxfold: "


def optimized_apart(
    model: Path, output: Path | None, words: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Optimize a file with these options of the command line; return its report and its warnings.

    A project file is not read. Raises as :func:`onnxfold.optimize` does, and OnnxfoldError if the
    process dies.
    """
    where = () if output is None else ("-o", str(output))
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        report = Path(folder, "report.json")
        told = ("--report", str(report), *where, *words, "--", str(model))
        done = subprocess.run(  # noqa: S603  # our own command
            [sys.executable, "-m", "onnxfold", "--no-config", "-q", "optimize", *told],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        said = [line.removeprefix(_PREFIX) for line in done.stderr.strip().splitlines()]
        if done.returncode == CommandInterruptedError.exit_code:
            raise CommandInterruptedError
        if done.returncode:
            raise _BY_EXIT_CODE.get(done.returncode, OnnxfoldError)(
                said[-1] if said else f"it ended with exit code {done.returncode} and no word"
            )
        return json.loads(report.read_text(encoding="utf-8")), said
