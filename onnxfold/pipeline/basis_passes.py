"""The passes that change the basis of streams, which run where they are asked for."""

from typing import Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Array
from onnxfold.options import Options
from onnxfold.passes.base import Pass, Settings
from onnxfold.passes.basis import rotate_streams, scale_streams, split_gamma
from onnxfold.passes.basis.plan import Keep, RotationPlan, ScalePlan
from onnxfold.passes.basis.scale_streams import apply as apply_scaled_streams
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.pipeline import finalize, proofs

_SAMPLES = 2  # of a run without a check


def _decide_split_gammas(info: ModelInfo, settings: Settings) -> SplitPlan:
    return split_gamma.decide(_runnable(info, settings), settings, observe)


def _decide_scaled_streams(info: ModelInfo, settings: Settings) -> ScalePlan:
    return scale_streams.decide(_runnable(info, settings), settings, observe)


def _runnable(info: ModelInfo, settings: Settings) -> ModelInfo:
    """Define the bodies of our functions in a version that is to be run."""
    finalize.define_functions(info, settings.target, settings.norm_form)
    return info


def observe(
    info: ModelInfo, settings: Settings, keep: Keep, *, data_alone: bool = False
) -> tuple[int, str] | str:
    """Pass every value of float64 runs on drawn inputs and on the user's data to ``keep``.

    With ``data_alone``, no drawn inputs if there are data. Returns the number and the origin of the
    inputs, or the reason why the model has no float64 run.
    """
    from onnxfold.check.float64_runs import FLOAT64_LIMIT_BYTES, sample  # few runs need them
    from onnxfold.check.reference import Precision, run
    from onnxfold.inputs import InputSpec

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


def _rotated(plan: RotationPlan) -> tuple[str, ...]:
    return tuple(stream.name for stream in plan.streams)


BASIS_PASSES: tuple[Pass[Any], ...] = (
    Pass(
        "split gammas",
        _decide_split_gammas,
        split_gamma.apply,
        proofs.of_split_gammas,
        lambda plan: tuple(split.norm for split in plan.splits),
    ),
    Pass(
        "rotated streams",
        rotate_streams.decide_streams,
        rotate_streams.apply,
        proofs.of_rotation,
        _rotated,
    ),
    Pass(
        "rotated heads",
        rotate_streams.decide_heads,
        rotate_streams.apply,
        proofs.of_rotation,
        _rotated,
    ),
    Pass(
        "scaled streams",
        _decide_scaled_streams,
        apply_scaled_streams,
        proofs.of_scaled_streams,
        lambda plan: tuple(stream.norm for stream in plan.streams),
    ),
)


def unasked(chosen: Options) -> frozenset[str]:
    """Return the names of the passes that the options do not ask for."""
    names = {
        "split gammas": chosen.split_gamma,
        "rotated streams": chosen.rotate,
        "rotated heads": chosen.rotate,
        "scaled streams": chosen.scale_streams,
    }
    return frozenset(name for name, choice in names.items() if choice == "off")
