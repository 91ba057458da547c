"""The separate process of a job: `python -m onnxfold.tuning.child JOB.json`.

It reads the job from a file and writes the result into another; a crash, a hang or excessive memory
ends only this process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.errors import one_line
from onnxfold.tuning.processes import store, stored
from onnxfold.wording import naming_flags

if TYPE_CHECKING:
    from onnxfold.model_io.load import Source
    from onnxfold.runtime.interleaved_timing import Variant

Document = dict[str, Any]
_QUICK_S, _QUICK_ROUNDS = 1.5, 60


def main(job_file: Path) -> int:
    """Do one job and write its result next to it; the exit code is 1 if the job failed."""
    job = json.loads(job_file.read_text(encoding="utf-8"))
    with naming_flags():  # the parent words what it shows
        try:
            if job["memory"] is not None:
                _limit_memory(job["memory"])
            result = _JOBS[job["kind"]](job)
        except BaseException as error:  # everything that a library raises is the result of this job
            result = {"error": f"{type(error).__name__}: {one_line(_shown(error))}"}
    part = job_file.with_name("result.part")  # what a full disk cuts off is no result
    part.write_text(json.dumps(result), encoding="utf-8")
    part.rename(job_file.with_name("result.json"))
    return int("error" in result)


def _shown(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else Exception(str(error))


def _limit_memory(limit: int) -> None:
    """Limit the allocations of this process, without mapped files; only Linux supports this."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextmanager
def _device() -> Iterator[None]:
    """Reserve the machine's devices for a while, so that runs of several searches take turns.

    Otherwise they would disturb each other's times. Systems without file locks proceed at once.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = Path(tempfile.gettempdir(), f"onnxfold-timing-{os.getuid()}.lock")
    with path.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _step(job: Document) -> Document:
    from onnxfold.options import Device
    from onnxfold.tuning.facts import ModelFacts
    from onnxfold.tuning.steps import STEPS, Context

    context = Context(
        ModelFacts(**job["facts"]),
        Device(job["device"]),
        tuple(job["exclude"]),
        tuple(_loaded(job["feeds"])),
    )
    STEPS[job["step"]].apply(Path(job["source"]), Path(job["output"]), context)
    return {}


def _loaded(paths: Sequence[str]) -> list[dict[str, Any]]:
    return [stored(Path(path)) for path in paths]


@dataclass(frozen=True, slots=True)
class _Track:
    """Where entrants run: the device with its threads, and whether to use CUDA graphs."""

    providers: tuple[str, ...]
    threads: int

    @property
    def on_cuda(self) -> bool:
        return self.providers[0].startswith("CUDA")

    @property
    def clock(self) -> Callable[[], float]:
        """The clock that other processes disturb least; processor time only counts one thread."""
        alone = self.threads == 1 and not self.on_cuda
        return time.process_time if alone else time.perf_counter

    def session(self, entrant: Variant, feeds: Mapping[str, Any], *, graph: bool = False) -> Any:
        providers: list[Any] = list(self.providers)
        if graph:
            providers[0] = (providers[0], {"enable_cuda_graph": "1"})
        dimensions = _dimensions(entrant.path, feeds) if self.on_cuda else ()
        return replace(entrant, dimensions=dimensions).session(self.threads, providers)

    def runner(
        self, entrant: Variant, feeds: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Callable[[], object]:
        """Return a call that runs the model once, on CUDA as a graph if the session supports it.

        Inputs and outputs of a GPU stay there; ``outputs`` are arrays of their shapes.
        """
        if not self.on_cuda:
            session = self.session(entrant, feeds)
            known = _known(session, feeds)
            return lambda: session.run(None, known)
        from onnxfold.errors import OnnxfoldError
        from onnxfold.runtime.interleaved_timing import Bound, memory_for, values_on
        from onnxfold.runtime.library import runtime_errors

        refusals: tuple[type[Exception], ...] = (*runtime_errors(), OnnxfoldError)
        for graph in (True, False):
            try:
                session = self.session(entrant, feeds, graph=graph)
                inputs = values_on("cuda", _known(session, feeds))
                bound = Bound(session, inputs, memory_for("cuda", session, outputs))
                for _ in range(3):  # to warm up, to capture, to replay
                    bound.run()
            except refusals:  # nodes that a graph cannot capture
                if not graph:
                    raise
            else:
                break
        return bound.run


def _known(session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    names = {value.name for value in session.get_inputs()}
    names |= {value.name for value in session.get_overridable_initializers()}
    return {name: array for name, array in feeds.items() if name in names}


def _dimensions(path: Path, feeds: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return the sizes of symbolic dimensions, without those with several sizes."""
    from onnxfold import model_io

    sizes: dict[str, set[int]] = {}
    for value in model_io.load(path).graph.inputs:
        if value.shape is None or str(value.name) not in feeds:
            continue
        for dim, size in zip(value.shape, feeds[str(value.name)].shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                sizes.setdefault(str(dim.value), set()).add(size)
    return tuple((name, found.pop()) for name, found in sizes.items() if len(found) == 1)


def _track(job: Document) -> _Track:
    os.environ.setdefault("OMP_NUM_THREADS", str(job["threads"]))
    from onnxfold.runtime.library import find_cuda

    find_cuda(job["providers"])
    return _Track(tuple(job["providers"]), job["threads"])


def _entrant(document: Document) -> Variant:
    from onnxfold.runtime.interleaved_timing import Variant

    return Variant(**{**document, "path": Path(document["path"])})


def _run(job: Document) -> Document:
    """Run a model on every feed, keep the outputs, and time it against the first entrant."""
    from onnxfold.errors import OnnxfoldError
    from onnxfold.runtime.library import runtime_errors

    track, entrant, feeds = _track(job), _entrant(job["entrant"]), _loaded(job["feeds"])
    refusals: tuple[type[Exception], ...] = (*runtime_errors(), OnnxfoldError)
    with _device():
        try:
            return _ran(track, entrant, feeds, job)
        except refusals:
            if job["timed_here"]:
                raise
            return _interpreted(entrant.path, feeds, job)


def _interpreted(path: Path, feeds: Sequence[Mapping[str, Any]], job: Document) -> Document:
    """Run a model in the interpreter, in its own types, if the device lacks its kernels."""
    from onnxfold import model_io
    from onnxfold.check.runners import native

    results = native(model_io.load(path), feeds)
    for number, result in enumerate(results):
        store(Path(job["outputs"], f"{number}.npz"), result)
    return {}


def _ran(
    track: _Track, entrant: Variant, feeds: Sequence[Mapping[str, Any]], job: Document
) -> Document:
    from onnxfold.runtime.interleaved_timing import RunCounts, take_turns
    from onnxfold.runtime.sessions import session_operators

    for number, feed in enumerate(feeds):
        if number == 0 or track.on_cuda:  # sizes are fixed there
            session = track.session(entrant, feed)
        names = [value.name for value in session.get_outputs()]
        results = session.run(names, _known(session, feed))
        store(Path(job["outputs"], f"{number}.npz"), dict(zip(names, results, strict=True)))
    result: Document = {}
    if not job["timed_here"]:
        result["operators"] = session_operators(entrant.path, kernels=entrant.kernels)
    elif job["beside"] is not None:
        result["operators"] = session_operators(
            entrant.path, kernels=entrant.kernels, providers=track.providers
        )
        del session
        timed, shaped = _loaded([job["timed"], job["shaped"]])
        runs = [track.runner(each, timed, shaped) for each in (_entrant(job["beside"]), entrant)]
        counts = RunCounts(_QUICK_ROUNDS, 3, _QUICK_S, clock=track.clock)
        seconds = take_turns(runs, counts)
        result["ratio"] = float(np.median(seconds[0] / seconds[1]))
        result["milliseconds"] = float(1e3 * np.median(seconds[1]))
    return result


def _race(job: Document) -> Document:
    """Time entrants in turns, and return the seconds of each in every round."""
    from onnxfold.runtime.interleaved_timing import RunCounts, take_turns

    track, (timed, shaped) = _track(job), _loaded([job["timed"], job["shaped"]])
    counts = RunCounts(job["rounds"], job["least"], job["most_seconds"], clock=track.clock)
    with _device():
        runs = [track.runner(_entrant(each), timed, shaped) for each in job["entrants"]]
        return {"seconds": take_turns(runs, counts).tolist()}


def _blame(job: Document) -> Document:
    """Return nodes of a file before a step by their contribution to the error after it."""
    from onnxfold.check.blame import rank

    before, after = _two(job)
    return {"nodes": rank(before, after, _loaded(job["feeds"]), _loaded(job["truths"]))}


def _broken(job: Document) -> Document:
    """Return what is wrong by itself after a step although the outputs are close enough."""
    from onnxfold.check.blame import broken

    before, after = _two(job)
    feeds, truths = _loaded(job["feeds"]), _loaded(job["truths"])
    found = broken(before, after, feeds, truths, job["allowed"])
    return {"fault": found[0].fault if found else None}


def _two(job: Document) -> list[Source]:
    from onnxfold.model_io.load import open_source

    paths = (Path(job[name]) for name in ("before", "after"))
    return [open_source(path) for path in paths]


_JOBS: Mapping[str, Callable[[Document], Document]] = {
    "step": _step,
    "run": _run,
    "race": _race,
    "blame": _blame,
    "broken": _broken,
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
