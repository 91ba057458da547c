"""The figures of the geometry paper from reports: of one model, of several, of one in training.

Source: "Geometric interpretation of layer normalization and a comparative analysis with RMSNorm",
arXiv 2409.12951, figures 3 and 6 (angles to 1 before and after each norm), 7 to 13 (with random
vectors), 4 and 14 to 37 (over the steps of training).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

Norms = Sequence[Mapping[str, Any]]
Reports = Sequence[Mapping[str, Any]]
MUTED = "#8a8f98"
_BEFORE, _AFTER, _RANDOM_A, _RANDOM_B = "#2f80d0", "#dd7b1f", MUTED, "#3f9c6b"
_SIDES = (("before", _BEFORE), ("after", _AFTER))
# Colors of models or norms in one figure; they differ in lightness too.
_COLOURS = (_BEFORE, _AFTER, _RANDOM_B, "#b0449c", "#c9a227", "#7a5cd0", "#c0392b", "#2aa5a0")

_TRAINING, _SEVERAL = "over_training", "of_models"  # ends of file names
_ANGLE = "angle, degrees"
_MOST_NAMES, _LONGEST = 32, 22  # names along the width of a figure, and characters of each
_DECADE, _LABELLED = 10, (2, 5)  # labels of a logarithmic scale between the powers of 10


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: its file name, its title, how to read it, and the function that draws it."""

    name: str
    title: str
    how: str
    draw: Callable[[Any], None]


def figures_of(reports: Reports) -> list[Figure]:
    """Return the figures of one report, of a series with a ``step`` each, or of several models."""
    if len(reports) == 1:
        return [Figure(n, t, h, partial(f, norms=reports[0]["norms"])) for n, t, h, f in _OF_ONE]
    training = all("step" in report for report in reports)
    if training:
        reports = sorted(reports, key=lambda report: report["step"])
    draw, where = (_over_training, _STEPS) if training else (_of_models, _MODELS)
    ends = (
        (_TRAINING, "over the steps of training") if training else (_SEVERAL, "of several models")
    )
    return [
        Figure(
            f"{name}_{ends[0]}",
            f"{title}, {ends[1]}",
            f"{where} {how}",
            partial(draw, reports=reports, quantity=quantity, label=label),
        )
        for name, title, how, quantity, label in _QUANTITIES
    ]


def file_names() -> list[str]:
    """Return the names of all files that figures are written to."""
    names = [name for name, *_ in _OF_ONE]
    names += [f"{name}_{end}" for name, *_ in _QUANTITIES for end in (_TRAINING, _SEVERAL)]
    return [f"{name}.{suffix}" for name in names for suffix in ("svg", "png")]


def _name_norms(axes: Any, norms: Norms, xlabel: str) -> None:
    """Label an axis with the names of norms in order, as many as fit."""
    most = axes.get_gridspec().ncols
    places = range(0, len(norms), max(1, -(-len(norms) * most // _MOST_NAMES)))
    names = distinct([norm["name"] for norm in norms])
    axes.set_xticks(list(places), [shortened(names[place]) for place in places])
    axes.tick_params(axis="x", labelrotation=90, labelsize=8)
    axes.set(xlabel=xlabel)


def distinct(names: Sequence[str]) -> list[str]:
    """Return paths without their common prefix and suffix."""
    paths = [re.split(r"(?<=[/.])", name) for name in names]
    head, tail = _shared(paths), _shared([path[::-1] for path in paths])
    shown = ["".join(path[head : len(path) - tail]).strip("/.") for path in paths]
    return [short or name for short, name in zip(shown, names, strict=True)]


def _shared(paths: Sequence[Sequence[str]]) -> int:
    """Count the leading parts that all paths share."""
    columns = zip(*paths, strict=False)  # up to the shortest path
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def shortened(name: str) -> str:
    """Return a long name with its middle omitted: norms differ at their ends."""
    head, tail = _LONGEST // 3, _LONGEST - _LONGEST // 3 - 1
    return name if len(name) <= _LONGEST else f"{name[:head]}\u2026{name[-tail:]}"


def _bars(
    axes: Any, norms: Norms, side: str, quantity: str, colour: str, label: str, shift: float = 0.0
) -> None:
    """Draw the mean of a quantity over depth, with one standard deviation to both sides.

    ``shift`` separates the bars of several lines.
    """
    found = [(i, n[side][quantity]) for i, n in enumerate(norms) if n[side][quantity]["count"]]
    places = [number + shift for number, _ in found]
    _line(axes, places, [statistic for _, statistic in found], colour, label)


def _line(axes: Any, places: Sequence[float], statistics: Norms, colour: str, label: str) -> None:
    """Draw means with one standard deviation to both sides."""
    axes.errorbar(
        places,
        [statistic["mean"] for statistic in statistics],
        yerr=[statistic["std"] for statistic in statistics],
        color=colour,
        label=label,
        marker="o",
        markersize=3.5,
        linewidth=1.2,
        elinewidth=1.0,
        capsize=2.0,
    )


def _angles(figure: Any, norms: Norms) -> None:
    axes = figure.add_subplot()
    for side, colour in _SIDES:
        shift = -0.08 if side == "before" else 0.08
        _bars(axes, norms, side, "angle_uniform", colour, f"{side} the norm", shift)
    axes.axhline(90.0, linewidth=0.8, linestyle="--", color=_RANDOM_A)
    _name_norms(axes, norms, "norms in the order of the model")
    axes.set(ylabel=_ANGLE)
    _legend(figure, axes)


def _angles_with_random(figure: Any, norms: Norms) -> None:
    lines = (
        ("angle_uniform", _BEFORE, "uniform vector"),
        ("angle_a", _RANDOM_A, "random vector, as long"),
        ("angle_b", _RANDOM_B, "random vector, longer"),
    )

    def draw(axes: Any, side: str) -> None:
        for number, (quantity, colour, label) in enumerate(lines):
            _bars(axes, norms, side, quantity, colour, label, shift=0.22 * (number - 1))
        _name_norms(axes, norms, f"{side} the norm")

    _both_sides(figure, draw, _ANGLE)


def _both_sides(figure: Any, draw: Callable[[Any, str], None], quantity: str) -> None:
    """Draw a panel before and one after the norms, with one scale and one legend."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (side, _) in zip(panels, _SIDES, strict=True):
        draw(axes, side)
    panels[0].set(ylabel=quantity)
    _legend(figure, panels[0])


def _legend(figure: Any, axes: Any) -> None:
    """Put the legend above the panels, where it covers no point."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=8)


def _over_depth(figure: Any, norms: Norms, quantity: str, ylabel: str) -> None:
    axes = figure.add_subplot()
    for side, colour in _SIDES:
        _bars(axes, norms, side, quantity, colour, f"{side} the norm")
    _name_norms(axes, norms, "norms in the order of the model")
    axes.set(ylabel=ylabel)
    _legend(figure, axes)


def _lengths(figure: Any, norms: Norms) -> None:
    """Draw lengths, on a logarithmic scale if their range exceeds its labels."""
    _over_depth(figure, norms, "norm", "length")
    found = [norm[side]["norm"] for norm in norms for side, _ in _SIDES]
    means = [statistic["mean"] for statistic in found if statistic["count"]]
    if means and max(means) > _DECADE * min(means) > 0:
        (axes,) = figure.axes
        axes.set_yscale("log", subs=_LABELLED)
        for part in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            part(lambda length, _: f"{length:g}")


def _histograms(figure: Any, norms: Norms) -> None:
    """Draw the angles to 1 before the first, the middle and the last norm."""
    places = sorted({0, len(norms) // 2, len(norms) - 1})
    panels = figure.subplots(1, len(places), squeeze=False)[0]
    for axes, place in zip(panels, places, strict=True):
        for side, colour in _SIDES:
            bars = norms[place][side]["angle_uniform"]["histogram"]
            axes.bar(
                [(bar["from"] + bar["to"]) / 2 for bar in bars],
                [bar["count"] for bar in bars],
                width=1.0,
                color=colour,
                alpha=0.6,
                label=side,
            )
        axes.set_title(shortened(norms[place]["name"]), fontsize=8)
        axes.set(xlabel="degrees")
    panels[0].set(ylabel="vectors")
    _legend(figure, panels[0])


def _of_models(figure: Any, reports: Reports, quantity: str, label: str) -> None:
    """Draw a quantity over the depth, which is 1 at the last norm, with a line for each model."""

    def draw(axes: Any, side: str) -> None:
        for number, report in enumerate(reports):
            norms = report["norms"]
            found = [
                (i, n[side][quantity]) for i, n in enumerate(norms) if n[side][quantity]["count"]
            ]
            places = [i / max(1, len(norms) - 1) for i, _ in found]
            name = report["model"] or f"model {number}"
            colour = _COLOURS[number % len(_COLOURS)]
            _line(axes, places, [statistic for _, statistic in found], colour, name)
        axes.set(xlabel=f"depth, {side} the norms")

    _both_sides(figure, draw, label)


def _over_training(figure: Any, reports: Reports, quantity: str, label: str) -> None:
    """Draw a quantity of the first, the middle and the last norm over the steps of training."""
    names = [norm["name"] for norm in reports[0]["norms"]]
    chosen = [names[place] for place in sorted({0, len(names) // 2, len(names) - 1})]

    def draw(axes: Any, side: str) -> None:
        for number, name in enumerate(chosen):
            found = [
                (report["step"], norm[side][quantity])
                for report in reports
                for norm in report["norms"]
                if norm["name"] == name and norm[side][quantity]["count"]
            ]
            colour = _COLOURS[number % len(_COLOURS)]
            statistics = [statistic for _, statistic in found]
            _line(axes, [step for step, _ in found], statistics, colour, shortened(name))
        axes.set(xlabel=f"step, {side} the norm")

    _both_sides(figure, draw, label)


_OF_ANGLES = (
    "At 90 degrees a vector has no mean to subtract; the further from there, the more of it a "
    "LayerNorm takes out."
)
_OF_LENGTHS = (
    "How long the vectors are that norms read and write; a stream grows as layers add to it."
)
_OF_MEANS = "The mean of the elements is what a LayerNorm subtracts; at 0 it subtracts nothing."
_OF_RANDOM = (
    "Where the uniform vector is met at the same angles as random ones, it is a direction like "
    "any other."
)
# The name of the file, the title, how to read it, and what draws it.
_OF_ONE: Sequence[tuple[str, str, str, Callable[..., None]]] = (
    (
        "angles",
        "Angle to the uniform vector, before and after each norm",
        f"{_OF_ANGLES} Points are means over all vectors, bars one standard deviation.",
        _angles,
    ),
    (
        "angles_with_random_vectors",
        "The same angles, and those to two random vectors",
        _OF_RANDOM,
        _angles_with_random,
    ),
    ("lengths", "Lengths", _OF_LENGTHS, _lengths),
    (
        "means",
        "Means",
        _OF_MEANS,
        partial(_over_depth, quantity="mean", ylabel="mean of the elements"),
    ),
    (
        "angle_histograms",
        "Angles to the uniform vector: first, middle and last norm",
        "How many vectors lie at each angle. A peak at 90 degrees has no mean; a wide one has "
        "vectors that would change much, whatever their average says.",
        _histograms,
    ),
)
_MODELS = "A line is a model; its first norm is at 0 and its last at 1."
_STEPS = "A line is the first, the middle or the last norm."
# The name of the file, the title, how to read it, the quantity and the label of its axis.
_QUANTITIES = (
    ("angles", "Angle to the uniform vector", _OF_ANGLES, "angle_uniform", _ANGLE),
    ("random_angles", "Angle to a random vector", _OF_RANDOM, "angle_a", _ANGLE),
    ("lengths", "Lengths", _OF_LENGTHS, "norm", "length"),
    ("means", "Means", _OF_MEANS, "mean", "mean of the elements"),
)
