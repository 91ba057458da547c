"""Time and memory of the tool itself on GPT-2 (124M parameters, weights in a second file).

    python -m benchmarks.fold [MODEL.onnx]

exports GPT-2 with ``models`` when no model is given, appends its rows to
benchmarks/results/fold.csv and says which bars of docs/architecture.md they are over.  Copying and
folding are timed in turns in one run, since a machine's speed swings; a value is the median, with
the 20th and 80th percentile.  Rows that end in "processor" are processor time, which other work on
the machine does not lengthen as it does the time on the clock.

The package is compiled to bytecode first, as an installation is: where PYTHONDONTWRITEBYTECODE is
set, a checkout never is, and every command compiles 150 files.

``--checked`` times the command as it is by default, which the other rows leave the check out of.

"imports of the dependencies" starts an interpreter that imports numpy, onnx and onnx-ir and does
nothing: no command that reads a model with them takes less.  "copying the files, fsync" is a copy
that is on the disk when it ends, as the output of the command is where it replaces another.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

import onnxfold
from benchmarks.disk import DiskRun, disk_to_disk, ended
from benchmarks.harness import arguments, quantiles
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold import model_io
from onnxfold.cli.guard import go_on_as_usual, start_quickly

__all__ = ["main"]

_EXPORTED = Path("build") / "bench" / "gpt2.onnx"
# As the command does: without what onnx-ir imports for symbolic arithmetic.
_QUICKLY = "from onnxfold.cli.guard import start_quickly; start_quickly(); "
_DEPENDENCIES = f"{_QUICKLY}import numpy, onnx, onnx_ir"
# Memory is read from outside, some hundredths of a second before the end.
_IMPORTS = (
    f"{_QUICKLY}import time, onnxfold.cli.application, onnxfold.api, onnxfold.report.document; "
    "time.sleep(0.1)"
)
# Stages of a checked command that have a bar together.
_TOGETHER = {
    "analyse, rewrite": ("analyse", "rewrite"),
    "prove": ("prove",),
    "verify": ("verify",),
    "prove, verify": ("prove", "verify"),
}
_COPY, _FOLD, _ABOVE = "copying the files", "optimize --no-check", "peak memory above the imports"
# The largest acceptable medians.
_BARS = {
    "onnxfold --help": 0.4,
    "analyse, rewrite, changed weights": 0.25,
    f"{_FOLD} / copying": 2.0,
    f"{_FOLD} / copying, disk to disk": 2.0,
    _ABOVE: 150.0,
    "prove, verify / older prove, verify, checked": 0.7,
    "analyse, rewrite / older analyse, rewrite, checked": 1.0,
    "optimize / onnxslim, checked": 1.0,
}
_Samples = dict[str, list[float]]


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
            "--out": RESULTS / "fold.csv",
        },
        words,
    )
    model: Path = options.model or _exported()
    compileall.compile_dir(Path(onnxfold.__file__).parent, quiet=1)
    load = round(os.getloadavg()[0], 2)
    found: _Samples = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        if options.checked:
            _checked(found, model, options, Path(scratch))
        else:
            _warm(found, model, options.runs)
            _commands(found, model, options.runs, Path(scratch))
    # ``load`` is the load average of the minute before.
    rows = [
        Row(
            load=load,
            model=model.stem if model.stem != "model" else model.absolute().parent.name,
            what=what,
            unit=_unit(what),
            runs=len(values),
            **quantiles(values, 6, low=20, median=50, high=80),
            bar=_BARS.get(what),
        )
        for what, values in found.items()
    ]
    append(options.out, rows)
    tell(rows)
    for row in rows:
        if row.bar is not None and row.median > row.bar:
            print(f"{row.what}: OVER its bar of {row.bar:g}")
    return 0


def _unit(what: str) -> str:
    units = {"bytes -": "bytes", " / ": "ratio", "memory": "MiB"}
    return next((unit for word, unit in units.items() if word in what), "s")


def _exported() -> Path:
    if not _EXPORTED.exists():
        from models import export

        _EXPORTED.parent.mkdir(parents=True, exist_ok=True)
        print(f"exporting gpt2 to {_EXPORTED}", file=sys.stderr)
        export("gpt2", _EXPORTED, external_data=True)
    return _EXPORTED


def _warm(found: _Samples, model: Path, runs: int) -> None:
    """Time the stages that decide and act, in one warm process, every changed weight computed."""
    start_quickly()
    total = "analyse, rewrite, changed weights"
    for run in range(runs + 1):
        source = model_io.load(model)
        begin = time.process_time()
        result = onnxfold.optimize(source, check=None)
        start = time.perf_counter()
        _compute_changed(result.model)
        spent = {stage: result.report["timing_s"][stage] for stage in ("analyse", "rewrite")}
        spent["changed weights"] = time.perf_counter() - start
        spent[total] = sum(spent.values())
        spent[f"{total}, processor"] = time.process_time() - begin
        for stage, seconds in spent.items() if run else ():  # the first warms up
            found[stage].append(seconds)
    go_on_as_usual()


def _compute_changed(model: ir.Model) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.LazyTensor):
                value.const_value.numpy()


def _commands(found: _Samples, model: Path, runs: int, scratch: Path) -> None:
    """Time start-up, and the command against copying the same files, in turns; its memory too."""
    files, output = _files(model), scratch / "fast.onnx"
    copy = ["cp", *map(str, files), str(scratch)]
    python = [sys.executable, "-c"]
    commands = {
        "python -c pass": [*python, "pass"],
        "import onnxfold": [*python, "import onnxfold"],
        "onnxfold --help": [sys.executable, "-m", "onnxfold", "--help"],
        _COPY: copy,
        f"{_COPY}, fsync": ["sh", "-c", f"{shlex.join(copy)} && sync {scratch}/*"],
        "imports of the dependencies": [*python, _DEPENDENCIES],
        _FOLD: [sys.executable, "-m", "onnxfold", "-q", "optimize", str(model), "-o", str(output),
                "--no-check"],
    }  # fmt: skip
    imports = [disk_to_disk([*python, _IMPORTS], ()).peak for _ in range(3)]
    found["memory of the imports"].append(min(imports))
    for _ in range(runs):
        for what, command in commands.items():
            run = _emptied(scratch, command)
            found[what].append(run.seconds)
            found[f"{what}, processor"].append(run.processor_seconds)
        for what, name in (("copying", _COPY), (_FOLD, _FOLD)):
            on_disk = _emptied(scratch, commands[name], files)
            found[f"{what} from disk to disk"].append(on_disk.seconds)
        found[_ABOVE].append(on_disk.peak - min(imports))
    given, written = (sum(file.stat().st_size for file in _files(m)) for m in (model, output))
    found["output bytes / input bytes"].append(written / given)
    found["output bytes - input bytes"].append(float(written - given))
    for what in ("imports of the dependencies", _FOLD):
        found[f"{what} / copying"] = _ratios(found, what, _COPY)
    found[f"{_FOLD} / copying, fsync"] = _ratios(found, _FOLD, f"{_COPY}, fsync")
    on_disks = (f"{what} from disk to disk" for what in (_FOLD, "copying"))
    found[f"{_FOLD} / copying, disk to disk"] = _ratios(found, *on_disks)


def _ratios(found: _Samples, one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(found[one], found[other], strict=True)]


def _checked(found: _Samples, model: Path, options: argparse.Namespace, scratch: Path) -> None:
    """The default command with its proof and check; in turns with an older one, and onnxslim."""
    pythons = {"": sys.executable} | ({"older ": options.older} if options.older else {})
    report, output = scratch / "report.json", str(scratch / "fast.onnx")
    words = ["optimize", str(model), "-o", output, "--report", str(report)]
    for _ in range(options.runs):
        for whose, python in pythons.items():
            run = _emptied(scratch, [python, "-P", "-m", "onnxfold", "-q", *words])
            spent = json.loads(report.read_text())["timing_s"]
            found[f"{whose}optimize, checked"].append(run.seconds)
            for what, stages in _TOGETHER.items():
                found[f"{whose}{what}, checked"].append(sum(spent[stage] for stage in stages))
        if options.onnxslim:
            run = _emptied(scratch, [options.onnxslim, str(model), output])
            found["onnxslim, checked"].append(run.seconds)
    compared = ["prove, verify", "analyse, rewrite", "optimize"] if options.older else []
    pairs = [(what, f"older {what}") for what in compared]
    for one, other in pairs + ([("optimize", "onnxslim")] if options.onnxslim else []):
        ratios = _ratios(found, f"{one}, checked", f"{other}, checked")
        found[f"{one} / {other}, checked"] = ratios


def _files(model: Path) -> list[Path]:
    """The model and the file of its weights."""
    return [*sorted(model.parent.glob(f"{model.name}*")), *model.parent.glob(f"{model.stem}.data")]


def _emptied(scratch: Path, command: Sequence[str], files: Sequence[Path] | None = None) -> DiskRun:
    """Run a command with an empty scratch folder, from and to the disk where files are named."""
    for file in scratch.iterdir():
        file.unlink()
    return ended(command) if files is None else disk_to_disk(command, files)


if __name__ == "__main__":
    sys.exit(main())
