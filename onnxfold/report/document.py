"""The JSON document of a report, from which every other form is made, and its origin."""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxfold import __version__, model_io
from onnxfold.errors import ModelError
from onnxfold.graph.equality import numbers_key, same_tensor
from onnxfold.graph.traversal import all_graphs
from onnxfold.norms import NormKind
from onnxfold.norms.completed import CRMS_NORM
from onnxfold.passes.findings import Findings, PaperCounts
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.report.html import page
from onnxfold.shapes.claims import Claim
from onnxfold.target import OPERATOR_PS

SCHEMA = 1


def inspection(
    findings: Findings,
    claims: Sequence[Claim] = (),
    exclude: re.Pattern[str] | None = None,
    unsplit: Sequence[Refusal] = (),
    twice: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the document of ``inspect --json``; its fields are a contract.

    ``claims``: the declared shapes that inference cannot confirm, the worst first, and false ones
    of outputs; ``exclude``: the names to leave alone; ``unsplit``: why operators that contain a
    norm and other work could not be split; ``twice``: the weights stored twice.
    """
    plan, found = findings.plan, findings.description
    norms = _norms(findings)
    believed = [claim for claim in claims if not claim.contradicted]
    return {
        "schema": SCHEMA,
        "model": {"opset": found.opset, "nodes": found.nodes, "parameters": found.parameters},
        "norms": norms,
        "centrings": _centrings(findings),
        "deferred_before": [norm.to_json() for norm in findings.deferred_before],
        "excluded_fusions": _excluded(findings),
        "unmatched_exclude": _unmatched(norms, exclude),
        "range_warnings": [warning.to_json() for warning in findings.ranges],
        "scales_kept": [
            {"output": ref, "reason": reason.to_json()} for ref, reason in findings.scale_refusals
        ],
        "claimed_shapes": {
            "count": len(believed),
            "worst": believed[0].to_json() if believed else None,
            "untrue": [claim.to_json() for claim in claims if claim.contradicted],
        },
        "unsplit": [refusal.to_json() for refusal in unsplit],
        "stored_twice": list(twice),
        "prices": _prices(findings),
        "summary": {
            "norms": len(norms),
            "rms_norms": sum(row["kind"] in (NormKind.RMS_NORM, CRMS_NORM) for row in norms),
            "layer_norms": sum(row["kind"] == NormKind.LAYER_NORM for row in norms),
            "foldable": len(plan.folds) + len(findings.left),
            "folded": len(plan.folds),
            "folded_halves": sum(fold.output in found.halves for fold in plan.folds),
            "left_foldable": len(findings.left),
            "folds_of_others": _folds_of_others(findings),
            "compressed": None if findings.compressed is None else len(findings.compressed),
            "decompressed": len(findings.decompressed),
            "without_last": None if findings.without_last is None else len(findings.without_last),
            "restored": None if findings.restored is None else len(findings.restored),
            **_paper(findings),
            "centrings": len(found.centrings),
            "folded_centrings": len(plan.centrings),
            "inserted_centerings": len(plan.insertions),
            "split_bytes": plan.split_bytes,
            "gamma_fused": sum(fusion.gamma for fusion in plan.fusions),
            "beta_fused": sum(fusion.beta for fusion in plan.fusions),
            "scales_fused": len(plan.scales) + len(plan.batch_norms),
            "deferred": len(plan.deferred),
            "deferred_layer_norms": sum(bool(norm.centred) for norm in plan.deferred),
            "reinstated": sum(norm.reinstated for norm in findings.deferred_before),
            "multiplications_saved": sum(norm.multiplications_saved for norm in plan.deferred),
            "moved_by_rounding": sum(row["moves_by_rounding"] for row in norms),
        },
    }


def _paper(findings: Findings) -> dict[str, int | None]:
    """Return the counts by a paper's rules, or None if not requested."""
    names = [each.name for each in fields(PaperCounts)]
    return {name: getattr(findings.paper, name, None) for name in names}


def _centrings(findings: Findings) -> list[dict[str, Any]]:
    """Return one row for each subtraction of a mean that no norm contains."""
    folds = {fold.output: fold for fold in findings.plan.centrings}
    rows = []
    for known in findings.description.centrings:
        fold, reason = folds.get(known["ref"]), findings.refusals.get(known["ref"])
        rows.append(
            {
                **{key: part for key, part in known.items() if key != "ref"},
                "folded": fold is not None,
                "reason": None if fold is not None or reason is None else reason.to_json(),
                "writers": [] if fold is None else list(fold.writers),
            }
        )
    return rows


def _prices(findings: Findings) -> dict[str, Any]:
    """Return how many more operators a session executes at most, their cost and the gain.

    Microseconds of one thread, with 1 for each free size; with free sizes, each operator costs
    ``operator_us`` in addition.
    """
    plan, sums = findings.plan, findings.sums
    return {
        "operators": plan.operators + findings.new_biases + sums.count,
        "saved_us": (plan.gain_ps + plan.added_ps + sums.saved_ps) / 1e6,
        "spent_us": (plan.cost_ps + plan.added_ps) / 1e6,
        "operator_us": OPERATOR_PS / 1e6,
    }


def _excluded(findings: Findings) -> list[dict[str, Any]]:
    """Return what ONNX Runtime's transformers optimizer may fuse after folding, and what not."""
    names = {row["ref"]: row["name"] for row in findings.description.norms}
    folded = {fold.output for fold in findings.plan.folds}
    attentions = [
        {"fusion": "Attention", "norms": [names[ref] for ref in pair]}
        for pair in findings.description.attentions
        if not folded.isdisjoint(pair)
    ]
    return attentions + [
        {"fusion": "SkipLayerNormalization", "norms": [names[ref]], "opt_level": 0}
        for ref in findings.description.half_sums
        if ref in folded
    ]


def _unmatched(norms: Sequence[Mapping[str, Any]], exclude: re.Pattern[str] | None) -> str | None:
    """Return the pattern of ``--exclude`` if no norm has a matching name."""
    if exclude is None or any(exclude.search(row["name"]) for row in norms):
        return None
    return exclude.pattern


def _folds_of_others(findings: Findings) -> int:
    """Count the folded norms other than LayerNorms."""
    kinds = {row["ref"]: row["kind"] for row in findings.description.norms}
    return sum(kinds.get(fold.output) != NormKind.LAYER_NORM for fold in findings.plan.folds)


def _norms(findings: Findings) -> list[dict[str, Any]]:
    """Return one row for each norm of the original model."""
    plan = findings.plan
    folds = {fold.output: fold for fold in plan.folds}
    fusions = {fusion.output: fusion for fusion in plan.fusions}
    deferrals = {norm.output: norm for norm in plan.deferred}
    rows = []
    for known in findings.description.norms:
        ref = known["ref"]
        fold, fusion = folds.get(ref), fusions.get(ref)
        reason, stays = findings.refusals.get(ref), findings.affine_refusals.get(ref)
        if (
            fold is None and ref not in findings.remaining
        ):  # without its affine part a DyT is a tanh
            sentence = f"{known['kind']} does not subtract the mean"
            reason = Refusal(RefusalCode.NOT_CENTRED_NORM, sentence)
        row = {key: part for key, part in known.items() if key not in ("ref", "affine")}
        reads_all = findings.reader_refusals.get(ref)
        deferral, stay = deferrals.get(ref), findings.deferral_refusals.get(ref)
        action = _action(known, folded=fold is not None, in_place=ref in findings.in_place)
        converted = _conversion(findings, ref)
        if converted is not None:
            action, reason = converted, None
        elif deferral is not None:
            action = "deferred"
        rows.append(
            {
                **row,
                "foldable": fold is not None or ref in findings.left,
                "action": action,
                "moves_by_rounding": known["moves_by_rounding"] and action != "keep",
                "reason": reason.to_json() if reason is not None else None,
                "affine": known["affine"],
                "gamma_fused": fusion is not None and fusion.gamma,
                "beta_fused": fusion is not None and fusion.beta,
                "affine_reason": stays.to_json() if stays is not None else None,
                "readers_reason": reads_all.to_json() if reads_all is not None else None,
                "deferral": deferral.to_json() if deferral is not None else None,
                "deferral_reason": stay.to_json() if stay is not None else None,
                "writers": list(fold.writers) if fold is not None else [],
            }
        )
    return rows


def _conversion(findings: Findings, ref: str) -> str | None:
    """Return the conversion of a norm that does not fold by itself; None if it is unchanged."""
    if ref in (findings.restored or ()):
        return "layer_norm"
    if ref in (findings.compressed or ()):
        return "crms"
    return "rms" if ref in findings.decompressed else None


def _action(known: Mapping[str, Any], *, folded: bool, in_place: bool) -> str:
    if folded:
        return "rms"
    if not in_place:
        return "keep"
    return "fused_layer_norm" if known["kind"] == NormKind.LAYER_NORM.value else "rms"


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report as JSON, or as one self-contained HTML page.

    Raises ModelError if the file cannot be written.
    """
    if path.suffix == ".json":
        model_io.write_json(path, report)
    else:
        model_io.write_text(path, page(report))


_PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


def provenance(model: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what is needed to produce a report again; ``options``: those that are not the default.

    The hash is the model file's; weights in data files are not included. The date is
    SOURCE_DATE_EPOCH if it is set, as reproducible builds require.

    Raises ModelError if the file cannot be read.
    """
    sha256, size = digest(model)
    return {
        "input": {"path": str(model), "bytes": size, "sha256": sha256},
        "versions": {"onnxfold": __version__, "python": sys.version.split()[0]} | _versions(),
        "options": dict(options),
        "date": _now().isoformat(timespec="seconds"),
    }


def digest(path: Path) -> tuple[str, int]:
    """Return the sha256 of a file, and its size in bytes; data files are not included.

    Raises ModelError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # a missing option
    return found


def _now() -> datetime:
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)


_Named: TypeAlias = tuple[str, ir.TensorProtocol]

LEAST_SHARE = 0.02  # the least share of all weights in the copies
_SMALLEST = 0.001  # the least share of all weights in a weight that is examined
_COMPARED = 64  # elements at the start of a weight, which differ in nearly all unequal ones


def stored_twice(model: ir.Model) -> list[dict[str, Any]]:
    """Return the weights with equal numbers, the most bytes first: their names and sizes.

    ``share`` is the copies' share of all weights, at least :data:`LEAST_SHARE`.
    """
    tensors: dict[object, _Named] = {}
    for graph in all_graphs(model):
        for name, value in graph.initializers.items():
            if value.const_value is not None and value.const_value.dtype is not ir.DataType.STRING:
                tensors.setdefault(_place(value.const_value), (name, value.const_value))
    total = sum(tensor.nbytes for _, tensor in tensors.values())
    large = [named for named in tensors.values() if named[1].nbytes > _SMALLEST * total]
    found = []
    for group in _equal(large):
        nbytes = group[0][1].nbytes
        share = (len(group) - 1) * nbytes / total
        if share > LEAST_SHARE:
            names = [name for name, _ in group]
            found.append({"weights": names, "bytes": nbytes, "share": round(share, 4)})
    return sorted(found, key=lambda row: -row["share"])


def _place(tensor: ir.TensorProtocol) -> object:
    """Return the place where a tensor is stored; two tensors at one place are stored once."""
    if isinstance(tensor, ir.ExternalTensor):
        return (tensor.path, tensor.offset)
    return id(tensor)


def _equal(tensors: Iterable[_Named]) -> Iterator[list[_Named]]:
    """Yield groups of several tensors with equal numbers."""
    alike: dict[object, list[list[_Named]]] = {}
    for name, tensor in tensors:
        start = numbers_key(tensor.numpy().reshape(-1)[:_COMPARED])
        groups = alike.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), start), [])
        same = next((group for group in groups if same_tensor(group[0][1], tensor)), None)
        if same is None:
            groups.append([(name, tensor)])
        else:
            same.append((name, tensor))
    for groups in alike.values():
        yield from (group for group in groups if len(group) > 1)
