"""Tables for a terminal: columns fit its width, and no word is cut.

Names in a model may be longer than a terminal is wide. The middle of such a name is omitted, or it
is written in full over several rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from onnxfold.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GAP, _LEAST_NAME = 2, 15  # characters
_QUOTED = re.compile(r"([\"'(]*)(.*?)([\"'),.;:]*)", re.DOTALL)
_NUMBERED = re.compile(r"\d|…")
_PIECE = re.compile(r"[^/._:]*[/._:]+|[^/._:]+")


def print_table(
    console: Console,
    words: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    numbers: Sequence[str] = (),
    *,
    names: Collection[int] = (),
    full: bool = False,
) -> None:
    """Print rows under headings; the columns ``numbers`` are last and aligned right.

    ``names``: the columns of names, which are shortened if a table does not fit, or broken between
    their parts if they must be ``full``. Empty headings are left out.
    """
    from rich.table import Table
    from rich.text import Text

    headings = [*words, *numbers]
    cells = [
        [Text(printable(str(each)), each.style if isinstance(each, Text) else "") for each in row]
        for row in rows
    ]
    widths = _widths(console.width, headings, cells, names, full=full)
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headings))
    for index, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        justify = "right" if index >= len(words) else "left"
        made.add_column(heading, justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]  # both are of Rich's
    for row in cells:
        for line in _lines(row, widths) if full else [_fitted(row, widths, names)]:
            made.add_row(*line)
    console.print(made)


def shortened(text: str, most: int) -> str:
    """Return a text with words of at most so many characters.

    Names lose parts without a digit, the longest first, since exporters number what they repeat.
    What is still too long loses its middle.
    """
    return " ".join(
        word if len(word) <= most else _without_middle(_without_parts(word, most), most)
        for word in text.split(" ")
    )


def _without_parts(word: str, most: int) -> str:
    """Return a name of parts between slashes, or dots, with … for as many as it must lose."""
    start, name, end = _QUOTED.fullmatch(word).groups()  # type: ignore[union-attr]  # it fits all
    between = "/" if "/" in name else "."
    parts = name.split(between)
    while len(start + name + end) > most:
        places = [i for i, part in enumerate(parts) if part and not _NUMBERED.search(part)]
        if not places or len(set(parts) - {"", "…"}) == 1:
            break
        parts[max(places, key=lambda i: (len(parts[i]), i))] = "…"
        name = re.sub(r"[/.]*…[/.…]*", "…", between.join(parts))
    return start + name + end


def _without_middle(word: str, most: int) -> str:
    if len(word) > most and len(word.strip("…")) <= most:  # a part of the name, as --exclude takes
        return word.strip("…")
    head = (most - 1) // 2
    tail = most - 1 - head
    return word if len(word) <= most else f"{word[:head]}…{word[len(word) - tail :]}"


def lines_of(words: Sequence[str], width: int, joint: str = "") -> list[str]:
    """Split words into lines, which end in ``joint``; only a longer word exceeds the width."""
    lines = [words[0]]
    for number, word in enumerate(words[1:], 2):
        needed = joint if number < len(words) else ""
        if len(f"{lines[-1]} {word}{needed}") <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += joint
            lines.append(f"  {word}" if joint else word)
    return lines


def broken(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken after a word or between the parts of a name."""
    lines = [""]
    for word in re.split(r"(?<= )", text):
        pieces = [word] if len(word.rstrip()) <= width else _PIECE.findall(word)
        for piece in pieces:
            if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _widths(
    width: int,
    headings: Sequence[str],
    rows: Sequence[Sequence[Text]],
    names: Collection[int],
    *,
    full: bool,
) -> list[int]:
    """Return the widths of columns; the columns of names shrink first."""
    whole, least = [], []
    for index, heading in enumerate(headings):
        texts = [heading, *(row[index].plain for row in rows)]
        words = [word for text in texts for word in text.split(" ")]
        if index in names and full:
            words = [piece for word in words for piece in _PIECE.findall(word)]
        longest = max(map(len, words), default=0)
        whole.append(max(map(len, texts)))
        least.append(min(longest, _LEAST_NAME) if index in names and not full else longest)
    room = width - _GAP * (len(headings) - 1)
    wanted = [least[i] if i in names else n for i, n in enumerate(whole)]
    return _widened(_widened(least, wanted, room), whole, room)


def _widened(widths: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widen columns, the narrowest first, until all fit their content or no room is left."""
    widths = list(widths)
    for _ in range(room - sum(widths)):
        narrow = [i for i, width in enumerate(widths) if width < most[i]]
        if not narrow:
            break
        widths[min(narrow, key=lambda i: widths[i])] += 1
    return widths


def _fitted(row: Sequence[Text], widths: Sequence[int], names: Collection[int]) -> list[Text]:
    from rich.text import Text

    return [
        Text(shortened(cell.plain, width), cell.style) if index in names else cell
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _lines(row: Sequence[Text], widths: Sequence[int]) -> list[list[Text]]:
    """Split a row into rows of one line each; the first has the start of every cell."""
    from rich.text import Text

    columns = [broken(cell.plain, width) for cell, width in zip(row, widths, strict=True)]
    styles = [cell.style for cell in row]
    return [
        [Text(part, style) for part, style in zip(parts, styles, strict=True)]
        for parts in zip_longest(*columns, fillvalue="")
    ]
