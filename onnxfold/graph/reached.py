"""What can be reached step by step."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def reached(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield what begins and what one step or several lead to, each once and the nearest first."""
    waiting = deque(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        item = waiting.popleft()
        yield item
        new = [each for each in dict.fromkeys(onward(item)) if each not in seen]
        seen.update(new)
        waiting.extend(new)
