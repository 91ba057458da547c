"""Builds the files of chains; chains with equal beginnings share their files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import onnx

from onnxfold import model_io
from onnxfold.options import Device
from onnxfold.tuning.chains import Chain
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.processes import JobFailed, JobTookTooLong, Processes
from onnxfold.tuning.steps import STEPS

_Key = tuple[Chain, tuple[str, ...]]


class StepFailed(JobFailed):
    """A step of a chain failed; the message names it."""


class BudgetSpent(JobFailed):
    """The time budget of the whole search ended before a step did."""

    def __init__(self) -> None:
        super().__init__("the budget was spent")


@dataclass(frozen=True, slots=True)
class Made:
    """A file, and a digest of its content: equal for files that differ only in notes.

    chain: the steps that changed something.
    """

    path: Path
    digest: str
    chain: Chain


@dataclass(slots=True)
class Workshop:
    """Builds files, each in a separate folder inside a folder, for chains over `source`."""

    folder: Path
    source: Path
    processes: Processes
    facts: ModelFacts
    device: Device
    step_seconds: float
    feeds: tuple[Path, ...] = ()
    _made: dict[_Key, Future[Made]] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock)
    _numbers: Iterator[int] = field(default_factory=count)

    def build(self, chain: Chain, end: float, exclude: tuple[str, ...] = ()) -> Made:
        """Return the file of a chain, built if it is missing.

        exclude: nodes that the last step leaves unchanged. Raises StepFailed.
        """
        key = (chain, exclude)
        with self._lock:
            known = self._made.get(key)
            if known is None:
                ours: Future[Made] = Future()
                self._made[key] = ours
        if known is not None:
            return known.result()
        try:
            ours.set_result(self._built(chain, end, exclude))
        except BaseException as error:
            ours.set_exception(error)
        return ours.result()

    def _built(self, chain: Chain, end: float, exclude: tuple[str, ...]) -> Made:
        if not chain:
            return Made(self.source, digest(self.source), chain)
        before = self.build(chain[:-1], end)
        name = chain[-1]
        if before.chain != chain[:-1]:
            return self.build((*before.chain, name), end, exclude)
        output = self.folder / f"{next(self._numbers)}-{name}" / "model.onnx"
        left = end - time.monotonic()
        if left <= 0:
            raise BudgetSpent
        try:
            output.parent.mkdir()
            self.processes.run(
                "step",
                min(left, self.step_seconds),
                step=name,
                source=str(before.path),
                output=str(output),
                facts=asdict(self.facts),
                device=self.device.value,
                exclude=list(exclude),
                feeds=[str(path) for path in self.feeds],
            )
            if not output.is_file():
                raise JobFailed("wrote no file")
            made = Made(output, digest(output), chain)
            return before if made.digest == before.digest else made
        except JobTookTooLong as error:
            if left < self.step_seconds:
                raise BudgetSpent from error
            raise StepFailed(f"{name}: {error} (--step-seconds)") from error
        except (JobFailed, OSError) as error:  # a full disk
            raise StepFailed(f"{name}: {error}") from error


def missing_packages(chain: Chain) -> tuple[str, ...]:
    """Return the packages that a chain needs and that are not installed."""
    return tuple(dict.fromkeys(name for step in chain for name in STEPS[step].missing()))


def digest(path: Path) -> str:
    """Return a hash of a model's graph, functions and weights, without notes for people."""
    model = onnx.load(path, load_external_data=False)
    notes = ("producer_name", "producer_version", "doc_string", "domain", "model_version")
    for name in (*notes, "metadata_props"):
        model.ClearField(name)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    model.graph.ClearField("value_info")
    model.graph.ClearField("name")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = ""
    found = hashlib.sha256(model.SerializeToString(deterministic=True))
    for data in model_io.data_files(path).values():
        with data.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()
