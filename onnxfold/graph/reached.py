"""Transitive closure of a step."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def reached(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the start and everything reachable from it by steps, each once, nearest first."""
    waiting = deque(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        item = waiting.popleft()
        yield item
        new = [each for each in dict.fromkeys(onward(item)) if each not in seen]
        seen.update(new)
        waiting.extend(new)
