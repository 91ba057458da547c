"""The largest magnitude of each value of a stream, in float64, on drawn inputs and on data."""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxfold.check.evidence import FLOAT64_LIMIT_BYTES, sample
from onnxfold.check.reference import Array, Precision, run
from onnxfold.graph import ModelInfo
from onnxfold.inputs import InputSpec
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import MeasuredRanges

_SAMPLES = 2  # of a run without a check


def measure_ranges(
    info: ModelInfo, wanted: Collection[ir.Value], settings: Settings
) -> MeasuredRanges | str:
    """Run a model and keep the largest magnitude of the values that are wanted.

    Or return why a float64 run is impossible.
    """
    spec = InputSpec.of(settings.inputs) if settings.inputs else InputSpec()
    drawn = sample(
        info.model,
        spec,
        count=settings.check or _SAMPLES,
        seed=settings.seed,
        limit_bytes=FLOAT64_LIMIT_BYTES,
        done=lambda _: None,
    )
    if drawn.truths is None:
        return drawn.reason
    largest = dict.fromkeys(wanted, 0.0)

    def observe(value: ir.Value, array: Array) -> Array:
        if value in largest and array.size:
            largest[value] = max(largest[value], _peak(array))
        return array

    feeds = [*drawn.feeds, *settings.feeds]
    for feed in feeds:
        run(info.model, feed, precision=Precision.FLOAT64, observe=observe)
    said = f"{len(drawn.feeds)} drawn inputs"
    if settings.feeds:
        said += f" and {settings.data_label}"
    return MeasuredRanges(largest, len(feeds), said)


def _peak(array: Array) -> float:
    """Return the largest magnitude, inf where a number is not finite."""
    wide = np.abs(array.astype(np.float64))
    return float(np.max(np.where(np.isnan(wide), np.inf, wide)))
