"""Messages of one line, whatever the names in a damaged model hold."""

from __future__ import annotations

import os

__all__ = ["first_cause", "one_line", "show"]

_MOST_CHARACTERS = 400


def one_line(text: str) -> str:
    """A text with its line breaks and other control characters escaped, cut to a few lines."""
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show(path: str | os.PathLike[str]) -> str:
    """A path as it may stand in a message."""
    return one_line(os.fspath(path))


def first_cause(error: BaseException) -> str:
    """The first line of what first went wrong, from the deepest cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else type(error).__name__
