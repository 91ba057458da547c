"""Warnings where a fold widens the range of a weight, so that half floats or int8 suffer.

The range of a weight is its largest over its smallest column maximum, a column being all that
feeds one output.  Scaling by g widens it at most by max|g| / min|g|, so most weights need no look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.norms.site import NormSite
from onnxfold.passes.affine.source import Source, source_of
from onnxfold.passes.fusion import AffineFusion, Place, ScaleFusion
from onnxfold.passes.scales.writer import channel_op, embedded
from onnxfold.weights.affine import column_maxima, column_range
from onnxfold.weights.edited import evaluated

__all__ = ["RangeWarning", "affine_ranges", "scale_ranges"]


Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RangeWarning:
    """A weight whose range grows from ``before`` to ``after`` when ``cause`` moves into it."""

    cause: str
    weight: str
    before: float
    after: float

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {
            "cause": self.cause,
            "weight": self.weight,
            "range_before": self.before,
            "range_after": self.after,
            "widening": self.after / self.before,
        }


def affine_ranges(
    view: ModelInfo, sites: Iterable[NormSite], fusions: Iterable[AffineFusion], limit: float
) -> tuple[RangeWarning, ...]:
    """Return a warning for every weight whose range a gamma widens more than ``limit`` times."""
    by_output = {view.ref(site.output): site for site in sites}
    warnings = []
    for fusion in fusions:
        source = source_of(view, by_output[fusion.output])
        if not fusion.gamma or not isinstance(source, Source) or source.gamma is None:
            continue
        for reader in fusion.readers:
            found = _warning(view, fusion.norm, reader.weight, reader.outer, source.gamma, limit)
            if found is not None:
                warnings.append(found)
    return tuple(warnings)


def scale_ranges(
    view: ModelInfo, fusions: Iterable[ScaleFusion], limit: float
) -> tuple[RangeWarning, ...]:
    """Return a warning for every weight whose range a scale widens more than ``limit`` times."""
    values = view.by_ref()
    warnings = []
    for fusion in fusions:
        node = values[fusion.output].producer()
        op = None if node is None else channel_op(view, node)
        if op is None or op.scale is None or not fusion.scaled:
            continue
        place = fusion.scaled[0]
        scale = embedded(op.scale, fusion.part, place.channels.size)
        found = _warning(view, fusion.name, place, place.channels, scale, limit)
        if found is not None:
            warnings.append(found)
    return tuple(warnings)


def _warning(
    view: ModelInfo, cause: str, place: Place, outer: Channels, g: Float64, limit: float
) -> RangeWarning | None:
    if column_range(np.abs(g)) <= limit or not outer.digits:
        return None
    tensor = view.tensor(view.by_ref()[place.value])
    if tensor is None:
        return None
    shape = tuple(tensor.shape.numpy())
    factor = np.abs(place.channels.spread(g, shape))
    before, after = column_maxima(evaluated(tensor), shape, factor, outer)
    ranges = column_range(before), column_range(after)
    return RangeWarning(cause, place.value, *ranges) if ranges[1] > limit * ranges[0] else None
