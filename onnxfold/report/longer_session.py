"""What a session gains that executes more operators than before: estimated, and measured."""

from collections.abc import Mapping
from typing import Any


def more_operators(document: Mapping[str, Any]) -> int:
    """Return how many more operators a session executes after than before; 0 if unknown."""
    sides = [document.get(side, {}) for side in ("before", "after")]
    before, after = (side.get("session_operators") for side in sides)
    return 0 if None in (before, after) else max(0, sum(after.values()) - sum(before.values()))


def priced(report: Mapping[str, Any]) -> str | None:
    """Return the line on a session that executes more operators, and why, or None."""
    document = report.get("before_after", {})
    more = more_operators(document)
    uncounted = bool(document) and "session_operators" not in document["after"]
    if not more and not uncounted:
        return None
    prices = report["inspect"]["prices"]
    if not more and not prices["operators"] > 0:
        return None
    free = ""
    if document["free_dimensions"]:
        free = f", and {prices['operator_us']:g} µs each to start; each free size counts as 1"
    number = more or prices["operators"]
    nodes = "node" if number == 1 else "nodes"
    which = ", which take" if more else " that a session may execute (only a check counts them), at"
    which = which.replace("take", "takes") if number == 1 else which
    return (
        f"estimate: the norms save {prices['saved_us']:.3g} µs for {number} more {nodes}{which} "
        f"{prices['spent_us']:.3g} µs{free}{_measured(document.get('measured'))}"
    )


def _measured(found: Mapping[str, Any] | None) -> str:
    """Return how fast a longer session was, measured in turns, or why this is not known."""
    if found is None:
        return ""
    if "reason" in found:
        return f"; not measured: {found['reason']}"
    speed, low, high = (f"{found[name]:.3f}" for name in ("speed", "low", "high"))
    return f"; measured in {found['rounds']} turns: {speed} times as fast ({low} to {high})"
