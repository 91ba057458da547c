"""Cost against size: folding models of 125M to 6B parameters, and of 10 to 1,000 layers.

    python -m benchmarks.scale [--sizes 125M 350M 1.3B 6B] [--check 125M] [--folder build/scale]

makes each model (benchmarks/gptj.py), times `optimize --no-check` in a process of its own against
copying the files of the model, in turns, folds it once with `--share-weights`, and deletes it
again; then plans models of many layers.
The clock of both stops when all written data is on the disk, and both begin without the model in
the page cache where the system allows that; the package is compiled to bytecode first, as an
installation is.  Resident memory is sampled from outside: `peak` is VmHWM, which counts mapped
pages of files, `anonymous` what is not in any file.  Models named by --check are folded with proof
and verification as well, as `optimize` does by default or in the memory that --memory says.  6B
needs 26 GB of disk.  Rows go to benchmarks/results/scale.csv.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median_high

import onnxfold
from benchmarks.disk import DiskRun, disk_to_disk
from benchmarks.gptj import Size, make
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append, tell

__all__ = ["main"]

_SIZES = {
    "125M": Size(768, 12),
    "350M": Size(1024, 24),
    "1.3B": Size(2048, 24),
    "6B": Size(4096, 28),
}
_NARROW = 64
_MIB = 1024
_SHARDS = 6
_BARS = {"optimize --no-check / copying": 1.5, "peak resident memory": 1024.0}

_PLAN = """
import sys, time
from onnxfold import model_io
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import decide_all
model = model_io.load(sys.argv[1])
start = time.process_time()
findings = decide_all(prepare(model), Settings()).findings
print(time.process_time() - start, findings.description.nodes, len(findings.plan.folds))
"""

_CHECKED = """
import json, pathlib, sys
import onnxfold
model, output, memory, report = sys.argv[1:]
peaks = {}
def note(stage, done):
    status = pathlib.Path("/proc/self/status").read_text()
    peaks[stage] = int(status.partition("VmHWM:")[2].split()[0])
result = onnxfold.optimize(
    model, output, memory=float(memory) if memory else None, progress=note
)
document = {**result.report, "peaks_kib": peaks}
pathlib.Path(report).write_text(json.dumps(document), encoding="utf-8")
"""


_Add = Callable[[str, str, float], None]


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and keep the rows; returns the exit code."""
    options = arguments(
        __doc__,
        {
            "--sizes": tuple(_SIZES),
            "--check": {"nargs": "*", "choices": _SIZES, "default": []},
            "--memory": {"type": float, "help": "GB for the check; left out, as by default"},
            "--layers": [10, 100, 1000],
            "--runs": {"type": int, "default": 3, "help": "of copying and folding; 0: none"},
            "--folder": Path("build/scale"),
            "--out": RESULTS / "scale.csv",
        },
        words,
    )
    compileall.compile_dir(Path(onnxfold.__file__).parent, quiet=1)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            files = make(Path(folder) / "model.onnx", _sharded(_SIZES[name]))
            add = partial(_keep, options.out, name, _SIZES[name].parameters)
            if options.runs:
                _measure(add, _SIZES[name], files, options.runs)
            if name in options.check:
                _checked(add, files, options.memory)
    for count in options.layers:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            size = Size(_NARROW, count, words=1000, dtype="float32")
            model = make(Path(folder) / "model.onnx", size)[0]
            _plan(partial(_keep, options.out, f"{count} layers", size.parameters), model)
    return 0


def _keep(out: Path, model: str, parameters: int, what: str, unit: str, value: float) -> None:
    # One measurement of one model; ``bar`` is the largest value that is good enough.
    row = Row(
        load=round(os.getloadavg()[0], 2),
        model=model,
        parameters=parameters,
        what=what,
        unit=unit,
        value=round(value, 4),
        bar=_BARS.get(what),
    )
    append(out, [row])
    tell([row])


def _measure(add: _Add, size: Size, files: Sequence[Path], runs: int) -> None:
    """Fold and copy a model in turns."""
    folder, nbytes = files[0].parent, sum(file.stat().st_size for file in files)
    copies: list[DiskRun] = []
    folds: list[DiskRun] = []
    written = shards = 0
    for _ in range(runs):
        with _beside(folder) as target:
            copies.append(disk_to_disk(["cp", *map(str, files), str(target)], files))
        with _beside(folder) as target:
            folds.append(disk_to_disk(_fold(files[0], target / "fast.onnx"), files))
            results = sorted(target.iterdir())
            written, shards = sum(file.stat().st_size for file in results), len(results) - 1
    ratios = [f.seconds / c.seconds for f, c in zip(folds, copies, strict=True)]
    processor = median_high(run.processor_seconds for run in folds)
    add("bytes of the model", "GB", nbytes / 1e9)
    add("copying the files", "s", median_high(run.seconds for run in copies))
    add("optimize --no-check", "s", median_high(run.seconds for run in folds))
    add("optimize --no-check / copying", "ratio", median_high(ratios))
    add("optimize --no-check, processor", "s", processor)
    add("processor per 1e9 parameters", "s", processor / size.parameters * 1e9)
    add("peak resident memory", "MiB", max(run.peak for run in folds))
    add("anonymous resident memory", "MiB", max(run.anonymous for run in folds))
    add("data files read", "files", len(files) - 1)
    add("data files written", "files", shards)
    add("bytes written - bytes read", "bytes", written - nbytes)
    # In the folder of the weights that it shares.
    shared = disk_to_disk([*_fold(files[0], folder / "shared.onnx"), "--share-weights"], files)
    own = 0
    for file in folder.glob("shared*"):
        own += file.stat().st_size
        file.unlink()
    add("optimize --no-check --share-weights", "s", shared.seconds)
    add("bytes that it writes / bytes read", "ratio", own / nbytes)


def _checked(add: _Add, files: Sequence[Path], memory: float | None) -> None:
    """Fold once more, with proof and verification."""
    with _beside(files[0].parent) as target:
        report = target / "report.json"
        words = [str(files[0]), str(target / "fast.onnx"), str(memory or ""), str(report)]
        run = disk_to_disk([sys.executable, "-c", _CHECKED, *words], files)
        document = json.loads(report.read_text(encoding="utf-8"))
    spent, found = document["timing_s"], document["verification"]
    how = "optimize" if memory is None else f"optimize --memory {memory:g}"
    add(how, "s", run.seconds)
    add(f"{how}, processor", "s", run.processor_seconds)
    for stage in ("prove", "verify"):
        add(f"{how}: {stage}", "s", spent[stage])
    for stage in ("prove", "save", "verify"):
        peak = document["peaks_kib"][stage] / _MIB
        add(f"{how}: peak resident memory until {stage} ended", "MiB", peak)
    add(f"{how}: anonymous resident memory", "MiB", run.anonymous)
    add(f"{how}: pieces of the verification", "pieces", found["pieces"])
    add(f"noise ratio against {found['method']}", "ratio", found["noise_ratio"])


def _plan(add: _Add, model: Path) -> None:
    """Analysis and plan of a narrow model of many layers."""
    command = [sys.executable, "-c", _PLAN, str(model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, nodes, folded = done.stdout.split()
    add("nodes", "nodes", int(nodes))
    add("norms folded", "norms", int(folded))
    add("analysis and plan, processor", "s", float(seconds))
    add("per node", "ms", 1e3 * float(seconds) / int(nodes))


def _sharded(size: Size) -> Size:
    """The size with about as many shards as a large model has."""
    nbytes = max(size.parameters * 2 // _SHARDS, size.words * size.width * 2)
    return Size(size.width, size.layers, size.words, size.dtype, nbytes)


def _fold(model: Path, output: Path) -> list[str]:
    words = ["-q", "optimize", str(model), "-o", str(output), "--no-check"]
    return [sys.executable, "-m", "onnxfold", *words]


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Make an empty folder on the same disk, and remove it with what is in it."""
    path = folder / "out"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(main())
