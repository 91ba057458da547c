"""The frame of every HTML page, and the picture of a report: blocks, streams, norms and weights."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Any

from onnxfold.report.before_after import KIND_NAMES
from onnxfold.report.sentences import BECOMES, folds

FATES = {
    "folded": "folded to RMSNorm",
    "fused": "made one operator",
    "kept": "left as written",
}
_NUMBERED = re.compile(r"(.*\.\d+)(?=\.)")
_MOST_WEIGHTS = 4  # of one step; the row of the norm has all
_MOST_NORMS = 12  # of a block without a name


@dataclass(slots=True)
class _Step:
    """A row of a block: a norm, or the weights that are centered for it."""

    index: int
    norm: Mapping[str, Any]
    block: str | None
    writers: Sequence[str] = ()  # empty for the norm itself


@dataclass(slots=True)
class _Streams:
    """The lane of each stream, and its first and last step."""

    lanes: dict[int, int]
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def at(self, place: int) -> Iterator[int]:
        """Yield the streams that pass through a step."""
        return (s for s in self.first if self.first[s] <= place <= self.last[s])


def fate_of(norm: Mapping[str, Any]) -> str:
    """Return the outcome for a norm: folded, fused or kept."""
    if folds(norm):
        return "folded"
    return "kept" if norm["action"] == "keep" else "fused"


def drawing(norms: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture: blocks from input to output, with streams from top to bottom."""
    if not norms:
        return ""
    steps = _steps(norms)
    streams = _Streams(_lanes([norm["stream"] for norm in norms]))
    for place, step in enumerate(steps):
        streams.first.setdefault(step.norm["stream"], place)
        streams.last[step.norm["stream"]] = place
    groups = _blocks(steps)
    titles = _titles([(group[0][1].block, group) for group in groups])
    cards = "".join(
        _card(title, group, streams) for title, group in zip(titles, groups, strict=True)
    )
    fates = [fate_of(norm) for norm in norms]
    legend = "".join(
        f'<span><i class="{fate}"></i>{fates.count(fate)} {words}</span>'
        for fate, words in FATES.items()
        if fate in fates
    )
    weights = '<span><i class="weight"></i>weights that are centered for the norm after them</span>'
    return (
        '<section id="stream"><h2>The stream and its norms</h2><p>Read each block downwards. A '
        "line is a stream that linear layers add to, and a box on it a norm, which leads to its "
        f'row.</p><p class="legend">{legend}{weights if any(s.writers for s in steps) else ""}</p>'
        f'<ol class="blocks" style="--lanes:{max(streams.lanes.values()) + 1}">{cards}</ol>'
        "</section>"
    )


def _steps(norms: Sequence[Mapping[str, Any]]) -> list[_Step]:
    """Return the steps of all norms, each after its weights, with the blocks that contain them."""
    own = [_block_of(norm) for norm in norms]
    blocks = sorted({block for block in own if block}, key=len, reverse=True)
    steps: list[_Step] = []
    previous = None
    for index, (norm, block) in enumerate(zip(norms, own, strict=True)):
        writers: Sequence[str] = norm["writers"] if folds(norm) else ()
        found = [
            next((block for block in blocks if name.startswith(f"{block}.")), None)
            for name in writers
        ]
        # A weight without a telling name is placed with the other weights of its norm.
        nameless = next(filter(None, found), None if any("." in w for w in writers) else previous)
        placed = zip(writers, found, strict=True)
        homes = [(w, home or (None if "." in w else nameless)) for w, home in placed]
        for home in dict.fromkeys(home for _, home in homes):
            steps.append(_Step(index, norm, home, [w for w, other in homes if other == home]))
        steps.append(_Step(index, norm, block))
        previous = block
    return steps


def _block_of(norm: Mapping[str, Any]) -> str | None:
    """Return the numbered module that contains a norm, or None."""
    path = norm["module"] or norm["name"].strip("/").replace("/", ".")
    found = _NUMBERED.match(path.rpartition(".")[0] + ".")
    return found[1] if found else None


def _blocks(steps: Sequence[_Step]) -> list[list[tuple[int, _Step]]]:
    """Split the steps at the borders of blocks, and steps outside of blocks by number."""
    groups = []
    for block, run in groupby(enumerate(steps), key=lambda numbered: numbered[1].block):
        group: list[tuple[int, _Step]] = []
        for numbered in run:
            group.append(numbered)
            norms = sum(not step.writers for _, step in group)
            if block is None and norms == _MOST_NORMS:
                groups.append(group)
                group = []
        if group:
            groups.append(group)
    return groups


def _titles(blocks: Sequence[tuple[str | None, Sequence[tuple[int, _Step]]]]) -> list[str]:
    """Name each block after its module, and the others after their place."""
    named = [place for place, (name, _) in enumerate(blocks) if name]
    titles = []
    for place, (name, group) in enumerate(blocks):
        if name:
            titles.append(name)
        elif not named:
            first, last = group[0][1].index + 1, group[-1][1].index + 1
            titles.append(f"norms {first} to {last}" if last > first else f"norm {first}")
        elif place < named[0]:
            titles.append("before the blocks")
        else:
            titles.append("after the blocks" if place > named[-1] else "between blocks")
    return titles


def _card(title: str, group: Sequence[tuple[int, _Step]], streams: _Streams) -> str:
    name = group[0][1].block
    rows = "".join(_row(place, step, streams, name) for place, step in group)
    end = group[-1][0]
    going_on = [stream for stream in streams.at(end) if streams.last[stream] > end]
    arrows = "".join(
        f'<i class="mark on" style="--lane:{lane}"></i>'
        for lane in sorted({streams.lanes[stream] for stream in going_on})
    )
    after = f'<li class="step on" aria-hidden="true">{arrows}</li>' if arrows else ""
    return f'<li class="block"><h3>{breakable(title)}</h3><ol>{rows}{after}</ol></li>'


def _row(place: int, step: _Step, streams: _Streams, block: str | None) -> str:
    lines = "".join(_line(place, stream, streams) for stream in streams.at(place))
    lane = streams.lanes[step.norm["stream"]]
    inside = _weights(step, lane, block) if step.writers else _norm(step, lane, block)
    return f'<li class="step">{lines}{inside}</li>'


def _line(place: int, stream: int, streams: _Streams) -> str:
    """Return a stream's part of a step; if this is its only step, it comes from above."""
    first, last = streams.first[stream], streams.last[stream]
    ends = " begins" * (first == place < last) + " ends" * (last == place)
    return f'<i class="lane{ends}" style="--lane:{streams.lanes[stream]}"></i>'


def _weights(step: _Step, lane: int, block: str | None) -> str:
    names = [_within(block, name) for name in step.writers]
    shown, more = names[:_MOST_WEIGHTS], len(names) - _MOST_WEIGHTS
    text = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    return (
        f'<i class="mark weight" style="--lane:{lane}"></i><a class="weights" '
        f'href="#norm-{step.index}" title="{escape("centered: " + ", ".join(step.writers))}">'
        f'<code>{escape(text)}</code> <span class="soft">centered</span></a>'
    )


def _norm(step: _Step, lane: int, block: str | None) -> str:
    norm, fate = step.norm, fate_of(step.norm)
    reason = norm["reason"] if not folds(norm) else None
    kind = KIND_NAMES.get(norm["kind"], norm["kind"])
    tip = f"{norm['name']}: {kind}, {BECOMES[norm['action']]}"
    tip += f"; {reason['sentence']}" if reason else ""
    why = f' <span class="soft">{escape(reason["code"])}</span>' if reason else ""
    label = _within(block, norm["module"] or norm["name"])
    return (
        f'<a class="norm {fate}" href="#norm-{step.index}" title="{escape(tip)}" '
        f'aria-label="{escape(tip)}"><i class="mark {fate}" style="--lane:{lane}"></i>'
        f'<code>{breakable(label)}</code> <span class="becomes">{BECOMES[norm["action"]]}</span>'
        f"{why}</a>"
    )


def _within(block: str | None, name: str) -> str:
    """Return a name without the prefix of the block in which it appears."""
    return name.removeprefix(f"{block}.") if block else name


def _lanes(numbers: Sequence[int]) -> dict[int, int]:
    """Assign each stream the first lane that is free from its first norm to its last."""
    last = {stream: index for index, stream in enumerate(numbers)}
    lanes: dict[int, int] = {}
    ends: list[int] = []
    for index, stream in enumerate(numbers):
        if stream in lanes:
            continue
        free = next((lane for lane, end in enumerate(ends) if end < index), len(ends))
        ends[free : free + 1] = [last[stream]]
        lanes[stream] = free
    return lanes


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
