"""Warnings about folds that widen the range of a weight, which hurts half floats and int8.

The range of a weight is its largest over its smallest column maximum, with one column per output.
Scaling by g widens it at most by max|g| / min|g|, so most weights need not be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64, constant_tensor
from onnxfold.passes.places import Place
from onnxfold.weights.affine_parts import column_maxima, column_range
from onnxfold.weights.edited import evaluated


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


def range_warning(
    values: Mapping[str, ir.Value],
    cause: str,
    place: Place,
    outer: Channels,
    g: Float64,
    limit: float,
) -> RangeWarning | None:
    """Return a warning if a scale ``g`` widens the range of a weight over ``limit`` times.

    ``values``: the model's values, by reference.
    """
    if column_range(np.abs(g)) <= limit or not outer.digits:
        return None
    tensor = constant_tensor(values[place.value])
    if tensor is None:
        return None
    shape = tuple(tensor.shape.numpy())
    factor = np.abs(place.channels.spread(g, shape))
    before, after = column_maxima(evaluated(tensor), shape, factor, outer)
    ranges = column_range(before), column_range(after)
    return RangeWarning(cause, place.value, *ranges) if ranges[1] > limit * ranges[0] else None
