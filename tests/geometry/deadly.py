"""Data that kills a worker once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxfold.geometry.data import Batch, Data, Shard


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
