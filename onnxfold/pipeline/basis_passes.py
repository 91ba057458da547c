"""The passes that change the basis of streams, which run where they are asked for."""

from typing import Any

from onnxfold.graph import ModelInfo
from onnxfold.options import Options
from onnxfold.passes.base import Pass, Settings
from onnxfold.passes.basis import rotate_streams, scale_streams, split_gamma
from onnxfold.passes.basis.apply_scale import apply as apply_scaled_streams
from onnxfold.passes.basis.plan import RotationPlan, ScalePlan
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.passes.lower import finalize
from onnxfold.pipeline import proofs


def _decide_split_gammas(info: ModelInfo, settings: Settings) -> SplitPlan:
    """Decide on a version whose bodies are there: it is run."""
    if settings.split_gamma != "off":
        finalize.define_functions(info, settings.target, settings.norm_form)
    return split_gamma.decide(info, settings)


def _decide_scaled_streams(info: ModelInfo, settings: Settings) -> ScalePlan:
    """Decide on a version whose bodies are there: it is run."""
    if settings.scale_streams != "off":
        finalize.define_functions(info, settings.target, settings.norm_form)
    return scale_streams.decide(info, settings)


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
