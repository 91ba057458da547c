"""The frame of every HTML page: one style, one file, nothing loaded."""

import re
from collections.abc import Container, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template


def framed(title: str, heading: str, verdict: str, body: str, *, script: str | None = None) -> str:
    """Return a whole page; ``title`` and ``heading`` are text, ``verdict`` and ``body`` HTML.

    ``script``: the name of a file of this package.
    """
    return Template(_part("frame.html")).substitute(
        title=escape(title),
        heading=escape(heading),
        style=_part("style.css"),
        verdict=verdict,
        scripts="" if script is None else "; script-src 'unsafe-inline'",
        body=body,
        script="" if script is None else f"<script>\n{_part(script)}</script>",
    )


def table(columns: Sequence[str], rows: str, *, numbers: Container[str] = (), of: str = "") -> str:
    """Return a table in a box that scrolls; ``numbers`` are aligned right, ``of`` is attributes."""
    kinds = ((' class="number"' if column in numbers else "", column) for column in columns)
    headings = "".join(f'<th scope="col"{kind}>{column}</th>' for kind, column in kinds)
    return (
        f'<div class="scroll"><table{of}><thead><tr>{headings}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def breakable(name: str) -> str:
    """Return a name as HTML that goes on in the next line between its parts, not within one."""
    return re.sub(r"([./_])(?=\w)", r"\1<wbr>", escape(name))


@cache
def _part(name: str) -> str:
    return files("onnxfold.report").joinpath(name).read_text(encoding="utf-8")
