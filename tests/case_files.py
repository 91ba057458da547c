"""Cases of tests as text: tests/cases/*.txt.

    # A remark.
    LN := n = LayerNormalization<axis=-1>(x, gamma, beta)
    name of the case | W 6 5, b 5 | 1
      $LN m = MatMul(n, W)
      y = Add(m, b)

A case has columns and then, indented, a graph or, with a word and a colon before each, several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

__all__ = ["Case", "read", "shapes"]

_FOLDER = Path(__file__).with_name("cases")
_BODY = re.compile(r"  (?:(\w+): )?(.*)")


@dataclass
class Case:
    """A case; ``bodies`` by the words before them, of which "" is none."""

    columns: list[str]
    bodies: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> str:
        return self.bodies[""]


def read(name: str) -> dict[str, Case]:
    """Return the cases of a file by name, in their order."""
    words: dict[str, str] = {}
    cases: dict[str, Case] = {}
    for line in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        body = _BODY.fullmatch(line)
        if line.startswith("#"):
            continue
        if " := " in line:
            word, _, text = line.partition(" := ")
            words[word] = Template(text).substitute(words)
        elif body is None:
            title, *columns = map(str.strip, line.split(" |"))
            assert title not in cases, title
            cases[title], key = Case(columns), ""
        else:
            key = body[1] or key
            text = Template(body[2]).substitute(words)
            known = cases[title].bodies
            known[key] = f"{known[key]} {text}" if key in known else text
    return cases


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read `W 6 5, b 5`."""
    words = (each.split() for each in text.split(",") if each.strip())
    return {name: tuple(map(int, sizes)) for name, *sizes in words}
