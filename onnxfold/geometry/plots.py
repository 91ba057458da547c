"""Figures as files, and as drawings in a page."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnxfold.geometry.figures import Figure, figures_of
from onnxfold.inputs.data.shards import optional
from onnxfold.report.inspection import plain

_TEXT = "#123457"  # replaced by the text color of the page
_PRINTED = "#222222"
_DOTS_PER_INCH = 150
# Inches; what fits a telephone is read there without scrolling.
_PRINTED_SIZE, _PAGE_SIZE = (7.2, 3.8), (4.9, 3.8)
_WRITTEN_BY: Mapping[str, dict[str, str | None]] = MappingProxyType(
    {"svg": {"Date": None, "Creator": "onnxfold"}, "png": {"Software": "onnxfold"}}
)


def demand_matplotlib() -> None:
    """Raise DependencyError if figures could not be drawn at the end of the work."""
    optional("matplotlib", "matplotlib", "drawing")


def write_figures(reports: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write every figure as SVG and PNG; raises DependencyError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in figures_of(plain(reports)):
        with _drawn(drawing, _PRINTED, _PRINTED_SIZE) as figure:
            for suffix in ("svg", "png"):
                path = folder / f"{drawing.name}.{suffix}"
                metadata = _WRITTEN_BY[suffix]
                figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata, facecolor="white")
                written.append(path)
    return written


def svg(drawing: Figure) -> str:
    """Return a figure for a page: without background, in the color of the surrounding text."""
    with _drawn(drawing, _TEXT, _PAGE_SIZE) as figure:
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    return text[text.index("<svg") :].replace(_TEXT, "currentColor")


@contextmanager
def _drawn(drawing: Figure, text: str, size: tuple[float, float]) -> Iterator[Any]:
    library = optional("matplotlib", "matplotlib", "drawing")
    settings = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), text)
    settings |= dict.fromkeys(("xtick.color", "ytick.color"), text)
    # A name is text, also with a dollar sign in it.
    fixed: dict[str, Any] = {"text.parse_math": False}
    fixed |= {"svg.fonttype": "none", "svg.hashsalt": drawing.name, "font.size": 10.0}
    with library.rc_context({**settings, **fixed}):
        figure = optional("matplotlib.figure", "matplotlib", "drawing").Figure(
            figsize=size, layout="constrained"
        )
        drawing.draw(figure)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, axis="y", alpha=0.25)
        yield figure
