"""The figures of the experiments: lines over an axis, in adjacent panels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import mean

__all__ = ["draw"]

Row = Mapping[str, str]


def draw(
    path: Path,
    rows: Iterable[Row],
    panel: Callable[[Row], str],
    x: str,
    y: str,
    *,
    log: bool = False,
) -> None:
    """Write an SVG: a panel for each title, in it the means of y over x for each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "onnxfold"  # the same file for the same numbers
    points: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        lines = points.setdefault(panel(row), {})
        lines.setdefault(row["variant"], defaultdict(list))[int(row[x])].append(float(row[y]))
    figure, axes = pyplot.subplots(1, len(points), figsize=(4 * len(points), 3), squeeze=False)
    for axis, (title, lines) in zip(axes[0], points.items(), strict=True):
        for label, line in lines.items():
            axis.plot(sorted(line), [mean(line[at]) for at in sorted(line)], label=label, lw=1)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(x, fontsize=8)
        if log:
            axis.set_yscale("log")
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    pyplot.close(figure)
