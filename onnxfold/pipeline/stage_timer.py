"""Durations and progress of the stages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_DIGITS = 6  # microseconds: more digits than the resolution of the clock
Stages = Callable[[str, float], None]  # stage name, fraction done


@dataclass(slots=True)
class StageTimer:
    """Seconds per stage, summed over its parts, and the listener that shows them."""

    listener: Stages | None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.listener is not None:
            self.listener(name, 0.0)
        start = time.perf_counter()
        yield
        spent = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.seconds[name] = round(spent, _DIGITS)
        if self.listener is not None:
            self.listener(name, 1.0)

    def part(self, name: str) -> Callable[[int, int], None]:
        """Return a callback that reports the progress within a stage."""

        def show(done: int, total: int) -> None:
            if self.listener is not None and total:
                self.listener(name, done / total)

        return show
