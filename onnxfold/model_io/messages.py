"""Messages of one line, whatever the names in a damaged model hold."""

import os

from onnxfold.errors import printable

# A message names what is wrong last, so a long name is cut out of the middle.
_HEAD, _TAIL = 240, 160


def one_line(text: str) -> str:
    """A text with line breaks and other control characters escaped, of bounded length."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]}...{text[-_TAIL:]}"
    return printable(text)


def show(path: str | os.PathLike[str]) -> str:
    """A path as it may stand in a message."""
    return one_line(os.fspath(path))


def first_cause(error: BaseException) -> str:
    """The first line of what first went wrong, from the deepest cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else type(error).__name__
