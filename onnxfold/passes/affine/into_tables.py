"""Gammas of queries and keys move into rotary tables under --fuse-affine always.

Linear layers cannot absorb them, because a rotary embedding mixes channels. The tables absorb them
as in deferral (passes/gamma_tables.py), at any cost. In half floats the products of tables and
gammas may exceed their separate ranges, so these stay.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormSite
from onnxfold.options import FuseAffine
from onnxfold.passes.affine.absorptions import is_kept_scale
from onnxfold.passes.affine.apply import Norms, source_within
from onnxfold.passes.affine.plan import AffineFusion, AffinePlan
from onnxfold.passes.affine.source import AffineSource, source_of
from onnxfold.passes.base import Settings
from onnxfold.passes.gamma_tables import GammaTables, gamma_tables, scale_factors
from onnxfold.targets.norm_settings import NORM_FORMS

_LEFT = 0.5  # see kept_scale.py; the tables absorb twice gamma
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def decide(info: ModelInfo, settings: Settings) -> AffinePlan:
    """Return the norms whose gammas go into tables."""
    if settings.fuse_affine is not FuseAffine.ALWAYS:
        return AffinePlan()
    forms = NORM_FORMS.of(info)(settings.target, settings.norm_form)
    refused = [
        (ref, why)
        for ref in settings.unproved
        if (why := settings.refuse_unproved(ref)) is not None
    ]
    found = (
        (site.name, info.ref(site.output), source)
        for site in NORMS.of(info)
        if forms.multiplies(site)
        and not settings.excludes(site.name)
        and info.ref(site.output) not in settings.unproved
        and (source := _source(info, site)) is not None
        and _tables(info, source) is not None
    )
    fusions = tuple(
        AffineFusion(name, ref, True, source.beta is not None, (), _LEFT, tables=True)
        for name, ref, source in found
    )
    return AffinePlan(fusions, tuple(refused))


def apply(edit: Editor, plan: AffinePlan, settings: Settings) -> None:
    """Multiply the tables by gammas, and remove these from their norms."""
    del settings  # the moves are already decided
    by_output = {edit.info.ref(site.output): site for site in NORMS.of(edit.info)}
    found = [(fusion, _source(edit.info, by_output[fusion.output])) for fusion in plan.fusions]
    tables = [None if source is None else _tables(edit.info, source) for _, source in found]
    norms = Norms(edit)
    for (fusion, source), gammas in zip(found, tables, strict=True):
        if source is None or gammas is None:
            raise InvariantError(f"no tables take the gamma of '{fusion.norm}'")
        scale_factors(edit, gammas)
        norms.take_away(fusion, source_within(edit, source))
        for value in gammas.held:
            if value is not source.value:  # by which the report names the norm
                now = edit.value(value)
                edit.rename(now, f"{now.name}.weightless")


def _source(info: ModelInfo, site: NormSite) -> AffineSource | None:
    """Return the factor of a norm if it is a gamma that can move, with no beta but zeros."""
    source = source_of(info, site)
    if not isinstance(source, AffineSource) or source.inside:
        return None
    if source.beta is not None and np.any(source.beta):
        return None
    gamma = source.gamma
    if gamma is None or source.value is not site.output or site.output.dtype not in _WIDE:
        return None
    return None if is_kept_scale(gamma) or np.all(gamma == 1) else source


def _tables(info: ModelInfo, source: AffineSource) -> GammaTables | None:
    site = source.site
    rank = info.rank(site.output)
    if source.gamma is None or rank is None:
        return None
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape(site.output) or ())
    sizes = tuple(dim if axis in site.fiber.axes else 1 for axis, dim in enumerate(shape))
    if source.channels.axes and set(source.channels.axes) - set(site.fiber.axes):
        return None
    gamma = source.channels.spread(source.gamma / _LEFT, sizes)
    rows = tuple(() if axis in site.fiber.axes else (axis,) for axis in range(rank))
    return gamma_tables(info, replace(site, gamma=gamma, beta=None), rows, cheaper=False)
