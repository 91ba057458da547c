"""Publishing of a result: it is counted, staged, checked and renamed.

Nothing is published before the check of the staged files has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import ModelSource, Verification
from onnxfold.check.memory import session_bytes
from onnxfold.errors import ModelError, VerificationError
from onnxfold.model_io.sources import Source
from onnxfold.option_checks import bytes_of
from onnxfold.options import Device, Options
from onnxfold.passes.findings import Findings
from onnxfold.pipeline import folding
from onnxfold.pipeline.finalize import note
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.report.before_after import Figures, document_of, figures, more_operators
from onnxfold.targets.installed import MOST_NODES

_MOST_SESSION_BYTES = 1 << 30
_ROUNDS, _TIMING_S = 21, 3.0  # of a result whose session executes more operators


@dataclass(frozen=True, slots=True)
class Written:
    """Where a result was written, the report of its files, and its check and counts."""

    path: Path
    document: dict[str, Any]
    verification: Verification | None
    before_after: dict[str, Any] | None


def count(
    source: Source,
    folded: folding.Folded,
    before: Figures,
    timer: StageTimer,
    path: Path | None = None,
) -> dict[str, Any] | None:
    """Return both models in numbers, with their sessions if the result is checked at a path.

    Counting needs a file of the session's model, which is not worth it for large weights or a long
    graph.
    """
    if folded.model is source.model:
        return None
    with timer.stage("sessions"):
        paths = None
        small = session_bytes(source.model) <= _MOST_SESSION_BYTES
        if source.path and path and small and before.nodes <= MOST_NODES:
            paths = (source.path, path)
        return document_of(source.model, (before, figures(folded.model, folded.info)), paths)


def measured(before: Path, after: Path, options: Options) -> dict[str, Any]:
    """Return how fast a result with a longer session is relative to the original, or why unknown.

    Both run in turns in ONNX Runtime, with one thread, for a few seconds.
    """
    from onnxfold.runtime.bench import bench

    if options.target.traits.calls or options.device is not Device.CPU:
        return {"reason": "its session is for other kernels"}
    try:
        found = bench(
            (before, after),
            rounds=_ROUNDS,
            inputs=options.inputs,
            seed=options.seed,
            budget_s=_TIMING_S,
        )
    except ModelError as error:  # inputs that the check found otherwise
        return {"reason": str(error)}
    _, after_it = found.measurements
    return {
        "speed": after_it.speed,
        "low": after_it.speed_p20,
        "high": after_it.speed_p80,
        "rounds": found.rounds,
    }


def write(
    source: Source,
    folded: folding.Folded,
    before: Figures,
    output: Path,
    options: Options,
    timer: StageTimer,
    checked: bool,
) -> Written:
    """Stage the result, check the staged files, publish them.

    Raises VerificationError as ``check`` does, ModelError if the original was changed meanwhile.
    """
    result = folded.model
    verification = None
    with timer.stage("save"):
        staged = _staged(source, result, output, options, timer)
    with staged:
        if checked:
            rewritten = ModelSource(model_io.load(staged.path), staged.path)
            verification = check(source, rewritten, folded.findings, options, timer)
        counted = count(source, folded, before, timer, staged.path if checked else None)
        if source.path is not None and counted is not None and more_operators(counted):
            with timer.stage("time"):
                counted["measured"] = measured(source.path, staged.path, options)
        # The check ran the original from its file too.
        model_io.check_unchanged(source.model)
        files = staged.commit()
    document = {
        "path": str(files.model),
        "data": str(files.data) if files.data is not None else None,
        "data_files": [str(shard) for shard in files.shards],
        "shared_data": [str(file) for file in files.shared],
        "bytes": files.nbytes,
        "functions": sorted(name for _, name, _ in result.functions),
        "target": options.target.value,
    }
    return Written(files.model, document, verification, counted)


def _staged(
    source: Source, result: ir.Model, output: Path, options: Options, timer: StageTimer
) -> model_io.StagedModel:
    """Stage the result; a byte-for-byte copy if the model is unchanged and has embedded weights."""
    elsewhere = options.share_weights or options.save_as_external_data
    whole = not elsewhere and result.meta.get(model_io.HAS_EXTERNAL_DATA) is False
    if result is source.model and source.path is not None and whole:
        return model_io.stage_copy(source.path, output, force=options.force)
    return model_io.stage(
        result,
        output,
        source=source.path,
        force=options.force,
        external_data=options.save_as_external_data,
        share=options.share_weights,
        note=note(options.target),
        progress=timer.part("save"),
    )


def check(
    source: Source,
    rewritten: ModelSource,
    findings: Findings,
    options: Options,
    timer: StageTimer,
) -> Verification:
    """Compare a result with the original on inputs, including constant, shifted and zero rows.

    These rows are added if something was changed that is sensitive to them. Raises
    VerificationError if their outputs differ by more than the options allow.
    """
    with timer.stage("verify"):
        from onnxfold.check.compare import verify as compare
        from onnxfold.inputs import InputSpec

        verification = compare(
            ModelSource(source.model, source.path),
            rewritten,
            samples=options.check or 0,
            seed=options.seed,
            spec=InputSpec.of(options.inputs) if options.inputs else None,
            limit=options.noise_limit,
            rtol=options.rtol,
            atol=options.atol,
            providers=options.providers or None,
            memory_bytes=bytes_of(options.memory),
            progress=timer.part("verify"),
            rows=findings.feels_rows,
        )
    if not verification.passed:
        ran = verification.runtime
        where = "" if ran.startswith("onnxruntime") else f"; both ran in the {ran}"
        worst = f"{verification.worst}{where}"
        raise VerificationError(f"verification failed, nothing was written: {worst}")
    return verification
