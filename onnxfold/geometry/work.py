"""Measurement of shards, in this process or in others: one session each, shards in order.

The result of a shard depends on its rows alone: a session has a fixed number of threads, because
the order in which threads add affects the last bits. The result is therefore the same for any
number of workers.
"""

import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onnxfold.check.runners import OnnxRuntime
from onnxfold.errors import DataError, ModelError, one_line
from onnxfold.geometry.accumulate import Tables, Totals, kept_tables, of_tables
from onnxfold.geometry.instrument import MeasuredNorm
from onnxfold.graph import Dim
from onnxfold.inputs.data import Batch, Data, Shard
from onnxfold.model_io.load import Source
from onnxfold.runtime.library import ONLY_FATAL, runtime_errors

MOST_DEATHS = 3
_VECTORS_TOGETHER = 1 << 19  # over all norms: 32 MB of sums
Outputs = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker needs to measure any shard, in a picklable form; ``label`` names the model."""

    label: str
    norms: tuple[MeasuredNorm, ...]
    data: Data
    mask_dims: tuple[Dim, ...]
    seed: int
    model: Path | None
    providers: tuple[str, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class BadShard:
    """A shard that could not be read or run, and why."""

    shard: Shard
    reason: str


class Session(Protocol):
    """A runtime of the instrumented model."""

    def run(self, batches: Sequence[Batch]) -> Iterator[Outputs]:
        """Yield the outputs for each batch; raises errors of the runtime."""


class WholeSession:
    """An ONNX Runtime session of the whole model."""

    def __init__(self, task: Task):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = ONLY_FATAL
        options.intra_op_num_threads = task.threads
        try:
            self._session = ort.InferenceSession(
                str(task.model), options, providers=list(task.providers)
            )
        except runtime_errors() as error:
            reason = (
                f"ONNX Runtime cannot load it with its norms' values as outputs: {one_line(error)}"
            )
            raise ModelError(f"{task.label}: {reason}") from error
        self._names = [output.name for output in self._session.get_outputs()]
        self._wanted = {given.name for given in self._session.get_inputs()}

    def run(self, batches: Sequence[Batch]) -> Iterator[Outputs]:
        for batch in batches:
            feeds = {name: x for name, x in batch.feeds.items() if name in self._wanted}
            results = self._session.run(None, feeds)
            yield dict(zip(self._names, results, strict=True))


@dataclass(frozen=True, slots=True)
class InPieces:
    """A model larger than memory, run piece by piece, with all batches of a shard at each."""

    engine: OnnxRuntime
    source: Source

    def run(self, batches: Sequence[Batch]) -> Iterator[Outputs]:
        feeds = [batch.feeds for batch in batches]
        yield from self.engine.run(self.source, feeds, optimize=True)


def measured_shard(task: Task, session: Session, shard: Shard) -> Totals | BadShard:
    """Return the totals of a shard; one fault makes the whole shard bad."""
    totals, waiting = Totals.none(task.norms), list[Tables]()
    try:
        batches = task.data.batches(shard)
        # A model in pieces is loaded once per call, others take one batch at a time.
        groups = [list(batches)] if isinstance(session, InPieces) else ([b] for b in batches)
        for group in groups:
            for batch, outputs in zip(group, session.run(group), strict=True):
                waiting.append(kept_tables(task.norms, outputs, batch, task.mask_dims))
                if sum(tables.vectors for tables in waiting) >= _VECTORS_TOGETHER:
                    totals = totals.merged(of_tables(task.norms, waiting, task.seed))
                    waiting.clear()
    except DataError as error:
        return BadShard(shard, error.sentence)
    except runtime_errors() as error:
        reason = f"{shard.label}: onnxruntime cannot run the model on it: {one_line(error)}"
        return BadShard(shard, reason)
    return totals.merged(of_tables(task.norms, waiting, task.seed)) if waiting else totals


def in_turn(task: Task, session: Session, shards: Sequence[Shard]) -> Iterator[Totals | BadShard]:
    """Yield the totals of each shard, measured in this process."""
    for shard in shards:
        yield measured_shard(task, session, shard)


_HELD: dict[str, Any] = {}


def _start(task: Task) -> None:
    """Prepare a worker; an interrupt is left to the process that merges."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _HELD["task"], _HELD["session"] = task, WholeSession(task)


def _work(shard: Shard) -> Totals | BadShard:
    return measured_shard(_HELD["task"], _HELD["session"], shard)


def in_processes(
    task: Task, shards: Sequence[Shard], workers: int
) -> Generator[Totals | BadShard, None, None]:
    """Yield the totals of each shard in order, measured by worker processes.

    Shards of workers that die are measured again; raises ModelError if this continues.
    """
    done = 0
    for _ in range(MOST_DEATHS):
        try:
            with closing(_pooled(task, shards[done:], workers)) as results:
                for result in results:
                    yield result
                    done += 1
            return
        except BrokenProcessPool:
            continue
    raise ModelError(
        f"{shards[done].label}: {MOST_DEATHS} times a worker died near it; is there enough memory "
        "for --workers copies of the model?"
    )


def _pooled(
    task: Task, shards: Sequence[Shard], workers: int
) -> Generator[Totals | BadShard, None, None]:
    """Keep two shards per worker in progress, and yield results in the order of shards."""
    waiting: deque[Future[Totals | BadShard]] = deque()
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(task,)
    )
    try:
        for shard in shards:
            waiting.append(pool.submit(_work, shard))
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
