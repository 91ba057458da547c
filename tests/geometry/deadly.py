"""Data that kills a worker once, and data whose workers wait for each other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxfold.inputs.data import Batch, Data, Shard

_PATIENCE_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again and again; fails where nothing happens for a minute."""
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


@dataclass(frozen=True)
class Deadly:
    """Data that kills the process that first reads it, unless that is the one that merges."""

    inner: Data
    mark: Path
    merging: int

    @property
    def kind(self) -> str:
        return self.inner.kind

    def shards(self) -> list[Shard]:
        return self.inner.shards()

    def batches(self, shard: Shard) -> Iterator[Batch]:
        if shard.start and not self.mark.exists() and os.getpid() != self.merging:
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.batches(shard)


@dataclass(frozen=True)
class Noting:
    """Data that notes which node of Ray reads which shard; all but the first wait for ``go``."""

    inner: Data
    notes: Path

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def go(self) -> Path:
        return self.notes / "go"

    def shards(self) -> list[Shard]:
        return self.inner.shards()

    def batches(self, shard: Shard) -> Iterator[Batch]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        (self.notes / f"{node} {shard.start} {os.getpid()}").touch()
        if shard.start:
            wait_for(self.go.exists)
        return self.inner.batches(shard)

    def begun(self) -> dict[str, dict[str, int]]:
        """Return the shards that each node has started after the first, with the process."""
        found: dict[str, dict[str, int]] = {}
        for node, shard, process in (path.name.split() for path in self.notes.glob("* *")):
            if int(shard):
                found.setdefault(node, {})[shard] = int(process)
        return found
