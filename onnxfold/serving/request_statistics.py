"""A model's statistics, as Triton's statistics extension counts them."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Durations:
    """How often something happened, and the total time, in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count it `times` times; `seconds` is the sum."""
        self.count += times
        self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class RequestStatistics:
    """Counters of one loaded model, kept by the event loop.

    A run that several requests share counts once in `executions`, and its whole duration for each
    of them in `infer`, as in Triton. A request counts in all three parts of the work when its run
    has ended: perf_analyzer fails if their counts differ, even while requests wait.
    """

    success: Durations = field(default_factory=Durations)
    fail: Durations = field(default_factory=Durations)
    queue: Durations = field(default_factory=Durations)
    decode_ns: int = 0
    infer: Durations = field(default_factory=Durations)
    inferences: int = 0
    executions: int = 0
    last_ms: int = 0

    def decoded(self, seconds: float) -> None:
        """Record how long the inputs of one request took to read."""
        self.decode_ns += round(seconds * 1e9)

    def ran(self, requests: int, rows: int, waited_s: float, seconds: float) -> None:
        """Record one successful run."""
        self.queue.add(waited_s, requests)
        self.infer.add(seconds * requests, requests)
        self.inferences += rows
        self.executions += 1
        self.last_ms = time.time_ns() // 1_000_000

    def document(self, name: str, version: str) -> dict[str, Any]:
        """Return `model_stats` of the extension for this model.

        The time for writing outputs is not measured, and nothing is cached: both are zero.
        """
        none = Durations()
        parts = {
            "success": self.success,
            "fail": self.fail,
            "queue": self.queue,
            "compute_input": Durations(self.infer.count, self.decode_ns),
            "compute_infer": self.infer,
            "compute_output": Durations(self.infer.count),
            "cache_hit": none,
            "cache_miss": none,
        }
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                key: {"count": part.count, "ns": part.ns} for key, part in parts.items()
            },
            "batch_stats": [],
        }
