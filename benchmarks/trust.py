"""Faults and the like: `python -m benchmarks.trust [faults races numerics determinism]`.

Each part does many times what a test of `tests/hostile` does a few times. A row for each case and
subject goes to benchmarks/results/trust.csv: how the runs ended, and how many `broken` a promise,
which has to be 0; what they broke is printed. A full and a read-only disk need root.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append
from onnxfold.errors import VerificationError
from tests.hostile.conditions import CONDITIONS, bad_conditions
from tests.hostile.faults import (
    CHANGES,
    Ended,
    Subject,
    broken,
    change,
    command,
    kill,
    remount,
    small_disk,
    two_at_once,
    whole,
)
from tests.hostile.runs import ROOT, written
from tests.hostile.seeds import layer_norm_model

__all__ = ["main"]

_OUTPUT = "out/o.onnx"
_DIGITS = "models/digits_vit/digits_vit.onnx"
_RECIPES = ("bert-base", "gpt2", "swin-t")
_TYPES = (np.float16, np.float32, np.float64)
_EPSILONS = (0.0, 1e-12, 1e-5)
_WRITINGS = ((), ("--save-as-external-data",), ("--target", "onnx"), ("--target", "ort"))


@dataclass(slots=True)
class _Tally:
    """Counts of one case so far."""

    part: str
    case: str
    subject: str
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("done", "left", "refused", "killed", "broken"), 0)
    )
    runs: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, ended: str, fault: str | None = None) -> None:
        self.runs += 1
        self.counts["broken" if fault else ended] += 1
        if fault:
            print(f"{self.part}, {self.case}, {self.subject}: {fault}", file=sys.stderr)

    def row(self) -> Row:
        # Runs: done, norms left as they were, exit codes 1 and 3, killed by the case, and broken.
        about = {"part": self.part, "case": self.case, "subject": self.subject, "runs": self.runs}
        return Row(**about, **self.counts, wall_s=round(time.monotonic() - self.started, 1))


def _subjects() -> list[Subject]:
    """Real files: weights inside, in one data file, in three; checked and not; weights shared."""
    digits, gpt2 = (onnx.load(ROOT / path) for path in (_DIGITS, "tests/recipes/gpt2.onnx"))
    shards = tuple(f"in-{number}.data" for number in range(3))
    quick = ("--no-check",)
    return [
        Subject("digits_vit", digits, (), quick),
        Subject("digits_vit, checked", digits, (), ("--check", "1")),
        Subject("digits_vit, data file", digits, ("in.data",), quick),
        Subject("digits_vit, 3 shards", digits, shards, quick),
        Subject("gpt2 recipe, 3 shards", gpt2, shards, quick),
    ]


def _ending(ended: Ended) -> str:
    return "killed" if ended.code is None else "done" if ended.code == 0 else "refused"


@dataclass(frozen=True, slots=True)
class _Stage:
    """A folder with a fresh copy of a subject for each run."""

    folder: Path
    subject: Subject

    def lay(self, old: bool = False) -> Path:
        """Return the new folder; `old`: with a model under the name of the output already."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        source = self.subject.lay(run)
        if old:
            onnx.save(onnx.load(source), run / _OUTPUT)
        return run

    def result(self, what: str | None = None) -> bytes | None:
        """What an undisturbed run gives, on changed input if `what` says so."""
        run = self.lay()
        if what is not None:
            change(what, run / self.victim)
        ended = command(self.subject.arguments(_OUTPUT), run)
        if ended.code != 0 and what is None:
            raise RuntimeError(ended.said)
        return whole(run / _OUTPUT)

    @property
    def victim(self) -> str:
        return self.subject.data[-1] if self.subject.data else "in.onnx"


_Act = Callable[[Path], object]


def _stepped(
    tally: _Tally, stage: _Stage, act: _Act, results: Sequence[bytes | None], every: int
) -> None:
    """Act before every `every`-th step of a run, in a new run for each."""
    step, reached = 0, True
    while reached:
        run = stage.lay()
        arguments = stage.subject.arguments(_OUTPUT)
        ended = command(arguments, run, step, partial(act, run))
        tally.add(_ending(ended), broken(ended, run / _OUTPUT, None, results))
        step, reached = step + every, ended.reached


def _kills(stage: _Stage, every: int) -> Iterator[_Tally]:
    """Killed before every step; with an output that replaces another, or in place, `every` one."""
    result = stage.result()
    for case, output in (("new", _OUTPUT), ("replaced", _OUTPUT), ("in place", "in.onnx")):
        tally = _Tally("faults", f"killed before a step, {case}", stage.subject.name)
        step, reached = 0, True
        while reached:
            run = stage.lay(old=case == "replaced")
            original, before = whole(run / "in.onnx"), whole(run / output)
            force = ["--force"] if case == "in place" else []
            arguments = [*stage.subject.arguments(output), *force]
            ended = command(arguments, run, step, kill)
            fault = broken(ended, run / output, before, [result])
            if case != "in place" and whole(run / "in.onnx") != original:
                fault = "the input is another"
            if fault is None and ended.reached and step % 10 == 0:
                again = command(arguments, run)
                fault = f"the next run: {again.said}" if again.code else None
            tally.add(_ending(ended), fault)
            step, reached = step + (1 if case == "new" else every), ended.reached
        yield tally


def _changes(stage: _Stage, every: int) -> Iterator[_Tally]:
    """The input changed, or the folder of the output removed, before a step."""
    result = stage.result()
    for what in CHANGES:
        results = [result]
        if what == "other numbers":
            results.append(stage.result(what))
        tally = _Tally("faults", f"input {what} before a step", stage.subject.name)

        def act(run: Path, what: str = what) -> None:
            change(what, run / stage.victim)

        _stepped(tally, stage, act, results, every)
        yield tally
    tally = _Tally("faults", "output folder removed before a step", stage.subject.name)
    _stepped(tally, stage, lambda run: shutil.rmtree(run / "out"), [result, None], every)
    yield tally


def _disks(stage: _Stage, sizes: int) -> Iterator[_Tally]:
    """Disks of several sizes up to the one that is enough, and a read-only one."""
    result = stage.result()
    needed = sum(path.stat().st_size for path in (stage.folder / "run/out").iterdir())
    full = _Tally("faults", "full disk", stage.subject.name)
    read_only = _Tally("faults", "read-only disk", stage.subject.name)
    run = stage.lay()
    with small_disk(run / "out") as disk:
        if disk is None:
            print("no disk can be mounted here: full and read-only are left out", file=sys.stderr)
            return
        for number in range(1, sizes + 1):
            remount(disk, f"size={needed * number // (sizes - 1) >> 10}k")
            ended = command(stage.subject.arguments(_OUTPUT), run)
            fault = broken(ended, run / _OUTPUT, None, [result])
            if ended.code and "the disk is full" not in ended.said:
                fault = f"the disk is not named: {ended.said}"
            if ended.code and any(disk.iterdir()):
                fault = f"left {[path.name for path in disk.iterdir()]}"
            full.add(_ending(ended), fault)
            for path in disk.iterdir():
                path.unlink()
        yield full
        remount(disk, "ro")
        ended = command(stage.subject.arguments(_OUTPUT), run)
        read_only.add(_ending(ended), broken(ended, run / _OUTPUT, None, []))
        yield read_only


def _other_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of the same form with half of every float weight."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor) * np.float32(0.5)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    return other


def _races(given: argparse.Namespace, folder: Path) -> Iterator[_Tally]:
    """Two runs to one output at once, of models whose mixture would be seen."""
    model = onnx.load(ROOT / _DIGITS)
    models = {"a": model, "b": _other_numbers(model)}
    for options in (("--no-check",), ("--no-check", "--save-as-external-data")):
        tally = _Tally("races", "two runs to one output", f"digits_vit {options[-1]}")
        race = folder / "race"
        alone = {}
        for name, raced in models.items():
            subject = Subject(name, raced, (), options)
            source = subject.lay(race / name)
            command(subject.arguments(_OUTPUT), race / name)
            alone[source] = whole(race / name / _OUTPUT)
        for number in range(given.races):
            fault = two_at_once(alone, race / "o.onnx", options, delay_s=0.01 * (number % 10))
            tally.add("done", fault)
        shutil.rmtree(race)
        yield tally


def _faults(options: argparse.Namespace, folder: Path) -> Iterator[_Tally]:
    for subject in _subjects():
        stage = _Stage(folder, subject)
        yield from _kills(stage, options.every)
        yield from _changes(stage, options.every)
        yield from _disks(stage, options.sizes)


def _numerics(options: argparse.Namespace, _: Path) -> Iterator[_Tally]:
    for dtype in _TYPES:
        for case in CONDITIONS:
            tally = _Tally("numerics", case, np.dtype(dtype).name)
            for seed in range(options.seeds):
                given = bad_conditions(dtype, np.random.default_rng(seed))[case]
                for epsilon in _EPSILONS:
                    model = layer_norm_model(dtype, epsilon, **given)
                    tally.add(*_answer(model, seed))
            yield tally


def _answer(model: onnx.ModelProto, seed: int) -> tuple[str, str | None]:
    """Fold, and check on other inputs than the fold did."""
    try:
        result = onnxfold.optimize(model)
    except VerificationError:
        return "refused", None
    checked = onnxfold.verify(model, result.model, seed=seed + 1)
    ended = "done" if result.plan.folds else "left"
    return ended, None if checked.passed else f"another answer: {checked.to_json()}"


def _determinism(_: argparse.Namespace, folder: Path) -> Iterator[_Tally]:
    models = [ROOT / _DIGITS, *(ROOT / f"tests/recipes/{name}.onnx" for name in _RECIPES)]
    for model in models:
        for writing in _WRITINGS:
            case = f"1 and 2 threads, hash seeds {' '.join(writing)}".rstrip()
            tally = _Tally("determinism", case, model.stem)
            first: dict[str, bytes] | None = None
            for number, (threads, seed) in enumerate(((1, "0"), (1, "12345"), (2, "0"), (2, "1"))):
                run = folder / f"{model.stem}-{number}"
                bytes_written = written(model, run, threads, seed, *writing, "--check", "1")
                shutil.rmtree(run)
                first = first or bytes_written
                same = bytes_written == first
                tally.add("done", None if same else f"other bytes with {threads}, {seed}")
            yield tally


_PARTS = {
    "faults": _faults,
    "races": _races,
    "numerics": _numerics,
    "determinism": _determinism,
}


def main() -> None:
    options = arguments(
        __doc__,
        {
            # No `choices`: before Python 3.12 they refuse that none is named.
            "parts": {"nargs": "*", "help": "by default all: " + ", ".join(_PARTS)},
            "--every": {"type": int, "default": 3, "help": "interfere before every so many steps"},
            "--sizes": {"type": int, "default": 20, "help": "disks that are too small"},
            "--races": {"type": int, "default": 20, "help": "times that two runs are at once"},
            "--seeds": {"type": int, "default": 20, "help": "of weights in bad condition"},
            "--results": RESULTS / "trust.csv",
        },
    )
    if unknown := set(options.parts) - set(_PARTS):
        sys.exit(f"no such part: {', '.join(sorted(unknown))}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="trust-") as folder:
        for part in options.parts or _PARTS:
            for tally in _PARTS[part](options, Path(folder)):
                row = tally.row()
                append(options.results, [row])
                print(row.part, row.case, row.subject, row.runs, tally.counts, flush=True)
                wrong += row.broken
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
