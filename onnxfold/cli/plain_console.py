"""The console of the commands, on which a name of a model is text and never a control sequence."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxfold.errors import InvariantError, printable


class PlainConsole(Console):
    """Prints texts, and tables of texts, without what a terminal or Rich would obey in them."""

    def __init__(self, *, width: int | None, stderr: bool = False) -> None:
        super().__init__(width=width, stderr=stderr, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **named: Any) -> None:
        """Print as Rich does."""
        super().print(*(_plain(each) for each in objects), **named)


def _plain(shown: Any) -> Any:
    """Return what to print in the place of something: the same, where all of it is visible.

    Before it is laid out, so that columns are as wide as what is in them.
    """
    if isinstance(shown, str):
        return printable(shown)
    if isinstance(shown, Text):
        return shown if shown.plain.isprintable() else Text(printable(shown.plain), shown.style)
    if not isinstance(shown, Table):
        raise InvariantError(f"a {type(shown).__name__} is printed, which may hold anything")
    for column in shown.columns:
        column.header = _plain(column.header)
        column._cells[:] = map(_plain, column._cells)
    return shown
