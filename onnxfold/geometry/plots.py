"""The figures of the geometry paper from a report: angles, lengths and means over the depth.

Source: "Geometric interpretation of layer normalization and a comparative analysis with RMSNorm",
arXiv 2409.12951, figures 3 and 6 (angles to 1 before and after each norm) and 7 to 13 (with random
vectors).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxfold.geometry.data.base import optional

__all__ = ["FIGURES", "demand_matplotlib", "svg", "write_figures"]

Norms = Sequence[Mapping[str, Any]]
_TEXT = "#123457"  # stands for the colour of the page's text
_BEFORE, _AFTER, _RANDOM_A, _RANDOM_B = "#2f80d0", "#dd7b1f", "#8a8f98", "#3f9c6b"
_SIDES = (("before", _BEFORE), ("after", _AFTER))
_PRINTED = "#222222"
_DOTS_PER_INCH = 150


def demand_matplotlib() -> None:
    """Raise UsageError where figures could not be drawn at the end of the work."""
    optional("matplotlib", "matplotlib", "drawing")


def write_figures(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure as SVG and PNG; raises UsageError where matplotlib is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in FIGURES:
        with _figure(report, name, _PRINTED) as figure:
            for suffix in ("svg", "png"):
                path = folder / f"{name}.{suffix}"
                metadata = {"Date": None} if suffix == "svg" else None
                figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata, facecolor="white")
                written.append(path)
    return written


def svg(report: Mapping[str, Any], name: str) -> str:
    """Return a figure for a page: without background, in the colour of the text around it."""
    with _figure(report, name, _TEXT) as figure:
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawing = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    return drawing[drawing.index("<svg") :].replace(_TEXT, "currentColor")


@contextmanager
def _figure(report: Mapping[str, Any], name: str, text: str) -> Iterator[Any]:
    library = optional("matplotlib", "matplotlib", "drawing")
    settings = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), text)
    settings |= dict.fromkeys(("xtick.color", "ytick.color"), text)
    fixed = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10.0}
    with library.rc_context({**settings, **fixed}):
        figure = optional("matplotlib.figure", "matplotlib", "drawing").Figure(
            figsize=(7.2, 3.8), layout="constrained"
        )
        FIGURES[name](figure, report["norms"])
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, axis="y", alpha=0.25)
        yield figure


def _bars(
    axes: Any, norms: Norms, side: str, quantity: str, colour: str, label: str, shift: float = 0.0
) -> None:
    """Draw the mean of a quantity over depth, with one standard deviation to both sides.

    ``shift`` keeps the bars of several lines apart.
    """
    found = [(i, n[side][quantity]) for i, n in enumerate(norms) if n[side][quantity]["count"]]
    axes.errorbar(
        [number + shift for number, _ in found],
        [statistic["mean"] for _, statistic in found],
        yerr=[statistic["std"] for _, statistic in found],
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
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (side, _) in zip(panels, _SIDES, strict=True):
        for number, (quantity, colour, label) in enumerate(lines):
            _bars(axes, norms, side, quantity, colour, label, shift=0.22 * (number - 1))
        axes.set(xlabel=f"{side} the norm")
    panels[0].set(ylabel="angle, degrees")
    panels[0].legend(frameon=False, fontsize=8)


def _lengths(figure: Any, norms: Norms) -> None:
    axes = figure.add_subplot()
    for side, colour in _SIDES:
        _bars(axes, norms, side, "norm", colour, f"{side} the norm")
    axes.set(xlabel="norm, in the order of the model", ylabel="length |x|", yscale="log")
    axes.legend(frameon=False)


def _means(figure: Any, norms: Norms) -> None:
    axes = figure.add_subplot()
    for side, colour in _SIDES:
        _bars(axes, norms, side, "mean", colour, f"{side} the norm")
    axes.set(xlabel="norm, in the order of the model", ylabel="mean of the elements")
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


FIGURES: Mapping[str, Callable[[Any, Norms], None]] = {
    "angles": _angles,
    "angles_with_random_vectors": _angles_with_random,
    "lengths": _lengths,
    "means": _means,
    "angle_histograms": _histograms,
}
