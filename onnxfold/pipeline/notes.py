"""Notes about what other tools cannot do with a written file."""

from collections.abc import Mapping
from typing import Any

from onnxfold.norms.site import NormForm
from onnxfold.options import Options, Target, WrittenForm
from onnxfold.refusal import RefusalCode

_SPELLED = (WrittenForm.AUTO, WrittenForm.DECOMPOSED)
_HALVES = (
    "in 16 bits sessions on CPUs run {} in pieces before ONNX Runtime 1.23, as other runtimes may; "
    "--target ort keeps one operator"
)
_QUANTIZED = "before quantize_static use --norm-form op"  # it quantizes each operator of a norm
_TAKES_AXES_AS_INPUT = 18  # from here on ReduceMean has them, which onnx2torch does not support


def notes(options: Options, inspection: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each tool that supports less of this spelling than of another.

    ``inspection`` is the report's part of that name.
    """
    if options.convert_to is not None or options.target is not Target.ONNX:
        return []
    norms = inspection["norms"]
    said = []
    left = sum((row["reason"] or {}).get("code") == RefusalCode.COMES_APART for row in norms)
    if left:
        them = "the norm that stays" if left == 1 else f"the {left} norms that stay"
        said.append(f"--target ort or --norm-form op folds {them} for the sake of other tools")
    if options.norm_form in _SPELLED and any(map(_taken_apart, norms)):
        old = inspection["model"]["opset"] < _TAKES_AXES_AS_INPUT
        said.append(_QUANTIZED if old else f"{_QUANTIZED}, before onnx2torch --norm-form layer")
    halves = inspection["summary"]["folded_halves"]
    if halves and options.norm_form in _SPELLED:
        said.append(
            _HALVES.format(f"the {halves} folded norms" if halves > 1 else "the folded norm")
        )
    return said


def _taken_apart(norm: Mapping[str, Any]) -> bool:
    """Whether a norm of one operator becomes several, which some tools handle worse."""
    return bool(norm["action"] == "rms" and norm["form"] != NormForm.DECOMPOSED)
