"""What ``optimize`` says of a written file: what to run first, and what other tools cannot do."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnxfold.norms.site import NormForm
from onnxfold.options import Device, Options, WrittenForm
from onnxfold.refusal import RefusalCode
from onnxfold.targets.fusions import is_taken_for_zero
from onnxfold.targets.installed import MEASURED, onnxruntime_version

_WITH_KERNELS: Mapping[Device, str] = MappingProxyType(
    {
        Device.CPU: "--target kernels is faster with onnxfold's library",
        Device.CUDA: "--target kernels with onnxfold's library is faster where LayerNorms stay, "
        "as in BERT",
    }
)
# As in text encoders of CLIP, and in float16: it builds Attention around known LayerNormalizations,
# and at opt_level 0 does not fuse a folded norm with the upstream sum (docs/pipeline.md).
_FUSE_FIRST = (
    "if you use ONNX Runtime's transformers optimizer, run it before onnxfold: it fuses {}"
)
_HALF_SUMS = "sums in 16 bits"
_LAST = (
    "other optimizers go before onnxfold, for they look for Add and LayerNormalization, not for "
    "Sum and SimplifiedLayerNormalization"
)
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


def advice(options: Options, excluded: Sequence[Mapping[str, Any]]) -> str:
    """Describe the purpose of the file, what to run before onnxfold, and unmeasured versions.

    ``excluded``: the fusions of its transformers optimizer that the folds exclude, as reported.
    """
    if options.convert_to is not None:
        return ""  # the form was chosen for another reason
    if options.target.traits.calls:
        return "for ONNX Runtime with onnxfold's library; --target onnx is for other runtimes"
    if options.target.traits.standard:
        return _fuse_first(excluded)
    oldest, newest = MEASURED[options.device]
    version = onnxruntime_version()
    on = "" if options.device is Device.CPU else " on CUDA"
    chosen = f"chosen for ONNX Runtime {_named(version)}{on}"
    if not oldest <= version <= newest:
        known = _named(oldest) if oldest == newest else f"{_named(oldest)} to {_named(newest)}"
        return f"{chosen}, which was not measured, as {known} was; {_LAST}"
    return f"{chosen}; {_LAST}; {_WITH_KERNELS[options.device]}"


def _fuse_first(excluded: Sequence[Mapping[str, Any]]) -> str:
    """Explain why the transformers optimizer goes first if folds exclude its fusions."""
    attentions = sum(row["fusion"] == "Attention" for row in excluded)
    why = [f"{attentions} attention{'s' if attentions > 1 else ''}"] if attentions else []
    if len(excluded) > attentions:
        why.append(_HALF_SUMS)
    return _FUSE_FIRST.format(" and ".join(why)) if why else ""


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


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
