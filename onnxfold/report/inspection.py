"""The result of ``inspect``: a document for machines that prints as a table of plain text."""

import io
import shutil
from collections.abc import Mapping
from html import escape
from typing import Any, TypeVar

from onnxfold.errors import printable
from onnxfold.report import sentences
from onnxfold.wording import worded

_Document = TypeVar("_Document")


def plain(document: _Document) -> _Document:
    """Return a document without invisible characters: names in a model are arbitrary."""
    return _plain(document)  # type: ignore[return-value]  # every part keeps its type


def _plain(part: object) -> object:
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, Mapping):
        return {_plain(key): _plain(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part


class Inspection(dict[str, Any]):
    """Every norm of a model, and whether it folds; printed, it is a table.

    The fields are the same as in ``onnxfold inspect --json``; ``to_dict()`` returns a plain
    dictionary.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the document, which is serializable as JSON."""
        return dict(self)

    def __repr__(self) -> str:
        """Return the table of norms, as wide as the terminal, and the totals."""
        from rich.console import Console

        from onnxfold.report.printed import print_norms

        text = io.StringIO()
        width = shutil.get_terminal_size().columns
        print_norms(Console(file=text, width=width, markup=False, emoji=False), plain(self))
        return worded(text.getvalue().rstrip())

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        from onnxfold.report.printed import NORM_HEADINGS, norm_lines, norm_rows

        document = plain(self)
        heads = "".join(f"<th>{escape(heading)}</th>" for heading in NORM_HEADINGS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for *cells, _ in norm_rows(document, full=False)
        )
        told = norm_lines(document) if document["norms"] else [sentences.NOTHING]
        lines = "".join(f"<p>{escape(worded(line))}</p>" for line in told)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{lines}"
