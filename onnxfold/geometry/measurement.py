"""A measurement from the model to the report: instrument, stage, measure, merge."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxfold import model_io
from onnxfold.check.runners import OnnxRuntime, why_not_onnxruntime
from onnxfold.errors import DataError, ModelError, UsageError
from onnxfold.fleet import check_threads
from onnxfold.geometry import measuring_state
from onnxfold.geometry.accumulate import Totals
from onnxfold.geometry.cluster import in_cluster
from onnxfold.geometry.instrument import Instrumented, instrument
from onnxfold.geometry.measuring_state import Progress
from onnxfold.geometry.work import BadShard, InPieces, Task, WholeSession, in_processes, in_turn
from onnxfold.inputs.data import Data, DataOptions, InputSignature, Shard, open_data
from onnxfold.model_io.load import Source
from onnxfold.model_io.staging import StagingFolder
from onnxfold.option_checks import check_count
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.finalize import drop_empty_biases
from onnxfold.pipeline.stage_timer import Stages
from onnxfold.report.document import digest
from onnxfold.runtime.sessions import available_bytes

_SAVE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """The settings of a measurement; the fields are the options of the command line."""

    reading: DataOptions = field(default_factory=DataOptions)
    workers: int = 1
    threads: int = 1
    providers: tuple[str, ...] = ()
    memory_bytes: int | None = None
    skip_bad: bool = False
    resume: Path | None = None
    ray: str | None = None

    def check(self) -> None:
        """Raise UsageError for invalid numbers, DataError if no state can be saved."""
        numbers = {
            "--batch": self.reading.batch,
            "--length": self.reading.length,
            "--rows": self.reading.rows,
            "--workers": self.workers,
            "--threads": self.threads,
        }
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise UsageError(f"{name} must be 1 or more, not {number}")
        if self.ray is None:  # a cluster has its own cores
            check_threads("--workers", self.workers)
            check_threads("--threads", self.threads)
        check_count("--seed", self.reading.seed)
        if self.resume is not None and not os.access(self.resume.parent, os.W_OK | os.X_OK):
            raise DataError(f"--resume '{self.resume}': no writable folder '{self.resume.parent}'")


def measured(
    source: Source, data: Path | None, wanted: Measuring, listener: Stages | None = None
) -> dict[str, Any]:
    """Return the report on what every norm of a model reads and writes over data.

    An interrupt ends the measurement early: ``complete`` is then False in the report.
    """
    wanted.check()
    reading = wanted.reading
    opened = open_data(data, source.model, source.path, reading)
    mask = InputSignature.of(source.model).mask_input(reading.mask)
    instrumented = _instrumented(source, reading.seed)
    shards = opened.shards()
    if not shards:
        raise DataError(f"{data}: no rows to measure on; give data that holds some")
    task = Task(
        label=_label(source),
        norms=instrumented.norms,
        data=opened,
        mask_dims=InputSignature.of(source.model).mask_dims(mask),
        seed=reading.seed,
        model=None,
        providers=wanted.providers or ("CPUExecutionProvider",),
        threads=wanted.threads,
    )
    model_files = (
        () if source.path is None else (source.path, *model_io.data_files(source.path).values())
    )
    mark = measuring_state.fingerprint(
        [asdict(reading), shards, task.norms, wanted.threads],
        [*model_files, *(shard.file for shard in shards)],
    )
    progress = Progress(0, Totals.none(task.norms))
    if wanted.resume is not None:
        progress = measuring_state.load(wanted.resume, mark) or progress
    with ExitStack() as stack:
        results = _results(stack, instrumented, task, shards[progress.done :], wanted)
        progress = _merged(results, progress, len(shards), wanted, mark, listener)
    return _report(source, opened, instrumented, progress, len(shards), reading)


def _instrumented(source: Source, seed: int) -> Instrumented:
    label, reason = _label(source), why_not_onnxruntime(source.model)
    if reason is not None:
        raise ModelError(f"{label}: cannot be measured: {reason}")
    instrumented = instrument(prepare(source.model).info, seed)
    if not instrumented.norms:
        told = "; ".join(f"'{name}': {reason}" for name, reason in instrumented.refused)
        raise ModelError(f"{label}: there is no norm to measure{': ' + told if told else ''}")
    drop_empty_biases(instrumented.model)
    return instrumented


def _label(source: Source) -> str:
    return "the model" if source.path is None else model_io.show(source.path)


def _results(
    stack: ExitStack, instrumented: Instrumented, task: Task, shards: list[Shard], wanted: Measuring
) -> Iterator[Totals | BadShard]:
    """Yield the results of shards, by one session, by processes, or piece by piece."""
    memory = available_bytes() if wanted.memory_bytes is None else wanted.memory_bytes
    engine = OnnxRuntime.of(task.providers, memory)
    if not engine.fits(instrumented.model):
        if wanted.ray is not None:
            raise UsageError("--ray: the model does not fit in the memory of a worker (--memory)")
        return in_turn(task, InPieces(engine, Source(instrumented.model)), shards)
    folder = stack.enter_context(closing(StagingFolder(Path(tempfile.gettempdir()))))
    path = folder.path / "model.onnx"
    staged = stack.enter_context(model_io.stage(instrumented.model, path, external_data=True))
    task = replace(task, model=Path(staged.path))
    if wanted.ray is None and wanted.workers == 1:
        return in_turn(task, WholeSession(task), shards)
    if wanted.ray is None:
        results = in_processes(task, shards, wanted.workers)
    else:
        results = in_cluster(task, shards, wanted.workers, wanted.ray)
    stack.callback(results.close)
    return results


def _merged(
    results: Iterator[Totals | BadShard],
    progress: Progress,
    count: int,
    wanted: Measuring,
    mark: str,
    listener: Stages | None,
) -> Progress:
    """Merge results in the order of shards, and save them if requested."""
    saved = time.monotonic()
    try:
        for result in results:
            if isinstance(result, BadShard) and not wanted.skip_bad:
                raise DataError(result.reason)
            progress = progress.after(result)
            if listener is not None:
                listener("measure", progress.done / count)
            if wanted.resume is not None and time.monotonic() - saved > _SAVE_EVERY_S:
                measuring_state.save(wanted.resume, mark, progress)
                saved = time.monotonic()
    except KeyboardInterrupt:
        if not progress.done:
            raise
    finally:
        if wanted.resume is not None and progress.done:
            measuring_state.save(wanted.resume, mark, progress)
    return progress


def _report(
    source: Source,
    data: Data,
    instrumented: Instrumented,
    progress: Progress,
    count: int,
    reading: DataOptions,
) -> dict[str, Any]:
    totals = progress.totals
    return {
        "schema": 1,
        "model": None if source.path is None else source.path.name,
        "sha256": None if source.path is None else digest(source.path)[0],
        "data": {"kind": data.kind, "batch": reading.batch, "seed": reading.seed},
        "rows": totals.rows,
        "complete": progress.done == count,
        "norms": totals.report(instrumented.norms),
        "refused": [{"name": name, "reason": why} for name, why in instrumented.refused],
        "bad_shards": list(progress.bad),
    }
