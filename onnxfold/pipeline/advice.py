"""Advice that ``optimize`` prints about its target: tools to run first, unmeasured versions."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnxfold.options import Device, Options
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
