"""``--drop-means``: RMSNorm for the LayerNorms whose mean is small on data; inexact, and said so.

What folds exactly has folded before, with proof and check.  Of the LayerNorms that are left, those
are taken whose inputs, over all rows of the data, have at most a given share of their length along
the uniform vector.  The whole is then held to an error budget against a float64 run of the model as
it came, on the same data, and its metadata says that it is inexact.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import BudgetVerification
from onnxfold.check.budget import Budget
from onnxfold.check.compare import verify_within
from onnxfold.errors import UsageError, VerificationError
from onnxfold.geometry.measurement import Measuring, measured
from onnxfold.inputs.data.samples import DEFAULT_ROWS, read_samples
from onnxfold.model_io.load import Source, open_source
from onnxfold.norms import NormKind
from onnxfold.option_checks import bytes_of
from onnxfold.options import METADATA_KEY, Metric, Options
from onnxfold.passes.base import Settings
from onnxfold.passes.dropping import refuse_dropping
from onnxfold.pipeline import Result, folding
from onnxfold.pipeline.finalize import note, prepared_for
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.recognition import find_norms
from onnxfold.shapes.claims import check_claims
from onnxfold.targets.norm_settings import NORM_FORMS


@dataclass(frozen=True, slots=True)
class DroppedMean:
    """A LayerNorm left by exact folds, and the effect of dropping its mean on the data.

    ``of_length``: the largest share of a vector's length that lies along the uniform vector;
    ``error``: by how much the normalized vector then errs at most, relative to its length.
    ``reason``: why the norm stays a LayerNorm, or None.
    """

    name: str
    of_length: float | None
    error: float | None
    reason: str | None


def check_together(chosen: Options) -> None:
    """Raise UsageError, before the work, for options that conflict with dropping means."""
    for name in ("dry_run", "share_weights"):
        if getattr(chosen, name):
            raise UsageError(f"--drop-means excludes --{name.replace('_', '-')}; leave one out")
    if chosen.check is None:
        raise UsageError("--drop-means is checked against an error budget: leave --no-check out")


def drop_means(
    exact: Result,
    source: Source,
    output: str | os.PathLike[str] | None,
    chosen: Options,
    timer: StageTimer,
) -> Result:
    """Drop the means that are small on the data from what an exact run has made of ``source``.

    Raises VerificationError where the error budget is exceeded; nothing is written then.
    """
    given = open_source(exact.model).model
    with timer.stage("measure"):
        data, folded = Path(chosen.data or ""), Source(given, source.path, source.give_back)
        report = measured(folded, data, Measuring(), timer.listener)
        samples = read_samples(data, source.model, source.path, DEFAULT_ROWS)
    settings = Settings(**asdict(chosen))
    known = check_claims(given).model
    norms = _judged(known, report, settings)
    dropped = frozenset(norm.name for norm in norms if norm.reason is None)
    result = given
    if dropped:
        settings = replace(settings, dropped=dropped)
        made = folding.fold(prepared_for(known, settings), given, settings, timer, prove=False)
        result = made.model
        result.metadata_props[METADATA_KEY] = _declared(given, dropped, chosen)

    def budgeted(rewritten: Source) -> BudgetVerification:
        with timer.stage("verify"):
            found = verify_within(
                source,
                rewritten,
                Budget({Metric.RELATIVE: chosen.max_error}),
                samples=0,
                data=samples.feeds,
                providers=chosen.providers or None,
                memory_bytes=bytes_of(chosen.memory),
            )
        if not found.passed:
            raise VerificationError(
                f"the error budget is exceeded, nothing was written: {found.worst}; "
                "give a smaller --drop-means, or a larger --max-error"
            )
        return replace(found, data=samples.label)

    document = dict(exact.report)
    returned: Any
    if output is None:
        returned = source.give_back(result)
        verification = budgeted(open_source(returned))
    else:
        with model_io.stage(
            result,
            output,
            source=source.path,
            force=chosen.force,
            external_data=chosen.save_as_external_data,
            note=note(chosen.target),
        ) as staged:
            verification = budgeted(open_source(staged.path))
            model_io.check_unchanged(source.model)
            files = staged.commit()
        returned = files.model
        document["output"] = {
            "path": str(files.model),
            "data": str(files.data) if files.data is not None else None,
            "data_files": [str(shard) for shard in files.shards],
            "shared_data": [],
            "bytes": files.nbytes,
            "functions": sorted(name for _, name, _ in result.functions),
            "target": chosen.target.value,
        }
    document["inexact"] = {
        "drop_means": chosen.drop_means,
        "rows": report["rows"],
        "norms": [asdict(norm) for norm in norms],
        "verification": verification.to_json(),
    }
    document["changed"] = exact.changed or bool(dropped)
    document["timing_s"] = timer.seconds
    return replace(exact, model=returned, changed=document["changed"], report=document)


def _judged(model: ir.Model, report: Mapping[str, Any], settings: Settings) -> list[DroppedMean]:
    """Return every LayerNorm of a model, with what was measured of it."""
    info = prepared_for(model, settings).info
    forms = NORM_FORMS.of(info)(settings.target, settings.norm_form)
    rows = {row["name"]: row for row in report["norms"]}
    unmeasured = {row["name"]: row["reason"] for row in report["refused"]}
    sites = find_norms(info)
    names = Counter(site.name for site in sites)
    found = []
    for site in sites:
        if site.kind is not NormKind.LAYER_NORM:
            continue
        row = rows.get(site.name)
        reason = refuse_dropping(site, forms, settings)
        if row is None or names[site.name] > 1:
            why = unmeasured.get(site.name, "another norm has its name")
            found.append(DroppedMean(site.name, None, None, reason or f"not measured: {why}"))
            continue
        share, error = row["before"]["uniform_share"], row["error_without_mean"]
        of_length = math.sqrt(share["max"]) if share["count"] else None
        if of_length is None or share["left_out"]:
            reason = reason or "some of the vectors that it reads are zeros or not finite"
        elif of_length > (settings.drop_means or 0):
            reason = reason or f"its mean is up to {of_length:.3g} of the length"
        found.append(DroppedMean(site.name, of_length, error and error["max"], reason))
    return found


def _declared(exact: ir.Model, dropped: frozenset[str], chosen: Options) -> str:
    """Return the metadata of a model whose means were dropped."""
    said = json.loads(exact.metadata_props.get(METADATA_KEY, note(chosen.target)))
    said["inexact"] = {
        "dropped_means": len(dropped),
        "largest_of_length": chosen.drop_means,
        "error_budget": chosen.max_error,
    }
    return json.dumps(said, sort_keys=True)
