"""Draw the figures of docs/figures/ and write docs/benchmarks.md, from benchmarks/results.

    python docs/figures.py

A test fails when one is stale.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

# A command has this folder on its path; a test that runs this file has not.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from pages.parts import gains

__all__ = ["Bar", "chart", "main", "pages"]

ROOT = Path(__file__).resolve().parent.parent
_RESULTS = ROOT / "benchmarks" / "results"
_FIGURES = ROOT / "docs" / "figures"
_MODELS = {
    "minilm": "128",
    "minilm-int8": "128",
    "bert-base": "128",
    "gpt2": "128",
    "opt-125m": "128",
    "vit-s16": "1",
}
_TUNED = (("gpt2", "fp32"), ("vit-b16", "fp32"), ("bert-base", "fp32"))
_METHODS = {"target ort": "--target ort", "onnxfold": "with the kernels"}
_ROWS_OF_KERNELS = ("float32", "post_layer", "128", "768")
_COSTS = (
    "import onnxfold",
    "onnxfold --help",
    "optimize --no-check",
    "peak memory above the imports",
    "output bytes / input bytes",
)
_WIDTH, _LEFT, _RIGHT, _STEP, _BAR = 720, 250, 70, 26, 16
_COLOURS = ("#2563a8", "#d97706", "#6b7280")

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its value, the range it was seen in, and which colour it has."""

    name: str
    value: float
    low: float
    high: float
    colour: int = 0


def main() -> int:
    """Write every figure and the page that shows them, and return the exit code."""
    _FIGURES.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


def pages() -> dict[Path, str]:
    """Return the text of every figure, and of the page."""
    figures = {
        "gains": chart("times as fast as the model as it was", _gains(), mark=1.0),
        "models": chart("times as fast in ONNX Runtime, CPU, one thread", _models(), mark=1.0),
        "serve": chart("times the requests per second of onnxfold serve", _served(), mark=1.0),
        "kernels": chart("ns per element: Add + LayerNorm of 128 x 768, float32", _kernels()),
    }
    drawn = {_FIGURES / f"{name}.svg": text for name, text in figures.items()}
    return {**drawn, ROOT / "docs" / "benchmarks.md": _page()}


def chart(title: str, bars: Sequence[Bar], *, mark: float | None = None) -> str:
    """Draw bars from 0 with their ranges, and a line at ``mark``, as SVG without a script."""
    most = max(bar.high for bar in bars)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    height = 44 + _STEP * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for index, bar in enumerate(bars):
        parts += _bar(bar, 36 + _STEP * index, scale)
    if mark is not None:
        x = f"{_LEFT + mark * scale:.1f}"
        parts.append(
            f'<line x1="{x}" y1="32" x2="{x}" y2="{height - 6}" stroke="#111" '
            'stroke-dasharray="4"/>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    middle = top + _BAR // 2
    low, end, high = (_LEFT + value * scale for value in (bar.low, bar.value, bar.high))
    return [
        f'<text x="{_LEFT - 8}" y="{middle + 5}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{end - _LEFT:.1f}" height="{_BAR}" '
        f'fill="{_COLOURS[bar.colour]}"/>',
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="#111"/>',
        f'<text x="{high + 6:.1f}" y="{middle + 5}">{bar.value:.2f}</text>',
    ]


def _rows(name: str) -> list[Row]:
    with (_RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _gains() -> list[Bar]:
    """Return what README shows: optimize alone on a CPU, and tune on a GPU beside the optimizer."""
    bars = [
        Bar(f"{bar.name.partition(',')[0]}, CPU: optimize", bar.value, bar.low, bar.high)
        for bar in _models()
        if bar.colour == 0
    ]
    for model in _TUNED:
        rows = [row for row in _rows("gpu_tune.csv") if (row["model"], row["dtype"]) == model]
        (best,) = (row for row in rows if row["winner"] == "True")
        (alone,) = (row for row in rows if row["chain"] == "optimizer > fp16")
        ratio, low, high = (float(best[key]) for key in ("ratio", "ratio_low", "ratio_high"))
        one = float(alone["ratio"])
        bars.append(Bar(f"{model[0]}, H200: optimizer, fp16", one, one, one, 2))
        bars.append(Bar(f"{model[0]}, H200: tune, fp16", ratio, low, high, 1))
    return bars


def _models() -> list[Bar]:
    """Return the last measurement of each model of README's table, with both files."""
    last = {(row["subject"], row["size"], row["method"]): row for row in _rows("models.csv")}
    bars = []
    for model, size in _MODELS.items():
        for colour, (method, shown) in enumerate(_METHODS.items()):
            row = last[model, size, method]
            ends = (float(row[key]) for key in ("to_stock", "to_stock_p10", "to_stock_p90"))
            bars.append(Bar(f"{model}, {shown}", *ends, colour))
    return bars


def _served() -> list[Bar]:
    """Return the ratios of requests per second to the model as it was, by the last rows of each."""
    rows = [row for row in _rows("serve.csv") if row["client"] == "tritonclient"]
    last = {(row["model"], row["file"]): row for row in rows}
    bars = []
    for (model, file), row in last.items():
        if file == "fast" and model != "model":
            plain = float(last[model, "plain"]["requests_per_s"])
            low, high = (float(row[key]) / plain for key in ("low", "high"))
            bars.append(Bar(model, float(row["ratio"]), low, high))
    return bars


def _kernels() -> list[Bar]:
    """Return the last measurement of each way to add and normalize, the fastest first."""
    found = {
        row["method"]: row
        for row in _rows("kernels.csv")
        if (row["dtype"], row["operation"], row["rows"], row["size"]) == _ROWS_OF_KERNELS
    }
    bars = [
        Bar(method, *(float(row[key]) for key in ("ns_per_element", "p10", "p90")), colour)
        for method, row in found.items()
        for colour in [2 if method == "loads and stores" else method != "onnxfold"]
    ]
    return sorted(bars, key=lambda bar: bar.value)


def _dates(name: str) -> str:
    return max(row["date"] for row in _rows(name))


def _page() -> str:
    return (
        "# Benchmarks\n\n"
        "```console\n$ onnxfold optimize models/digits_vit/digits_vit.onnx -o fast.onnx -q\n"
        "$ onnxfold bench models/digits_vit/digits_vit.onnx fast.onnx\n```\n\n"
        "```text\n"
        "   kernels     ms      20% to 80%  times as fast    20% to 80%\n"
        "A  stock    0.797  0.655 to 0.994           1.00  1.00 to 1.00\n"
        "B  stock    0.790  0.326 to 1.425           1.05  0.58 to 2.81\n...\n```\n\n"
        "Written by `python docs/figures.py` from `benchmarks/results/`, where every row has its "
        "date, versions, processor and load. Bars are medians, thin lines reach from the 10th to "
        "the 90th percentile of interleaved runs. All were measured on a shared machine of two "
        "cores, where 1.05 is within the noise.\n\n"
        "## Whole models\n\n"
        "![Times as fast as the model as it was, for six models](figures/models.svg)\n\n"
        f"The last rows of `benchmarks/results/models.csv` ({_dates('models.csv')}) for sequences "
        "of 128, or one picture; `python -m benchmarks.models` measures them. Where products of "
        "matrices take nearly all of the time, cheaper norms gain little. What gains how much:\n\n"
        + gains()
        + "\n*One setting* is ONNX Runtime alone, configured to leave the addition before a norm "
        "unfused (SkipLayerNormalization is slow on CPUs). *Other fusions* is what "
        "`--target ort --exclude .` gains beyond it, mostly by Gelu as one operator; *the fold* is "
        "what is gained beyond both. Brackets are the 10th and the 90th percentile.\n\n"
        "## Other runtimes\n\n" + _runtimes() + "\n## The server\n\n"
        "![Requests per second to those of the model as it was](figures/serve.svg)\n\n"
        f"Eight clients ([serve.md](serve.md)), `benchmarks/results/serve.csv` "
        f"({_dates('serve.csv')}); `python -m benchmarks.serve`. Lines reach from the slowest to "
        "the fastest round.\n\n"
        "## One norm\n\n"
        "![Nanoseconds per element of an addition and a LayerNorm](figures/kernels.svg)\n\n"
        "An addition and the LayerNorm after it if the sum has no other reader, in several "
        f"ways, `benchmarks/results/kernels.csv` ({_dates('kernels.csv')}); `python -m "
        "benchmarks.kernels`. *loads and stores* is what moving the data takes.\n\n"
        "## What it costs\n\n" + _costs()
    )


def _runtimes() -> str:
    last = {(row["runtime"], row["model"]): row for row in _rows("runtimes.csv")}
    lines = []
    for row in last.values():  # of times there, of speeds here
        middle, low, high = (f"{1 / float(row[name]):.3f}" for name in ("ratio", "p90", "p10"))
        lines.append(
            f"| {row['runtime']} {row['version']} | {row['model']} | "
            f"{float(row['original_ms']):,.1f} | {float(row['onnx_ms']):,.1f} | {middle} | "
            f"{low} to {high} |\n"
        )
    head = "| runtime | model | original, ms | `onnx`, ms | times as fast | 10% to 90% |\n"
    return (
        "The file for the default target, times as fast as the original. "
        "One thread, float32, sequences of 128 or one picture.\n\n"
        f"{head}|---|---|---|---|---|---|\n{''.join(lines)}\n"
        f"Rows: `benchmarks/results/runtimes.csv` ({_dates('runtimes.csv')}); `python -m "
        "benchmarks.runtimes` measures them.\n"
    )


def _costs() -> str:
    last = {row["what"]: row for row in _rows("fold.csv") if row["model"] == "gpt2"}
    lines = [
        f"| {what} | {float(row['low']):,.4g} | {float(row['median']):,.4g} | "
        f"{float(row['high']):,.4g} | {row['unit']} |\n"
        for what, row in ((what, last[what]) for what in _COSTS)
    ]
    head = "| GPT-2 | lowest | median | highest | unit |\n|---|---|---|---|---|\n"
    return f"{head}{''.join(lines)}\nRows: `benchmarks/results/fold.csv` ({_dates('fold.csv')}).\n"


if __name__ == "__main__":
    sys.exit(main())
