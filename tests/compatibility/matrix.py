"""Fill the matrix: one cell for each subject, export and target.

A cell is *taken* where the subject takes the file and the output is right. With e the largest error
of an output relative to its largest element against the float64 truth, and u the unit roundoff of
what the subject computes in,

    the original:  e_o <= sqrt(u)
    ours:          e   <= LIMIT max(e_o, u)

where e_o is the error of the original in the same subject: it computes the model where half of its
bits are right (some approximate Erf), and ours must then be as good. Ours rounds each changed
weight once more and adds in another order: that at most doubles what the original has of roundings,
and the largest of several hundred errors differs between two orders of summation by up to 2.5 (the
originals, in ONNX Runtime with and without optimization and in `onnx.reference`), for which 4 is
allowed. With the second set of inputs, of rows of zeros, equal numbers and 1e3, the same bound
holds for ours, and none for the original: some quantizers clip such rows.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

import onnxfold
from tests.compatibility.environments import ENVIRONMENTS, UnavailableError, ready
from tests.compatibility.exports import ARCHITECTURES, Export
from tests.compatibility.subjects import RUNTIMES, Subject
from tests.compatibility.truth import relative_error
from tests.compatibility.work import answers

__all__ = [
    "DEFAULT",
    "LIMIT",
    "ORIGINAL",
    "TARGETS",
    "Cell",
    "Row",
    "come_apart",
    "failures",
    "judge",
    "run",
]

# Every subject must take what is written for DEFAULT.
TARGETS: Final = ("onnx", "ort", "kernels")
DEFAULT: Final = "onnx"
ORIGINAL: Final = "original"
LIMIT: Final = 2.0 * 4.0
_ROUNDS = 30
_TEXT = 300


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of one file in one subject: its errors, or why there are none."""

    outcome: str  # ok, refused, crashed, late, unavailable; judged: same, wrong
    error: float | None = None
    rows_error: float | None = None  # with the second set of inputs
    facts: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A judged cell, as benchmarks/results/compatibility.csv keeps it."""

    date: str
    subject: str
    version: str
    architecture: str
    opset: int
    target: str
    outcome: str
    error: float | None
    noise_ratio: float | None
    rows_ratio: float | None
    facts: str
    time: float | None
    text: str


def failures(rows: Iterable[Row], target: str = DEFAULT) -> list[Row]:
    """Return the rows of `target` that are not taken although the original is."""
    kept = list(rows)
    taken = {_place(row) for row in kept if row.target == ORIGINAL and row.outcome == "same"}
    return [
        row
        for row in kept
        if row.target == target and _place(row) in taken and row.outcome != "same"
    ]


def come_apart(rows: Iterable[Row], target: str = DEFAULT) -> list[tuple[Row, int, int]]:
    """Return each row of `target` with fewer norms in one operator than the original's has.

    Both counts come with it, of the session after the same tool.
    """
    kept = list(rows)
    norms = {
        (_place(row), row.target): json.loads(row.facts).get("norms")
        for row in kept
        if row.outcome == "same" and row.facts
    }
    found = []
    for row in kept:
        mine, theirs = (norms.get((_place(row), name)) for name in (row.target, ORIGINAL))
        if row.target == target and mine is not None and theirs is not None and mine < theirs:
            found.append((row, theirs, mine))
    return found


def judge(cell: Cell, bound: float, rows_bound: float = math.inf) -> str:
    """Return the outcome of a cell whose errors may be `bound` and `rows_bound`."""
    if cell.outcome != "ok":
        return cell.outcome
    assert cell.error is not None
    assert cell.rows_error is not None
    return "same" if cell.error <= bound and cell.rows_error <= rows_bound else "wrong"


def run(
    subjects: Sequence[Subject],
    exports: Sequence[tuple[str, int]],
    targets: Sequence[str] = TARGETS,
    *,
    timed: bool = False,
) -> Iterator[Row]:
    """Yield a row for each subject, export and target, the original among them."""
    with tempfile.TemporaryDirectory() as folder:
        files = _Files(targets, Path(folder))
        for subject in subjects:
            yield from _rows(subject, exports, files, timed)


class _Files:
    """The files of each export: the original, and onnxfold's file for each target."""

    def __init__(self, targets: Sequence[str], folder: Path) -> None:
        self.folder = folder
        self._targets = tuple(targets)
        self._made: dict[Export, dict[str, Path | Cell]] = {}

    def of(self, export: Export) -> dict[str, Path | Cell]:
        if export not in self._made:
            sys.stderr.write(f"  {export.path.parent.name}\n")
            made = {target: self._optimized(export, target) for target in self._targets}
            self._made[export] = {ORIGINAL: export.path, **made}
        return self._made[export]

    def place(self, export: Export, name: str) -> Path:
        """Return a path for what is made of an export."""
        folder = self.folder / export.folder.name
        folder.mkdir(exist_ok=True)
        return folder / name

    def _optimized(self, export: Export, target: str) -> Path | Cell:
        return _optimized(export, target, self.place(export, f"{target}.onnx"))


def _optimized(export: Export, target: str, path: Path) -> Path | Cell:
    try:
        # The outputs are compared with the truth, so no other check is needed.
        onnxfold.optimize(export.path, path, target=target, check=None)
    except onnxfold.OnnxfoldError as error:
        return Cell("not made", text=str(error)[:_TEXT])
    return path


Place = tuple[Export, str]


def _rows(
    subject: Subject,
    exports: Sequence[tuple[str, int]],
    files: _Files,
    timed: bool,
) -> list[Row]:
    sys.stderr.write(f"{subject.name}\n")
    chosen = [Export(*export, subject.fixed) for export in exports if subject.takes(*export)]
    given = {(export, name): file for export in chosen for name, file in files.of(export).items()}
    paths = {place: file for place, file in given.items() if isinstance(file, Path)}
    cells = {place: file for place, file in given.items() if isinstance(file, Cell)}
    cells |= (_apply_files if subject.tool else _run_files)(subject, paths, files)
    rows = [row for export in chosen for row in _judged(subject, export, cells)]
    return _with_times(subject, rows, paths) if timed and not subject.tool else rows


def _judged(subject: Subject, export: Export, cells: dict[Place, Cell]) -> list[Row]:
    original = cells[export, ORIGINAL]
    own = max(subject.roundoff, ARCHITECTURES[export.architecture].roundoff)
    noise = own if original.error is None else max(original.error, own)
    rows_noise = own if original.rows_error is None else max(original.rows_error, own)
    bounds = {ORIGINAL: (math.sqrt(own), math.inf)}
    ours = (LIMIT * noise, LIMIT * rows_noise)
    mine = {name: cell for (of, name), cell in cells.items() if of == export}
    return [
        Row(
            date=datetime.now(UTC).date().isoformat(),
            subject=subject.name,
            version=_version(subject),
            architecture=export.architecture,
            opset=export.opset,
            target=name,
            outcome=judge(cell, *bounds.get(name, ours)),
            error=cell.error,
            noise_ratio=_ratio(cell.error, noise),
            rows_ratio=_ratio(cell.rows_error, rows_noise),
            facts=cell.facts,
            time=None,
            text=cell.text,
        )
        for name, cell in mine.items()
    ]


def _ratio(error: float | None, noise: float) -> float | None:
    """Return how many times the noise an error is; 1 where both have no bound."""
    if error is None:
        return None
    return 1.0 if error == noise else error / noise


def _version(subject: Subject) -> str:
    try:
        return ENVIRONMENTS[subject.environment].version(subject.package)
    except FileNotFoundError:  # its environment could not be built
        return ""


def _run_files(subject: Subject, paths: dict[Place, Path], files: _Files) -> dict[Place, Cell]:
    jobs = [
        {
            "action": "run",
            "model": str(path),
            "inputs": place[0].inputs(),
            "folder": _emptied(files.place(*place)),
        }
        for place, path in paths.items()
    ]
    found = _work(subject, jobs)
    return {place: _checked(place[0], answer) for place, answer in zip(paths, found, strict=True)}


def _emptied(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return str(folder)


def _checked(export: Export, answer: dict[str, Any]) -> Cell:
    cell = _cell(answer)
    if cell.outcome != "ok":
        return cell
    error, rows_error = (
        relative_error(
            [np.fromfile(each["file"], each["dtype"]).reshape(each["shape"]) for each in outputs],
            true,
        )
        for outputs, true in zip(answer["outputs"], export.truth(), strict=True)
    )
    return replace(cell, error=error, rows_error=rows_error)


def _apply_files(subject: Subject, paths: dict[Place, Path], files: _Files) -> dict[Place, Cell]:
    """Give each file to a tool and run in ONNX Runtime what the tool writes."""
    rewritten = {
        (export, name): files.place(export, f"{name}-rewritten.onnx") for export, name in paths
    }
    for path in rewritten.values():
        path.unlink(missing_ok=True)
    jobs = [
        {
            "action": "apply",
            "model": str(path),
            "inputs": place[0].inputs()[0],
            "target": str(rewritten[place]),
            "options": subject.settings(place[0].architecture),
        }
        for place, path in paths.items()
    ]
    applied = dict(zip(paths, map(_cell, _work(subject, jobs)), strict=True))
    written = {place: rewritten[place] for place, cell in applied.items() if cell.outcome == "ok"}
    ran = _run_files(RUNTIMES[0], written, files)
    for place, cell in ran.items():
        text = f"ONNX Runtime, of what it writes: {cell.text}" if cell.text else ""
        facts = {**json.loads(applied[place].facts or "{}"), **json.loads(cell.facts or "{}")}
        applied[place] = replace(cell, facts=json.dumps(facts), text=text[:_TEXT])
    return applied


def _with_times(subject: Subject, rows: list[Row], paths: dict[Place, Path]) -> list[Row]:
    """Time the files that are taken of each export in turns, relative to the original."""
    taken: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        if row.outcome == "same":
            export = Export(row.architecture, row.opset, subject.fixed)
            of = taken.setdefault((row.architecture, row.opset), {})
            of[row.target] = str(paths[export, row.target])
    taken = {key: models for key, models in taken.items() if ORIGINAL in models}
    jobs = [
        {
            "action": "time",
            "models": models,
            "inputs": Export(*key, subject.fixed).inputs()[0],
            "rounds": _ROUNDS,
        }
        for key, models in taken.items()
    ]
    medians = {
        key: {name: statistics.median(each) for name, each in answer.get("times", {}).items()}
        for key, answer in zip(taken, _work(subject, jobs), strict=True)
    }
    return [replace(row, time=_relative(row, medians)) for row in rows]


def _relative(row: Row, medians: dict[tuple[str, int], dict[str, float]]) -> float | None:
    mine = medians.get((row.architecture, row.opset), {})
    return mine[row.target] / mine[ORIGINAL] if row.target in mine else None


def _work(subject: Subject, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        environment = ready(ENVIRONMENTS[subject.environment])
        command = environment.command()
    except UnavailableError as error:
        return [{"outcome": "unavailable", "text": str(error)} for _ in jobs]
    named = [{**job, "subject": subject.function} for job in jobs]
    return answers(command, named, environment.variables())


def _cell(answer: dict[str, Any]) -> Cell:
    facts = answer.get("facts")
    text = _said(answer.get("text", ""))
    return Cell(answer["outcome"], facts=json.dumps(facts) if facts else "", text=text)


def _said(text: str) -> str:
    """Return a message on one line, without the places of files and of C++ sources."""
    without = re.sub(r"Exception from \S+: |(Check '[^']*' failed at \S+ )|(/\S*)+/", "", text)
    return " ".join(without.split())[:_TEXT]


def _place(row: Row) -> tuple[str, str, int]:
    return row.subject, row.architecture, row.opset
