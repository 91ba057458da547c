"""Float64 runs of a version of the model, for passes that decide by the values of a stream."""

import onnx_ir as ir

from onnxfold.check.float64_runs import FLOAT64_LIMIT_BYTES, sample
from onnxfold.check.reference import Array, Precision, run
from onnxfold.graph import ModelInfo
from onnxfold.inputs import InputSpec
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import Keep

_SAMPLES = 2  # of a run without a check


def observe(
    info: ModelInfo, settings: Settings, keep: Keep, *, data_alone: bool = False
) -> tuple[int, str] | str:
    """Pass every value of runs on drawn inputs and on the user's data to ``keep``.

    With ``data_alone``, no drawn inputs if there are data. Returns the number and the origin of the
    inputs, or the reason why the model has no float64 run.
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

    def kept(value: ir.Value, array: Array) -> Array:
        keep(value, array)
        return array

    alone = data_alone and bool(settings.feeds)
    feeds = [*(() if alone else drawn.feeds), *settings.feeds]
    for feed in feeds:
        run(info.model, feed, precision=Precision.FLOAT64, observe=kept)
    origins = [] if alone else [f"{len(drawn.feeds)} drawn inputs"]
    origins += [settings.data_label] if settings.feeds else []
    return len(feeds), " and ".join(origins)
