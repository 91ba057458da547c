"""Messages of one line, whatever the names in a damaged model."""

import os

from onnxfold.errors import printable

# A message ends with the fault, so a long name is cut in the middle.
_HEAD, _TAIL = 240, 160


def one_line(text: str) -> str:
    """Return a text with line breaks and other control characters escaped, of bounded length."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]}...{text[-_TAIL:]}"
    return printable(text)


def show(path: str | os.PathLike[str]) -> str:
    """Return a path as it appears in a message."""
    return one_line(os.fspath(path))


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a written file as short as it can be named from the working folder."""
    if not os.path.exists("."):  # the working folder was removed
        return os.fspath(path)
    return os.fspath(path).removeprefix(os.path.join(os.path.realpath("."), ""))


def first_cause(error: BaseException) -> str:
    """Return the first line of the deepest cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else type(error).__name__
