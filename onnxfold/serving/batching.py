"""Batching of waiting requests: stacked along axis 0, run once, split again.

Nothing waits while a worker is idle, unless a delay is configured. Requests share a run only if
they agree in everything but the number of rows, and the requests of a failed run are run again
alone, so that no client sees another's error.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onnxfold.serving.codec import RequestError
from onnxfold.serving.served_signature import Array

Key = tuple[object, ...]


class RunError(RuntimeError):
    """A run that failed through no fault of the request."""


class Run(Protocol):
    """Compute the named outputs for the arrays; called in a worker thread.

    Raises RequestError if the values are at fault, RunError for other failures.
    """

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    feeds: dict[str, Array]
    outputs: tuple[str, ...]
    rows: int
    since: float
    answer: asyncio.Future[list[Array]]


class Batcher:
    """Queues requests of one model and runs them in at most `workers` threads at a time.

    `max_rows` bounds a run of several requests; a single request may be larger. With `stackable`
    False each request runs alone. `observe` receives the requests and rows of every run, `ran` of
    every successful run: their number and rows, the sum of the seconds that they waited for it, and
    the seconds that it took.
    """

    def __init__(
        self,
        run: Run,
        executor: Executor,
        *,
        workers: int,
        max_rows: int,
        delay_s: float,
        stackable: bool,
        observe: Callable[[int, int], None] = lambda requests, rows: None,
        ran: Callable[[int, int, float, float], None] = lambda requests, rows, waited, took: None,
    ) -> None:
        self._run = run
        self._executor = executor
        self._idle = workers
        self._max_rows = max_rows if stackable else 0
        self._delay = delay_s if self._max_rows > 1 else 0.0
        self._observe = observe
        self._ran = ran
        self._queues: dict[Key, deque[_Waiting]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered = 0
        self._drained = asyncio.Event()
        self._drained.set()

    async def submit(self, feeds: dict[str, Array], outputs: tuple[str, ...]) -> list[Array]:
        """Return the outputs of one request; raises what the run raised."""
        loop = asyncio.get_running_loop()
        rows = next((a.shape[0] for a in feeds.values() if a.ndim), 1) if self._max_rows else 1
        waiting = _Waiting(feeds, outputs, rows, loop.time(), loop.create_future())
        self._unanswered += 1
        self._drained.clear()
        self._queues.setdefault(self._key(waiting), deque()).append(waiting)
        self._dispatch()
        try:
            return await waiting.answer
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._drained.set()

    async def drain(self) -> None:
        """Wait until every request is answered."""
        await self._drained.wait()

    @property
    def waiting(self) -> int:
        """How many requests wait for a worker."""
        return sum(len(queue) for queue in self._queues.values())

    def _key(self, waiting: _Waiting) -> Key:
        if not self._max_rows or not waiting.rows:
            return (id(waiting),)
        shapes = tuple(sorted((name, array.shape[1:]) for name, array in waiting.feeds.items()))
        return (waiting.outputs, shapes)

    def _dispatch(self) -> None:
        """Start runs while a worker is idle and a queue is ripe, or schedule the next attempt."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle and self._queues:
            key = min(self._queues, key=lambda key: self._ripe_at(self._queues[key]))
            ripe_at = self._ripe_at(self._queues[key])
            if ripe_at > loop.time():
                self._timer = loop.call_at(ripe_at, self._dispatch)
                return
            batch = self._take(key)
            if batch:
                self._start(batch)

    def _ripe_at(self, queue: deque[_Waiting]) -> float:
        """Return when a queue may run: at once if full, or a delay after its first request."""
        if not self._delay or sum(one.rows for one in queue) >= self._max_rows:
            return queue[0].since
        return queue[0].since + self._delay

    def _take(self, key: Key) -> list[_Waiting]:
        queue, batch, rows = self._queues[key], list[_Waiting](), 0
        while queue and (not batch or rows + queue[0].rows <= self._max_rows):
            one = queue.popleft()
            if not one.answer.done():  # its client disconnected
                batch.append(one)
                rows += one.rows
        if not queue:
            del self._queues[key]
        return batch

    def _start(self, batch: list[_Waiting]) -> None:
        self._idle -= 1
        self._observe(len(batch), sum(one.rows for one in batch))
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, self._compute, batch)
        start = loop.time()
        running.add_done_callback(lambda done: self._finish(batch, start, done))

    def _finish(
        self,
        batch: list[_Waiting],
        start: float,
        done: asyncio.Future[list[list[Array] | Exception]],
    ) -> None:
        self._idle += 1
        failure = done.exception()
        if failure is None:
            took = asyncio.get_running_loop().time() - start
            waited = sum(start - one.since for one in batch)
            self._ran(len(batch), sum(one.rows for one in batch), waited, took)
        answers = [failure] * len(batch) if failure is not None else done.result()
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, BaseException):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
        self._dispatch()

    def _compute(self, batch: Sequence[_Waiting]) -> list[list[Array] | Exception]:
        """Run a batch in a worker thread; if that fails, each of its requests alone."""
        if len(batch) == 1:
            return [self._run(batch[0].feeds, batch[0].outputs)]
        try:
            return list(self._together(batch))
        except (RequestError, RunError):
            return [self._alone(one) for one in batch]

    def _alone(self, one: _Waiting) -> list[Array] | Exception:
        try:
            return self._run(one.feeds, one.outputs)
        except (RequestError, RunError) as error:
            return error

    def _together(self, batch: Sequence[_Waiting]) -> list[list[Array]]:
        names = batch[0].feeds
        stacked = {name: np.concatenate([one.feeds[name] for one in batch]) for name in names}
        results = self._run(stacked, batch[0].outputs)
        total = sum(one.rows for one in batch)
        if any(not result.ndim or result.shape[0] != total for result in results):
            raise RunError("an output has a batch size other than the inputs'")
        answers, start = [], 0
        for one in batch:
            answers.append([result[start : start + one.rows] for result in results])
            start += one.rows
        return answers
