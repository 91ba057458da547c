"""Time and memory of the tool itself on GPT-2 (124M parameters, weights in a second file).

    python -m benchmarks.fold [MODEL.onnx]

exports GPT-2 with ``models`` when no model is given, prints a table against the bars of
docs/architecture.md and appends its rows to benchmarks/results/fold.csv.  Copying and folding are
timed in turns in one run, since a machine's speed swings; a value is the median, with the 20th and
80th percentile.  Rows that end in "processor" are processor time, which other work on the machine
does not lengthen as it does the time on the clock.

The package is compiled to bytecode first, as an installation is: where PYTHONDONTWRITEBYTECODE is
set, a checkout never is, and every command compiles 150 files.

``--checked`` times the command as it is by default, which the other rows leave the check out of.

"imports of the dependencies" starts an interpreter that imports numpy, onnx and onnx-ir and does
nothing: no command that reads a model with them takes less.  "copying the files, fsync" is a copy
that is on the disk when it ends, as the output of the command is where it replaces another.
"""

from __future__ import annotations

import compileall
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

import onnxfold
from benchmarks.disk import disk_to_disk
from benchmarks.harness import arguments, quantiles
from benchmarks.rows import RESULTS, Row, append
from onnxfold import model_io
from onnxfold.cli.startup import go_on_as_usual, start_quickly

__all__ = ["main"]

_EXPORTED = Path("build") / "bench" / "gpt2.onnx"
# VmHWM, since the peak that wait4 gives counts the parent's memory at the fork.
_STATUS = Path("/proc/self/status")
_PEAK = f"""
print(next(line for line in open("{_STATUS}") if line.startswith("VmHWM")).split()[1])
"""
_QUICKLY = """
from onnxfold.cli.startup import start_quickly
start_quickly()  # as the command does: without what onnx-ir imports for symbolic arithmetic
"""
# Stages of a checked command that have a bar together.
_TOGETHER = {
    "analyse, rewrite": ("analyse", "rewrite"),
    "prove": ("prove",),
    "verify": ("verify",),
    "prove, verify": ("prove", "verify"),
}
_DEPENDENCIES = f"{_QUICKLY}import numpy, onnx, onnx_ir"
_IMPORTS = (
    f"{_QUICKLY}import onnxfold.cli.application, onnxfold.api, onnxfold.report.document{_PEAK}"
)
_FOLD = f"""{_QUICKLY}
import sys
from onnxfold.cli.application import app
app(sys.argv[1:], standalone_mode=False){_PEAK}"""


@dataclass(frozen=True, slots=True)
class _Sample:
    what: str
    unit: str
    values: tuple[float, ...]
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    seconds: float
    processor_seconds: float


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and keep the rows; returns the exit code."""
    options = arguments(
        __doc__,
        {
            "model": {"type": Path, "nargs": "?"},
            "--runs": {"type": int, "default": 9, "help": "of everything that is timed"},
            "--checked": {"action": "store_true", "help": "time the default command alone"},
            "--older": {"metavar": "PYTHON", "help": "with --checked: of another version"},
            "--onnxslim": {"metavar": "PROGRAM", "help": "with --checked: run it in turns"},
        },
        words,
    )
    model: Path = options.model or _exported()
    compileall.compile_dir(Path(onnxfold.__file__).parent, quiet=1)
    load = os.getloadavg()[0]
    runs: int = options.runs
    if options.checked:
        samples = _checked(model, runs, options.older, options.onnxslim)
    else:
        samples = [*_startup(runs), *_fold(model, runs), *_command(model, runs)]
    rows = [_row(model, load, sample) for sample in samples]
    print(f"load average before: {load:.2f}")
    print(f"{'':48} {'low':>10} {'median':>10} {'high':>10} {'bar':>8}")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:8g}{'' if row.median <= row.bar else '  OVER'}"
        unit = f"{row.what}, {row.unit}"
        print(f"{unit:48} {row.low:10.3f} {row.median:10.3f} {row.high:10.3f} {bar}")
    append(RESULTS / "fold.csv", rows)
    return 0


def _exported() -> Path:
    if not _EXPORTED.exists():
        from models import export

        _EXPORTED.parent.mkdir(parents=True, exist_ok=True)
        print(f"exporting gpt2 to {_EXPORTED}", file=sys.stderr)
        export("gpt2", _EXPORTED, external_data=True)
    return _EXPORTED


def _row(model: Path, load: float, sample: _Sample) -> Row:
    # One measurement; ``bar`` is the largest acceptable median, or empty. ``load`` is the load
    # average of the minute before.
    return Row(
        load=round(load, 2),
        model=model.stem if model.stem != "model" else model.absolute().parent.name,
        what=sample.what,
        unit=sample.unit,
        runs=len(sample.values),
        **quantiles(sample.values, 6, low=20, median=50, high=80),
        bar=sample.bar,
    )


def _startup(runs: int) -> list[_Sample]:
    """Start-up of the command and of ``import onnxfold``, compared with the bare interpreter."""
    commands = {
        "python -c pass": (["-c", "pass"], None),
        "import onnxfold": (["-c", "import onnxfold"], None),
        "onnxfold --help": (["-m", "onnxfold", "--help"], 0.4),
    }
    ended: dict[str, list[_Ended]] = {what: [] for what in commands}
    for _ in range(runs):
        for what, (words, _bar) in commands.items():
            ended[what].append(_run([sys.executable, *words]))
    return [
        sample for what, (_, bar) in commands.items() for sample in _both(what, ended[what], bar)
    ]


def _both(what: str, ended: Sequence[_Ended], bar: float | None = None) -> list[_Sample]:
    """Time on the clock, to which the bar belongs, and processor time."""
    return [
        _Sample(what, "s", tuple(end.seconds for end in ended), bar),
        _Sample(f"{what}, processor", "s", tuple(end.processor_seconds for end in ended)),
    ]


def _fold(model: Path, runs: int) -> list[_Sample]:
    """The stages that decide and act, in one warm process, every changed weight computed."""
    start_quickly()
    stages: dict[str, list[float]] = {"analyse": [], "rewrite": [], "changed weights": []}
    processor: list[float] = []
    for _ in range(runs + 1):
        source = model_io.load(model)
        begin = time.process_time()
        result = onnxfold.optimize(source, check=None)
        start = time.perf_counter()
        _compute_changed(result.model)
        stages["changed weights"].append(time.perf_counter() - start)
        processor.append(time.process_time() - begin)
        for stage in ("analyse", "rewrite"):
            stages[stage].append(result.report["timing_s"][stage])
    go_on_as_usual()
    warm = {stage: tuple(seconds[1:]) for stage, seconds in stages.items()}
    total = tuple(map(sum, zip(*warm.values(), strict=True)))
    return [
        *(_Sample(stage, "s", seconds) for stage, seconds in warm.items()),
        _Sample("analyse, rewrite, changed weights", "s", total, 0.25),
        _Sample("analyse, rewrite, changed weights, processor", "s", tuple(processor[1:])),
    ]


def _compute_changed(model: ir.Model) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.LazyTensor):
                value.const_value.numpy()


def _command(model: Path, runs: int) -> list[_Sample]:
    """The whole command against copying the same files, in turns; its memory and its output."""
    files = _files(model)
    given = sum(file.stat().st_size for file in files)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        output = Path(scratch) / "fast.onnx"
        words = ["-q", "optimize", str(model), "-o", str(output), "--no-check"]
        copy = ["cp", *map(str, files), scratch]
        turns = {
            "copy": copy,
            "durable": ["sh", "-c", f"{shlex.join(copy)} && sync {shlex.quote(scratch)}/*"],
            "imports": [sys.executable, "-c", _DEPENDENCIES],
            "fold": [sys.executable, "-m", "onnxfold", *words],
        }
        ended: dict[str, list[_Ended]] = {what: [] for what in turns}
        for _ in range(runs):
            for what, command in turns.items():
                _empty(Path(scratch))
                ended[what].append(_run(command))
        written = sum(file.stat().st_size for file in _files(output))
        disk: dict[str, list[float]] = {"copy": [], "fold": []}
        for _ in range(runs):
            for what, seconds in disk.items():
                _empty(Path(scratch))
                seconds.append(disk_to_disk(turns[what], files).seconds)
        memory = _memory(words, runs) if _STATUS.exists() else []

    on_disk = tuple(fold / copy for fold, copy in zip(disk["fold"], disk["copy"], strict=True))

    def ratios(of: str, to: str) -> tuple[float, ...]:
        pairs = zip(ended[of], ended[to], strict=True)
        return tuple(one.seconds / other.seconds for one, other in pairs)

    return [
        *_both("copying the files", ended["copy"]),
        *_both("copying the files, fsync", ended["durable"]),
        *_both("imports of the dependencies", ended["imports"]),
        *_both("optimize --no-check", ended["fold"]),
        _Sample("imports of the dependencies / copying", "ratio", ratios("imports", "copy")),
        _Sample("optimize --no-check / copying", "ratio", ratios("fold", "copy"), 2.0),
        _Sample("optimize --no-check / copying, fsync", "ratio", ratios("fold", "durable")),
        _Sample("copying from disk to disk", "s", tuple(disk["copy"])),
        _Sample("optimize --no-check from disk to disk", "s", tuple(disk["fold"])),
        _Sample("optimize --no-check / copying, disk to disk", "ratio", on_disk, 2.0),
        *memory,
        _Sample("output bytes / input bytes", "ratio", (written / given,)),
        _Sample("output bytes - input bytes", "bytes", (float(written - given),)),
    ]


def _checked(model: Path, runs: int, older: str | None, onnxslim: str | None) -> list[_Sample]:
    """The default command with its proof and check; in turns with an older one, and onnxslim."""
    pythons = {"": sys.executable} | ({"older ": older} if older else {})
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        report, output = Path(scratch) / "report.json", str(Path(scratch) / "fast.onnx")
        for _ in range(runs):
            for whose, python in pythons.items():
                words = ["optimize", str(model), "-o", output, "--report", str(report)]
                ended = _emptied(scratch, [python, "-P", "-m", "onnxfold", "-q", *words])
                spent = json.loads(report.read_text())["timing_s"]
                seconds[f"{whose}optimize"].append(ended.seconds)
                for what, stages in _TOGETHER.items():
                    seconds[whose + what].append(sum(spent[stage] for stage in stages))
            if onnxslim:
                ended = _emptied(scratch, [onnxslim, str(model), output])
                seconds["onnxslim"].append(ended.seconds)
    bars = {"prove, verify": 0.7, "analyse, rewrite": 1.0, "optimize": None}
    samples = [_Sample(f"{what}, checked", "s", tuple(each)) for what, each in seconds.items()]
    pairs = [(what, f"older {what}", bar) for what, bar in bars.items() if older]
    pairs += [("optimize", "onnxslim", 1.0)] if onnxslim else []
    return samples + [_in_turns(seconds, *pair) for pair in pairs]


def _in_turns(
    seconds: Mapping[str, Sequence[float]], one: str, other: str, bar: float | None
) -> _Sample:
    pairs = zip(seconds[one], seconds[other], strict=True)
    return _Sample(f"{one} / {other}, checked", "ratio", tuple(a / b for a, b in pairs), bar)


def _emptied(scratch: str, command: Sequence[str]) -> _Ended:
    _empty(Path(scratch))
    return _run(command)


def _memory(words: Sequence[str], runs: int) -> list[_Sample]:
    """Peak resident memory of the command in excess of an interpreter with its imports."""
    base = min(_peak(_IMPORTS) for _ in range(3))
    peaks = tuple(_peak(_FOLD, *words) - base for _ in range(min(runs, 3)))
    return [
        _Sample("memory of the imports", "MiB", (base,)),
        _Sample("peak memory above the imports", "MiB", peaks, 150.0),
    ]


def _peak(code: str, *words: str) -> float:
    """Return the peak of resident memory of a program that prints it in KiB, in MiB."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1024


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
    return _Ended(seconds, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
