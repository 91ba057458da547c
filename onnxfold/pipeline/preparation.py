"""The working copy from which the passes start, according to the options."""

from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators.functions import DOMAIN, RMS_NORMALIZATION_SINCE, SIGNATURES
from onnxfold.options import WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.undefer import decide
from onnxfold.passes.lower.opset import raise_opset
from onnxfold.passes.prepare.working_copy import Prepared, prepare
from onnxfold.targets.costs import is_wanted


def prepared_for(model: ir.Model, settings: Settings, *, copy: bool = True) -> Prepared:
    """Return a working copy of a model whose types and shapes are inferred, or the model as one.

    Its opset is raised if the form of norms needs it.
    """
    prepared = _to_reinstate(model, settings)
    prepared = prepared or prepare(
        model,
        compressed=settings.convert_to is not None,
        inferred=True,
        allow_split=settings.allow_split,
        shared=settings.shared,
        copy=copy,
    )
    if settings.norm_form is WrittenForm.OP and not settings.target.traits.contrib:
        raise_opset(prepared.model, RMS_NORMALIZATION_SINCE)
        return replace(prepared, info=ModelInfo(prepared.model))
    return prepared


def _to_reinstate(model: ir.Model, settings: Settings) -> Prepared | None:
    """Return a copy without the calls that deferral left if a norm can be reinstated."""
    if settings.convert_to is not None or is_wanted(settings) or not _has_calls_of_rows(model):
        return None
    prepared = prepare(
        model,
        deferred=True,
        inferred=True,
        allow_split=settings.allow_split,
        shared=settings.shared,
    )
    return None if decide(prepared.info, settings).empty else prepared


def _has_calls_of_rows(model: ir.Model) -> bool:
    names = (name for domain, name, _ in model.functions if domain == DOMAIN)
    return any(name in SIGNATURES and SIGNATURES[name].of_rows for name in names)
