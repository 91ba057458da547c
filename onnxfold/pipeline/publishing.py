"""Publishing of a result: it is counted, staged, checked and renamed; and what is said of it.

Nothing is published before the check of the staged files has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import Verification
from onnxfold.errors import ModelError, VerificationError
from onnxfold.model_io.load import Source, open_source
from onnxfold.norms.site import NormForm
from onnxfold.option_checks import bytes_of
from onnxfold.options import Device, Options, WrittenForm
from onnxfold.passes.findings import Findings
from onnxfold.pipeline import folding
from onnxfold.pipeline.finalize import note
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.refusal import RefusalCode
from onnxfold.report.before_after import Figures, document_of, figures, more_operators
from onnxfold.targets.fusions import is_taken_for_zero
from onnxfold.targets.installed import MEASURED, MOST_NODES, onnxruntime_version

_MOST_SESSION_BYTES = 1 << 30
_ROUNDS, _TIMING_S = 21, 3.0  # of a result whose session executes more operators


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
        if source.path and path and before.nodes <= MOST_NODES:
            from onnxfold.runtime.sessions import session_bytes  # no run without a check needs it

            if session_bytes(source.model) <= _MOST_SESSION_BYTES:
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
) -> tuple[dict[str, Any], Verification | None, dict[str, Any] | None]:
    """Stage the result, check the staged files, publish them; report the files, check and counts.

    Raises VerificationError as ``check`` does, ModelError if the original was changed meanwhile.
    """
    result = folded.model
    verification = None
    with timer.stage("save"):
        staged = _staged(source, result, output, options, timer)
    with staged:
        if checked:
            rewritten = open_source(staged.path)
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
    return document, verification, counted


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
    rewritten: Source,
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
            source,
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


_WITH_KERNELS: Mapping[Device, str] = MappingProxyType(
    {
        Device.CPU: "--target kernels is faster with onnxfold's library",
        Device.CUDA: "--target kernels with onnxfold's library is faster where LayerNorms stay, "
        "as in BERT",
    }
)
# As in text encoders of CLIP, and in float16: it builds Attention around known LayerNormalizations,
# and at opt_level 0 does not fuse a folded norm with the upstream sum (docs/pipeline.md).
_FUSE_FIRST = (
    "if you use ONNX Runtime's transformers optimizer, run it before onnxfold: it fuses {}"
)
_HALF_SUMS = "sums in 16 bits"
_LAST = (
    "other optimizers go before onnxfold, for they look for Add and LayerNormalization, not for "
    "Sum and SimplifiedLayerNormalization"
)
_SPELLED = (WrittenForm.AUTO, WrittenForm.DECOMPOSED)
_HALVES = (
    "in 16 bits sessions on CPUs run {} in pieces before ONNX Runtime 1.23, as other runtimes may; "
    "--target ort keeps one operator"
)
# It quantizes each operator of a norm.
_QUANTIZED = "if quantize_static comes next, --norm-form op is better"
_EPSILON = (
    "onnxscript's optimizer treats an epsilon of {:.3g} as 0, so that a row of zeros becomes NaN: "
    "run it before onnxfold"
)
_TAKES_AXES_AS_INPUT = 18  # from here on ReduceMean has them, which onnx2torch does not support


def advice(options: Options, excluded: Sequence[Mapping[str, Any]]) -> str:
    """Describe the purpose of the file, what to run before onnxfold, and unmeasured versions.

    ``excluded``: the fusions of its transformers optimizer that the folds exclude, as reported.
    """
    if options.convert_to is not None:
        return ""  # the form was chosen for another reason
    if options.target.traits.calls:
        return "for ONNX Runtime with onnxfold's library; --target onnx is for other runtimes"
    if options.target.traits.standard:
        return _fuse_first(excluded)
    oldest, newest = MEASURED[options.device]
    version = onnxruntime_version()
    on = "" if options.device is Device.CPU else " on CUDA"
    chosen = f"chosen for ONNX Runtime {_named(version)}{on}"
    if not oldest <= version <= newest:
        known = _named(oldest) if oldest == newest else f"{_named(oldest)} to {_named(newest)}"
        return f"{chosen}, which was not measured, as {known} was; {_LAST}"
    return f"{chosen}; {_LAST}; {_WITH_KERNELS[options.device]}"


def _fuse_first(excluded: Sequence[Mapping[str, Any]]) -> str:
    """Explain why the transformers optimizer goes first if folds exclude its fusions."""
    attentions = sum(row["fusion"] == "Attention" for row in excluded)
    why = [f"{attentions} attention{'s' if attentions > 1 else ''}"] if attentions else []
    if len(excluded) > attentions:
        why.append(_HALF_SUMS)
    return _FUSE_FIRST.format(" and ".join(why)) if why else ""


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def notes(options: Options, inspection: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each tool that supports less of this spelling than of another.

    ``inspection`` is the report's part of that name.
    """
    norms = inspection["norms"]
    if options.convert_to is not None or options.target.traits.contrib:
        return []
    if options.target.traits.calls:  # of which that optimizer inlines the functions
        return _epsilons(norms)
    said = []
    left = sum((row["reason"] or {}).get("code") == RefusalCode.COMES_APART for row in norms)
    if left:
        them = "the norm that stays" if left == 1 else f"the {left} norms that stay"
        said.append(f"--target ort or --norm-form op folds {them} for the sake of other tools")
    if options.norm_form in _SPELLED and any(map(_taken_apart, norms)):
        old = inspection["model"]["opset"] < _TAKES_AXES_AS_INPUT
        said.append(_QUANTIZED if old else f"{_QUANTIZED}; for onnx2torch, layer")
    if options.norm_form in _SPELLED:
        said += [f"{note}, or use --norm-form op" for note in _epsilons(norms)]
    halves = inspection["summary"]["folded_halves"]
    if halves and options.norm_form in _SPELLED:
        said.append(
            _HALVES.format(f"the {halves} folded norms" if halves > 1 else "the folded norm")
        )
    return said


def _epsilons(norms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the smallest epsilon of norms in operators, if onnxscript drops it."""
    spelled = [norm for norm in norms if _taken_apart(norm) or norm["deferral"]]
    least = min((norm["epsilon"] for norm in spelled if norm["epsilon"] > 0), default=1.0)
    return [_EPSILON.format(least)] if is_taken_for_zero(least) else []


def _taken_apart(norm: Mapping[str, Any]) -> bool:
    """Whether a norm of one operator becomes several, which some tools handle worse."""
    return bool(norm["action"] == "rms" and norm["form"] != NormForm.DECOMPOSED)
