"""`tune`: candidates are built, judged, timed, and the fastest correct one is written."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfold import model_io
from onnxfold.check.runners import Feeds
from onnxfold.check.truth import truth_of
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.inputs import InputSpec
from onnxfold.inputs.data import read_samples
from onnxfold.model_io.load import open_source
from onnxfold.model_io.staging import StagingFolder
from onnxfold.options import Device
from onnxfold.runtime.library import find_cuda, has_cuda
from onnxfold.runtime.sessions import available_bytes
from onnxfold.tuning.chains import chains
from onnxfold.tuning.facts import guess
from onnxfold.tuning.options import TuneOptions
from onnxfold.tuning.processes import JobFailed, Processes, store
from onnxfold.tuning.search import Listener, Search, SearchProgress
from onnxfold.tuning.trials import Gate, Trials
from onnxfold.tuning.tune_result import (
    Candidate,
    Status,
    TuneResult,
    document,
    keep,
    model_bytes,
    publish,
)
from onnxfold.tuning.workshop import Workshop


class TuneFailed(VerificationError):  # noqa: N818
    """No candidate of the requested precisions is correct; nothing was written.

    `result` has the table.
    """

    def __init__(self, message: str, result: TuneResult):
        super().__init__(message)
        self.result = result


def tune(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: TuneOptions,
    listener: Listener | None = None,
) -> TuneResult:
    """Build candidates, compare each with the float64 run of the model, write the fastest.

    Raises TuneFailed if no candidate of the requested precisions is correct, UsageError for invalid
    options, ModelError for a model that no session accepts or an output that cannot be written. An
    interruption ends the search, and the best correct candidate so far is written; before there is
    one KeyboardInterrupt is raised.
    """
    source = Path(model)
    model_io.check_destination(output, source=source, force=options.force)
    model_io.check_replaceable(output, source=source, force=options.force)
    if options.device is Device.CUDA and not has_cuda():
        options = replace(options, timed=False)
    find_cuda(options.providers)
    kept = options.keep_candidates
    if kept is not None and kept.exists() and (not kept.is_dir() or any(kept.iterdir())):
        raise UsageError(f"--keep-candidates '{kept}': name a new or an empty folder")
    wanted = chains(options)
    with closing(StagingFolder(Path(tempfile.gettempdir()))) as scratch:
        search = _opened(source, options, scratch.path, listener)
        search.run(wanted)
        found = search.chosen()
        result = TuneResult(search.candidates, found, search.facts)
        result.report = document(result, options, source)
        if kept is not None:
            keep(search.candidates, kept)
        if found is None:
            raise TuneFailed(_why_none(search.candidates, options), result)
        result.output = publish(found, source, Path(output), options, result.report)
    return result


def tuned(options: TuneOptions, model: Path, output: Path | None) -> dict[str, Any]:
    """Tune one of many models and return the chain that was written and its gain."""
    if output is None:
        raise UsageError(f"{model}: specify where to write the result")
    kept = options.keep_candidates
    if kept is not None:
        options = replace(options, keep_candidates=kept / model.stem)
    winner = tune(model, output, options).winner
    return {} if winner is None else {"winner": winner.name, "ratio": winner.ratio}


def _opened(path: Path, options: TuneOptions, scratch: Path, listener: Listener | None) -> Search:
    """Read the model, run it in float64, and unchanged on the device.

    Raises ModelError for a model that does not run there.
    """
    end = time.monotonic() + options.budget
    source = open_source(path)
    facts = guess(source.model).override(options)
    memory = options.memory_bytes or available_bytes()
    # Memory reserved by a driver counts as allocated there.
    bounded = None if options.device is Device.CUDA or memory is None else memory // options.jobs
    processes = Processes(scratch, bounded)
    given = None if options.data is None else read_samples(options.data, source.model, path)
    if listener is not None:
        listener(SearchProgress(0, 1, "running the model in float64", None, options.budget))
    truth = truth_of(
        source,
        spec=InputSpec.of(options.inputs),
        samples=options.samples,
        seed=options.seed,
        data=() if given is None else given.feeds,
        providers=options.providers,
        memory_bytes=memory,
        rows=True,
    )
    feeds = _stored(truth.feeds, scratch, "feed")
    truths = _stored(truth.outputs, scratch, "truth")
    trials = Trials(processes, options, path, feeds, truths)
    try:
        as_it_is = trials.run(path, options.step_seconds, kernels=False)
    except JobFailed as error:
        raise ModelError(f"{path}: it does not run in ONNX Runtime: {error}") from error
    gate = Gate(source, truth, options)
    first = Candidate((), Status.RIGHT, path=path, ratio=1.0)
    first.operators, first.milliseconds = as_it_is.operators, as_it_is.milliseconds
    first.nbytes = model_bytes(path)
    calibration = feeds[truth.drawn :]
    workshop = Workshop(
        scratch, path, processes, facts, options.device, options.step_seconds, calibration
    )
    return Search(options, facts, gate, workshop, trials, end, listener, [first])


def _stored(samples: Sequence[Feeds], folder: Path, name: str) -> tuple[Path, ...]:
    """Write arrays by name into files, one for each sample."""
    paths = tuple(folder / f"{name}{number}.npz" for number in range(len(samples)))
    for path, sample in zip(paths, samples, strict=True):
        store(path, sample)
    return paths


def _why_none(candidates: Sequence[Candidate], options: TuneOptions) -> str:
    """Explain why nothing was written, with the nearest miss."""
    wrong = [c for c in candidates if c.status in (Status.WRONG, Status.FAILED)]
    wanted = ", ".join(options.chains or options.precision)
    nearest = f"; {wrong[0].name}: {wrong[0].reason}" if wrong else ""
    return f"nothing of {wanted} is right, nothing was written{nearest}"
