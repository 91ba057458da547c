"""The figures of the geometry paper from reports: of one model, of several, of one in training.

Source: "Geometric interpretation of layer normalization and a comparative analysis with RMSNorm",
arXiv 2409.12951, figures 3 and 6 (angles to 1 before and after each norm), 7 to 13 (with random
vectors), 4 and 14 to 37 (over the steps of training).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Norms = Sequence[Mapping[str, Any]]
Reports = Sequence[Mapping[str, Any]]
MUTED = "#8a8f98"
_BEFORE, _AFTER, _RANDOM_A, _RANDOM_B = "#2f80d0", "#dd7b1f", MUTED, "#3f9c6b"
_SIDES = (("before", _BEFORE), ("after", _AFTER))
# Of models or norms that stand side by side; they differ in lightness too.
_COLOURS = (_BEFORE, _AFTER, _RANDOM_B, "#b0449c", "#c9a227", "#7a5cd0", "#c0392b", "#2aa5a0")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: the name of its file, its title, and what draws it."""

    name: str
    title: str
    draw: Callable[[Any], None]


def figures_of(reports: Reports) -> list[Figure]:
    """Return the figures of one report, of a series with a ``step`` each, or of several models."""
    if len(reports) == 1:
        return [Figure(n, t, partial(f, norms=reports[0]["norms"])) for n, t, f in _OF_ONE]
    if all("step" in report for report in reports):
        steps = sorted(reports, key=lambda report: report["step"])
        return [
            Figure(f"{name}_over_training", f"{title}, over the steps of training",
                   partial(_over_training, reports=steps, quantity=quantity, label=label))
            for name, title, quantity, label in _QUANTITIES
        ]  # fmt: skip
    return [
        Figure(f"{name}_of_models", f"{title}, of several models",
               partial(_of_models, reports=reports, quantity=quantity, label=label))
        for name, title, quantity, label in _QUANTITIES
    ]  # fmt: skip


def _bars(
    axes: Any, norms: Norms, side: str, quantity: str, colour: str, label: str, shift: float = 0.0
) -> None:
    """Draw the mean of a quantity over depth, with one standard deviation to both sides.

    ``shift`` keeps the bars of several lines apart.
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
    axes.set(xlabel="norm, in the order of the model", ylabel="angle to 1, degrees")
    axes.legend(frameon=False)


def _angles_with_random(figure: Any, norms: Norms) -> None:
    lines = (
        ("angle_uniform", _BEFORE, "1"),
        ("angle_a", _RANDOM_A, "random a, as long as 1"),
        ("angle_b", _RANDOM_B, "random b, another length"),
    )

    def draw(axes: Any, side: str) -> None:
        for number, (quantity, colour, label) in enumerate(lines):
            _bars(axes, norms, side, quantity, colour, label, shift=0.22 * (number - 1))

    _both_sides(figure, draw, "{} the norm", "angle, degrees")


def _both_sides(figure: Any, draw: Callable[[Any, str], None], below: str, quantity: str) -> None:
    """Draw a panel before and one after the norms, with one scale and one legend."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (side, _) in zip(panels, _SIDES, strict=True):
        draw(axes, side)
        axes.set(xlabel=below.format(side))
    panels[0].set(ylabel=quantity)
    panels[0].legend(frameon=False, fontsize=8)


def _over_depth(figure: Any, norms: Norms, quantity: str, **scale: str) -> None:
    axes = figure.add_subplot()
    for side, colour in _SIDES:
        _bars(axes, norms, side, quantity, colour, f"{side} the norm")
    axes.set(xlabel="norm, in the order of the model", **scale)
    axes.legend(frameon=False)


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
        axes.set(xlabel=f"angle to 1, norm {place}")
    panels[0].set(ylabel="vectors")
    panels[0].legend(frameon=False, fontsize=8)


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

    _both_sides(figure, draw, "depth, {} the norms", label)


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
            _line(axes, [s for s, _ in found], [statistic for _, statistic in found], colour, name)

    _both_sides(figure, draw, "step, {} the norm", label)


_OF_ONE: Sequence[tuple[str, str, Callable[..., None]]] = (
    ("angles", "Angle to the uniform vector, before and after each norm", _angles),
    ("angles_with_random_vectors", "The same with two random vectors", _angles_with_random),
    (
        "lengths",
        "Lengths",
        partial(_over_depth, quantity="norm", ylabel="length |x|", yscale="log"),
    ),
    ("means", "Means", partial(_over_depth, quantity="mean", ylabel="mean of the elements")),
    (
        "angle_histograms",
        "Angles to the uniform vector: first, middle and last norm",
        _histograms,
    ),
)
# The name of the file, the title, the quantity and the label of its axis.
_QUANTITIES = (
    ("angles", "Angle to the uniform vector", "angle_uniform", "angle to 1, degrees"),
    ("random_angles", "Angle to a random vector", "angle_a", "angle to a, degrees"),
    ("lengths", "Lengths", "norm", "length |x|"),
    ("means", "Means", "mean", "mean of the elements"),
)
