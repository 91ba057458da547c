"""The figures of the experiments: lines over an axis, in adjacent panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Panel", "draw"]

# The title of a panel and its lines: label, numbers along x, numbers along y.
Panel = tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]


def draw(path: Path, across: str, panels: Sequence[Panel], *, log: bool = False) -> None:
    """Write an SVG of line plots; ``across`` labels their common kind of axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "onnxfold"  # the same file for the same numbers
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3), squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels, strict=True):
        for label, (x, y) in lines.items():
            axis.plot(x, y, label=label, linewidth=1)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(across, fontsize=8)
        if log:
            axis.set_yscale("log")
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
