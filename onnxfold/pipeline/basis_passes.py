"""The passes that change the basis of streams, which run where they are asked for."""

from typing import Any

from onnxfold.graph import ModelInfo
from onnxfold.options import Options
from onnxfold.passes.base import Pass, Settings
from onnxfold.passes.basis import rotate_streams, scale_streams, split_gamma
from onnxfold.passes.basis.plan import Keep, RotationPlan, ScalePlan
from onnxfold.passes.basis.scale_streams import apply as apply_scaled_streams
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.pipeline import finalize, proofs


def _decide_split_gammas(info: ModelInfo, settings: Settings) -> SplitPlan:
    return split_gamma.decide(_runnable(info, settings), settings, _observed)


def _decide_scaled_streams(info: ModelInfo, settings: Settings) -> ScalePlan:
    return scale_streams.decide(_runnable(info, settings), settings, _observed)


def _runnable(info: ModelInfo, settings: Settings) -> ModelInfo:
    """Define the bodies of our functions in a version that is to be run."""
    finalize.define_functions(info, settings.target, settings.norm_form)
    return info


def _observed(
    info: ModelInfo, settings: Settings, keep: Keep, *, data_alone: bool = False
) -> tuple[int, str] | str:
    from onnxfold.pipeline.observing import observe  # loads the float64 run

    return observe(info, settings, keep, data_alone=data_alone)


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
