"""The console of the commands, on which names of a model are text, never control sequences."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxfold.errors import InvariantError, printable
from onnxfold.report.fitted_tables import broken, shortened


class PlainConsole(Console):
    """Prints texts, and tables of texts, without anything that a terminal or Rich would interpret.

    A word longer than a line loses its middle, unless names must be ``full``: then the line breaks
    between the parts of the name.
    """

    def __init__(self, *, width: int | None, quiet: bool = False, full: bool = False) -> None:
        super().__init__(width=width, quiet=quiet, highlight=False, markup=False, emoji=False)
        self._full = full

    def print(self, *objects: Any, **named: Any) -> None:
        """Print as Rich does."""
        shown = [_plain(each) for each in objects]
        if not named.get("soft_wrap"):
            shown = [self._fitted(each) for each in shown]
        super().print(*shown, **named)

    def _fitted(self, shown: str | Text | Table) -> str | Text | Table:
        """Return a replacement for a text with words longer than a line."""
        text = str(shown)
        if isinstance(shown, Table) or max(map(len, text.split(" "))) <= self.width:
            return shown
        lines = broken(text, self.width) if self._full else [shortened(text, self.width)]
        return Text("\n".join(lines), shown.style if isinstance(shown, Text) else "")


def _plain(shown: Any) -> Any:
    """Return a printable replacement, or the same object if all of it is visible.

    This happens before layout, so that columns are as wide as their content.
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
