"""Time and memory of the tool itself on GPT-2 (124M parameters, weights in a second file).

    python -m benchmarks.fold [MODEL.onnx]

exports GPT-2 with ``models`` when no model is given, prints a table against the bars of
docs/architecture.md and appends its rows to benchmarks/results/fold.csv.  Copying and folding are
timed in turns in one run, since a machine's speed swings; a value is the median, with the 20th and
80th percentile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.rows import RESULTS, Conditions, append, conditions

__all__ = ["main"]

_EXPORTED = Path("build") / "bench" / "gpt2.onnx"
_IMPORTS = "import onnxfold.cli, onnxfold.pipeline, onnxfold.report"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow(Conditions):
    """One measurement; ``bar`` is the largest median that is good enough, empty where none is."""

    model: str
    what: str
    unit: str
    runs: int
    low: float
    median: float
    high: float
    bar: float | None


@dataclass(frozen=True, slots=True)
class _Sample:
    what: str
    unit: str
    values: tuple[float, ...]
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    seconds: float
    peak_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep the rows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fold", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL.onnx")
    parser.add_argument("--runs", type=int, default=9, help="of everything that is timed")
    options = parser.parse_args(arguments)
    model: Path = options.model or _exported()
    samples = [*_startup(options.runs), *_fold(model, options.runs), *_command(model, options.runs)]
    rows = [_row(model, sample) for sample in samples]
    print(f"{'':44} {'low':>10} {'median':>10} {'high':>10} {'bar':>8}")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:8g}{'' if row.median <= row.bar else '  OVER'}"
        unit = f"{row.what}, {row.unit}"
        print(f"{unit:44} {row.low:10.3f} {row.median:10.3f} {row.high:10.3f} {bar}")
    append(RESULTS / "fold.csv", rows)
    return 0


def _exported() -> Path:
    if not _EXPORTED.exists():
        from models import export

        _EXPORTED.parent.mkdir(parents=True, exist_ok=True)
        print(f"exporting gpt2 to {_EXPORTED}", file=sys.stderr)
        export("gpt2", _EXPORTED, external_data=True)
    return _EXPORTED


def _row(model: Path, sample: _Sample) -> FoldRow:
    low, median, high = np.percentile(sample.values, (20, 50, 80))
    return FoldRow(
        model=model.stem if model.stem != "model" else model.absolute().parent.name,
        what=sample.what,
        unit=sample.unit,
        runs=len(sample.values),
        low=round(float(low), 6),
        median=round(float(median), 6),
        high=round(float(high), 6),
        bar=sample.bar,
        **conditions(),
    )


def _startup(runs: int) -> list[_Sample]:
    """Start-up of the command and of ``import onnxfold``, beside the bare interpreter."""
    commands = {
        "python -c pass": (["-c", "pass"], None),
        "import onnxfold": (["-c", "import onnxfold"], None),
        "onnxfold --help": (["-m", "onnxfold", "--help"], 0.4),
    }
    seconds: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(runs):
        for what, (words, _bar) in commands.items():
            seconds[what].append(_run([sys.executable, *words]).seconds)
    return [_Sample(what, "s", tuple(seconds[what]), bar) for what, (_, bar) in commands.items()]


def _fold(model: Path, runs: int) -> list[_Sample]:
    """The stages that decide and act, in one warm process, every changed weight computed."""
    import onnxfold
    from onnxfold import model_io

    stages: dict[str, list[float]] = {"analyse": [], "rewrite": [], "changed weights": []}
    for _ in range(runs + 1):
        result = onnxfold.optimize(model_io.load(model), check=0)
        start = time.perf_counter()
        _compute_changed(result.model)
        stages["changed weights"].append(time.perf_counter() - start)
        for stage in ("analyse", "rewrite"):
            stages[stage].append(result.report["timing_s"][stage])
    warm = {stage: tuple(seconds[1:]) for stage, seconds in stages.items()}
    total = tuple(map(sum, zip(*warm.values(), strict=True)))
    return [
        *(_Sample(stage, "s", seconds) for stage, seconds in warm.items()),
        _Sample("analyse, rewrite, changed weights", "s", total, 0.25),
    ]


def _compute_changed(model: ir.Model) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.LazyTensor):
                value.const_value.numpy()


def _command(model: Path, runs: int) -> list[_Sample]:
    """The whole command against copying the same files, in turns, and its peak memory."""
    files = _files(model)
    given = sum(file.stat().st_size for file in files)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        output = Path(scratch) / "fast.onnx"
        fold = [sys.executable, "-m", "onnxfold", "-q", "optimize", str(model)]
        fold += ["-o", str(output), "--no-check"]
        copy = ["cp", *map(str, files), scratch]
        ended: dict[str, list[_Ended]] = {"fold": [], "copy": []}

        def turn(what: str, command: Sequence[str]) -> None:
            _empty(Path(scratch))
            ended[what].append(_run(command))

        for _ in range(runs):
            turn("copy", copy)
            turn("fold", fold)
        written = sum(file.stat().st_size for file in _files(output))
    imports = [_run([sys.executable, "-c", _IMPORTS]).peak_bytes for _ in range(3)]
    copied = tuple(end.seconds for end in ended["copy"])
    folded = tuple(end.seconds for end in ended["fold"])
    peaks = tuple((end.peak_bytes - min(imports)) / _MIB for end in ended["fold"])
    ratios = tuple(f / c for f, c in zip(folded, copied, strict=True))
    return [
        _Sample("copying the files", "s", copied),
        _Sample("optimize --no-check", "s", folded),
        _Sample("optimize --no-check / copying", "ratio", ratios, 2.0),
        _Sample("peak memory above the imports", "MiB", peaks, 150.0),
        _Sample("output bytes / input bytes", "ratio", (written / given,)),
        _Sample("output bytes - input bytes", "bytes", (float(written - given),)),
    ]


def _files(model: Path) -> list[Path]:
    """The model and the file of its weights."""
    return sorted(model.parent.glob(f"{model.name}*")) + sorted(
        model.parent.glob(f"{model.stem}.data")
    )


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _run(command: Sequence[str]) -> _Ended:
    """Run a command to its end; RuntimeError where it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} exits {process.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in KiB on Linux
    return _Ended(seconds, usage.ru_maxrss * scale)


if __name__ == "__main__":
    sys.exit(main())
