"""Requests share runs where they may, and no client sees another's data or error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from onnxfold.serving.batching import Batcher, RunError
from onnxfold.serving.codec import RequestError
from onnxfold.serving.served_signature import Array

_BAD = -1.0


class Doubler:
    """y = 2 x; waits at a gate so that requests pile up; refuses rows that hold _BAD."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.runs: list[int] = []

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.gate.wait()
        x = feeds["x"]
        self.runs.append(x.shape[0])
        if (x == _BAD).any():
            raise RequestError("bad value")
        return [2 * x for _ in outputs]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def rows(*values: float, width: int = 2) -> dict[str, Array]:
    return {"x": np.repeat(np.asarray(values)[:, None], width, axis=1)}


def batcher(
    run: Doubler, executor: ThreadPoolExecutor, *, stackable: bool = True, delay_s: float = 0.0
) -> Batcher:
    return Batcher(run, executor, workers=1, max_rows=4, delay_s=delay_s, stackable=stackable)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def answers(
    run: Doubler, queue: Batcher, requests: Sequence[dict[str, Array]]
) -> list[list[Array] | BaseException]:
    """Send all before the first run is let through."""
    tasks = [asyncio.create_task(queue.submit(feeds, ("y",))) for feeds in requests]
    await settled()
    run.gate.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_what_waits_for_a_worker_shares_a_run(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    requests = [rows(1), rows(2), rows(3, 4), rows(5), rows(6)]
    got = asyncio.run(answers(run, batcher(run, executor), requests))
    assert run.runs == [1, 4, 1]
    for feeds, result in zip(requests, got, strict=True):
        assert not isinstance(result, BaseException)
        np.testing.assert_array_equal(result[0], 2 * feeds["x"])


def test_a_request_larger_than_a_batch_runs_alone(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    asyncio.run(answers(run, batcher(run, executor), [rows(1), rows(*range(7)), rows(2)]))
    assert run.runs == [1, 7, 1]


def test_other_shapes_never_share_a_run(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    requests = [rows(1), rows(2, width=3), rows(3), rows(4, width=3)]
    got = asyncio.run(answers(run, batcher(run, executor), requests))
    assert sorted(run.runs) == [1, 1, 2]
    for feeds, result in zip(requests, got, strict=True):
        assert not isinstance(result, BaseException)
        np.testing.assert_array_equal(result[0], 2 * feeds["x"])


def test_a_model_that_mixes_rows_runs_each_request_alone(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    asyncio.run(answers(run, batcher(run, executor, stackable=False), [rows(1)] * 4))
    assert run.runs == [1, 1, 1, 1]


def test_one_bad_request_fails_alone(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    requests = [rows(1), rows(2), rows(_BAD), rows(3)]
    got = asyncio.run(answers(run, batcher(run, executor), requests))
    assert run.runs == [1, 3, 1, 1, 1]
    assert [isinstance(one, RequestError) for one in got] == [False, False, True, False]


def test_outputs_without_the_rows_of_the_inputs_are_not_split(executor: ThreadPoolExecutor) -> None:
    class Summing(Doubler):
        def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
            super().__call__(feeds, outputs)
            return [feeds["x"].sum(axis=0, keepdims=True)]

    run = Summing()
    got = asyncio.run(answers(run, batcher(run, executor), [rows(1), rows(2), rows(3)]))
    assert run.runs == [1, 2, 1, 1]
    assert [one[0][0, 0] for one in got if not isinstance(one, BaseException)] == [1, 2, 3]


def test_a_delay_gathers_requests_for_an_idle_worker(executor: ThreadPoolExecutor) -> None:
    """The batch is full long before the delay is over, and then runs at once."""
    run = Doubler()
    queue = batcher(run, executor, delay_s=600.0)
    asyncio.run(answers(run, queue, [rows(1), rows(2), rows(3), rows(4)]))
    assert run.runs == [4]


def test_a_lone_request_runs_when_its_delay_is_over(executor: ThreadPoolExecutor) -> None:
    run = Doubler()
    queue = batcher(run, executor, delay_s=0.01)
    asyncio.run(answers(run, queue, [rows(1)]))
    assert run.runs == [1]


def test_a_client_that_goes_away_is_not_computed(executor: ThreadPoolExecutor) -> None:
    run = Doubler()

    async def scene() -> list[Array]:
        queue = batcher(run, executor)
        first, gone, last = (
            asyncio.create_task(queue.submit(rows(value), ("y",))) for value in (1, 2, 3)
        )
        await settled()
        gone.cancel()
        await settled()
        run.gate.set()
        await first
        return await last

    assert asyncio.run(scene())[0][0, 0] == 6
    assert run.runs == [1, 1]


def test_draining_waits_for_what_is_under_way(executor: ThreadPoolExecutor) -> None:
    run = Doubler()

    async def scene() -> bool:
        queue = batcher(run, executor)
        await queue.drain()  # nothing to wait for
        task = asyncio.create_task(queue.submit(rows(1), ("y",)))
        draining = asyncio.create_task(queue.drain())
        await settled()
        early = draining.done()
        run.gate.set()
        await draining
        return not early and task.done()

    assert asyncio.run(scene())


def test_an_unforeseen_error_reaches_its_client_and_the_worker_lives(
    executor: ThreadPoolExecutor,
) -> None:
    class Broken(Doubler):
        def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
            if not self.runs:
                self.runs.append(0)
                raise MemoryError
            return super().__call__(feeds, outputs)

    run = Broken()
    got = asyncio.run(answers(run, batcher(run, executor), [rows(1), rows(2)]))
    assert isinstance(got[0], MemoryError)
    assert not isinstance(got[1], BaseException)


def test_a_run_error_is_told(executor: ThreadPoolExecutor) -> None:
    def run(feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        raise RunError("no memory")

    async def scene() -> None:
        queue = Batcher(run, executor, workers=1, max_rows=4, delay_s=0.0, stackable=True)
        await queue.submit(rows(1), ("y",))

    with pytest.raises(RunError, match="no memory"):
        asyncio.run(scene())
