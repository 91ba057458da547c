"""Measurement of shards on a Ray cluster: one actor per worker, results in the order of shards.

Actors are spread over the nodes, because each needs memory and threads for a session. Ray restarts
an actor, on any node, if its process or node dies, and gives it its shard again.
"""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from onnxfold.errors import ModelError, one_line
from onnxfold.fleet import LOCAL, connected
from onnxfold.geometry.accumulate import Totals
from onnxfold.geometry.work import MOST_DEATHS, BadShard, Task, WholeSession, measured_shard
from onnxfold.inputs.data import Shard


class _Worker:
    """A session in a process of Ray; ``files``: the model's, if no disk is shared."""

    def __init__(self, task: Task, files: Mapping[str, bytes]):
        self._task = task
        # A session keeps what it has mapped, so no file remains, however the worker ends.
        with TemporaryDirectory(prefix="onnxfold-", ignore_cleanup_errors=True) as folder:
            if files and task.model is not None:
                for name, content in files.items():
                    Path(folder, name).write_bytes(content)
                task = replace(task, model=Path(folder, task.model.name))
            self._session = WholeSession(task)

    def measure(self, shard: Shard) -> Totals | BadShard:
        return measured_shard(self._task, self._session, shard)


def in_cluster(
    task: Task, shards: Sequence[Shard], workers: int, address: str
) -> Generator[Totals | BadShard, None, None]:
    """Yield the totals of each shard in order, measured by actors of the cluster at ``address``.

    Every node must find the data under its path. Raises UsageError if Ray is not installed or the
    cluster does not exist, ModelError if workers die repeatedly.
    """
    with connected(address, "measuring on a cluster") as ray:
        yield from _by_actors(ray, task, shards, workers, share=address != LOCAL)


def _by_actors(
    ray: Any, task: Task, shards: Sequence[Shard], workers: int, *, share: bool
) -> Generator[Totals | BadShard, None, None]:
    """Keep two shards per actor in progress, and yield results in the order of shards."""
    # Ray counts every attempt to reach a restarting actor as a retry, so only deaths are counted.
    options: dict[str, Any] = {"max_restarts": MOST_DEATHS - 1, "max_task_retries": -1}
    options |= {"num_cpus": task.threads, "scheduling_strategy": "SPREAD"}
    remote = ray.remote(**options)(_Worker)
    files = ray.put(_files(task.model)) if share and task.model is not None else {}
    actors = [remote.remote(task, files) for _ in range(workers)]
    waiting: deque[tuple[Shard, Any]] = deque()
    for number, shard in enumerate(shards):
        waiting.append((shard, actors[number % workers].measure.remote(shard)))
        if len(waiting) >= 2 * workers:
            yield _result(ray, *waiting.popleft())
    while waiting:
        yield _result(ray, *waiting.popleft())


def _result(ray: Any, shard: Shard, reference: Any) -> Totals | BadShard:
    try:
        result = ray.get(reference)
    except ray.exceptions.RayActorError as error:
        raise ModelError(
            f"{shard.label}: a worker of Ray did not start, or died near it {MOST_DEATHS} times; "
            f"does every node have onnxfold, the data and the memory? ({one_line(error)})"
        ) from error
    if not isinstance(result, Totals | BadShard):
        raise TypeError(f"a worker gave {type(result).__name__}")
    return result


def _files(model: Path) -> dict[str, bytes]:
    """Read the model and its data files, which are alone in their folder."""
    return {path.name: path.read_bytes() for path in sorted(model.parent.iterdir())}
