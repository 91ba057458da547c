"""docs/papers.md: every part of the papers, beside what is here, from docs/papers.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pages.tables import ROOT, Row, read_rows, table

__all__ = ["VERDICTS", "chosen_rows", "papers", "parts"]

VERDICTS = ("holds", "in part", "differs", "not here", "impossible here")
_NUMBERS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "mean": lambda numbers: sum(numbers) / len(numbers),
}
_HEAD = """\
# The papers, part by part

```sh
onnxfold optimize models/digits_vit/digits_vit.onnx -o fast.onnx
onnxfold convert fast.onnx -o layer.onnx --to layer
```

```text
9 of 9 LayerNorms fold to RMSNorm; 9 gammas and 9 betas move into the next linear layers
9 of 9 RMSNorms restored to LayerNorm
```

Each part of the four papers behind this project: what it says, what we see, and the command that
shows it. *Holds*: seen as the paper says it, or stronger. *In part*: seen at a smaller size, or of
some of it, with what is missing, and why. *Differs*: we see something else. *Impossible here*: it
needs what is not to be had.
Theirs is empty where a part has no number, or none that we can quote. Our numbers are read from
`benchmarks/results/` when this page is written (`docs/papers.toml`, `python docs/generate.py`), and
a test checks that rows and commands exist.
"""


def papers() -> str:
    """Return the page."""
    found = parts()
    total = Counter(part["verdict"] for paper in found for part in paper["items"])
    counts = [f"{total[verdict]} {verdict}" for verdict in VERDICTS if total[verdict]]
    lines = [_HEAD, f"Of {total.total()} parts: {', '.join(counts)}.\n"]
    for paper in found:
        rows = [_line(part) for part in paper["items"]]
        lines += [
            f"## {paper['number']}. {paper['title']}\n",
            f"<{paper['source']}>\n",
            table(("part", "what", "verdict", "theirs", "ours", "shown by"), rows),
        ]
    return "\n".join(lines)


def parts() -> list[dict[str, Any]]:
    """Return the papers with their parts, as they stand in the file."""
    with (ROOT / "docs" / "papers.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["papers"]
    return found


def chosen_rows(value: dict[str, Any]) -> list[Row]:
    """Return the rows that a number is taken from; ValueError where there is none."""
    rows = [
        row
        for row in read_rows(value["file"])
        if all(row[column] == wanted for column, wanted in value["where"].items())
    ]
    if not rows:
        raise ValueError(f"{value['file']} has no row of {value['where']}")
    return rows


def _line(part: dict[str, Any]) -> tuple[str, ...]:
    ours = part["ours"].format(*(_number(value) for value in part.get("values", ())))
    if "missing" in part:
        ours += f". *Impossible here*: {part['missing']}"
    page = part["where"]
    link = page.removeprefix("docs/")
    where = f"[{link}]({link})" if page.startswith("docs/") else f"`{page}`"
    command = f"; `{part['command']}`" if "command" in part else ""
    return (
        part["part"],
        part["about"],
        part["verdict"],
        part.get("theirs", ""),
        ours,
        where + command,
    )


def _number(value: dict[str, Any]) -> str:
    cells = [row[value["column"]] for row in chosen_rows(value)]
    take, form = value.get("take", "first"), value.get("form")
    if take in _NUMBERS:
        return format(_NUMBERS[take]([float(cell) for cell in cells]), form or "g")
    cell = cells[-1] if take == "last" else cells[0]
    return format(float(cell), form) if form else cell
