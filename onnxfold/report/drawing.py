"""The picture of a report: the streams of a model as lines, and on them the fate of each norm."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onnxfold.report.before_after import KIND_NAMES
from onnxfold.report.sentences import folds

_FATES = {
    "folded": "folded to RMSNorm",
    "fused": "made one operator",
    "kept": "left as written",
}
_PER_ROW, _STEP, _LANE = 24, 40, 64
_MARK = 18  # half the width of a norm's mark is 9
_SHOWN_WRITERS = 3


def fate_of(norm: Mapping[str, Any]) -> str:
    """Return what became of a norm: folded, fused or kept."""
    if folds(norm):
        return "folded"
    return "kept" if norm["action"] == "keep" else "fused"


def drawing(norms: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture: a line for each stream, norms from input to output, weights below it."""
    if not norms:
        return ""
    lanes = _lanes([norm["stream"] for norm in norms])
    height = (max(lanes.values()) + 1) * _LANE
    rows = -(-len(norms) // _PER_ROW)
    parts = []
    for row in range(rows):
        there = list(enumerate(norms))[row * _PER_ROW : (row + 1) * _PER_ROW]
        parts += _lines(norms, there, lanes, row * height)
        parts += (_mark(index, norm, _top(norm, lanes, row * height)) for index, norm in there)
    width = _STEP * min(_PER_ROW, len(norms)) + _STEP
    legend = "".join(
        f'<span><i class="{fate}"></i>{sum(fate_of(norm) == fate for norm in norms)} {words}</span>'
        for fate, words in _FATES.items()
    )
    return (
        '<section id="stream"><h2>The streams and their norms</h2>'
        '<p class="zoom" hidden><label>Zoom '
        '<input id="zoom" type="range" min="100" max="400" value="100"></label></p>'
        '<div class="scroll"><svg id="picture" role="group" '
        f'aria-label="{len(norms)} norms from input to output" '
        f'viewBox="0 0 {width} {rows * height}" '
        f'style="width: {width}px">{"".join(parts)}</svg></div><p class="legend">{legend}'
        '<span><i class="weight"></i>weights that are centred for it</span></p></section>'
    )


def _lanes(numbers: Sequence[int]) -> dict[int, int]:
    """Give each stream the first lane that is free from its first norm to its last."""
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


def _top(norm: Mapping[str, Any], lanes: Mapping[int, int], top: int) -> int:
    return top + lanes[norm["stream"]] * _LANE


def _x(index: int) -> int:
    return _STEP + index % _PER_ROW * _STEP


def _lines(
    norms: Sequence[Mapping[str, Any]],
    there: Sequence[tuple[int, Mapping[str, Any]]],
    lanes: Mapping[int, int],
    top: int,
) -> list[str]:
    """Return the part of each stream that one row shows, to its edges where it goes on there."""
    lines = []
    first, end = there[0][0], there[-1][0]
    for stream in dict.fromkeys(norm["stream"] for norm in norms):
        members = [index for index, norm in enumerate(norms) if norm["stream"] == stream]
        if members[0] > end or members[-1] < first:
            continue
        left = 0 if members[0] < first else _x(members[0]) - _STEP // 2
        right = _x(min(members[-1], end)) + _STEP // 2
        y = top + lanes[stream] * _LANE + _LANE // 2
        lines.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}"/>')
    return lines


def _mark(index: int, norm: Mapping[str, Any], top: int) -> str:
    """A tall filled bar for a fold, a short one for a fused norm, an outline for one left."""
    fate = fate_of(norm)
    inset = 14 if fate == "folded" else 20
    tip = escape(
        f"{norm['name']}: {KIND_NAMES.get(norm['kind'], norm['kind'])}, {_FATES[fate]}{_why(norm)}"
    )
    x = _x(index)
    weights = (
        f'<path class="weight" d="M{x - 6} {top + _LANE - 3}h12l-6 -8z"/>'
        if norm["writers"]
        else ""
    )
    return (
        f'<a href="#norm-{index}" aria-label="{tip}"><rect class="{fate}" x="{x - _MARK // 2}" '
        f'y="{top + inset}" width="{_MARK}" height="{_LANE - 2 * inset}" rx="3">'
        f"<title>{tip}</title></rect>{weights}</a>"
    )


def _why(norm: Mapping[str, Any]) -> str:
    """What was centred for a norm, or why it stays."""
    if not folds(norm):
        return f"; {norm['reason']['sentence']}" if norm["reason"] else ""
    names: Sequence[str] = norm["writers"]
    if not names:
        return ""
    others = len(names) - _SHOWN_WRITERS
    more = f" and {others} more" if others > 0 else ""
    return f"; centred: {', '.join(names[:_SHOWN_WRITERS])}{more}"
