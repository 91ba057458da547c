"""Notes about what other tools cannot do with a written file."""

from collections.abc import Mapping, Sequence
from typing import Any

from onnxfold.norms.site import NormForm
from onnxfold.options import Options, WrittenForm
from onnxfold.refusal import RefusalCode
from onnxfold.targets.fusions import is_taken_for_zero

_SPELLED = (WrittenForm.AUTO, WrittenForm.DECOMPOSED)
_HALVES = (
    "in 16 bits sessions on CPUs run {} in pieces before ONNX Runtime 1.23, as other runtimes may; "
    "--target ort keeps one operator"
)
# It quantizes each operator of a norm.
_QUANTIZED = "if quantize_static comes next, --norm-form op is better"
_EPSILON = (
    "onnxscript's optimizer treats an epsilon of {:.3g} as 0, so that a row of zeros becomes NaN: "
    "run it before onnxfold"
)
_TAKES_AXES_AS_INPUT = 18  # from here on ReduceMean has them, which onnx2torch does not support


def notes(options: Options, inspection: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each tool that supports less of this spelling than of another.

    ``inspection`` is the report's part of that name.
    """
    norms = inspection["norms"]
    if options.convert_to is not None or options.target.traits.contrib:
        return []
    if options.target.traits.calls:  # of which that optimizer inlines the functions
        return _epsilons(norms)
    said = []
    left = sum((row["reason"] or {}).get("code") == RefusalCode.COMES_APART for row in norms)
    if left:
        them = "the norm that stays" if left == 1 else f"the {left} norms that stay"
        said.append(f"--target ort or --norm-form op folds {them} for the sake of other tools")
    if options.norm_form in _SPELLED and any(map(_taken_apart, norms)):
        old = inspection["model"]["opset"] < _TAKES_AXES_AS_INPUT
        said.append(_QUANTIZED if old else f"{_QUANTIZED}; for onnx2torch, layer")
    if options.norm_form in _SPELLED:
        said += [f"{note}, or use --norm-form op" for note in _epsilons(norms)]
    halves = inspection["summary"]["folded_halves"]
    if halves and options.norm_form in _SPELLED:
        said.append(
            _HALVES.format(f"the {halves} folded norms" if halves > 1 else "the folded norm")
        )
    return said


def _epsilons(norms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the smallest epsilon of norms in operators, if onnxscript drops it."""
    spelled = [norm for norm in norms if _taken_apart(norm) or norm["deferral"]]
    least = min((norm["epsilon"] for norm in spelled if norm["epsilon"] > 0), default=1.0)
    return [_EPSILON.format(least)] if is_taken_for_zero(least) else []


def _taken_apart(norm: Mapping[str, Any]) -> bool:
    """Whether a norm of one operator becomes several, which some tools handle worse."""
    return bool(norm["action"] == "rms" and norm["form"] != NormForm.DECOMPOSED)
