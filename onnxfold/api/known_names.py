"""Suggestions for a call with an unknown argument name."""

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def suggesting(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function raise TypeError for an unknown argument, with the nearest known one."""
    known = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known:
                raise TypeError(_unknown(function.__name__, name, known))
        return function(*args, **kwargs)

    return called


def _unknown(function: str, name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known)}"
    return f"{function}() has no argument {name}=; {hint}"
