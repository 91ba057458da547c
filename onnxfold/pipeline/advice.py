"""The line that ``optimize`` prints of its target: what goes before, and what was not measured."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnxfold.options import Device, Options, Target
from onnxfold.targets.installed import MEASURED, onnxruntime_version

_WITH_KERNELS: Mapping[Device, str] = MappingProxyType(
    {
        Device.CPU: "--target kernels is faster with onnxfold's library",
        Device.CUDA: "--target kernels with onnxfold's library is faster where LayerNorms stay, "
        "as in BERT",
    }
)
# As in text encoders of CLIP, and in float16: it makes Attention of what it knows from
# LayerNormalization, and at opt_level 0 joins no folded norm with the sum in front of it
# (docs/pipeline.md).
_FUSE_FIRST = "ONNX Runtime's transformers optimizer goes before onnxfold: {}"
_HALF_SUMS = "sums in 16 bits"
_LAST = (
    "other optimizers go before onnxfold, for they look for Add and LayerNormalization, not for "
    "Sum and SimplifiedLayerNormalization"
)


def advice(options: Options, excluded: Sequence[Mapping[str, Any]]) -> str:
    """Say what the file is for, what goes before onnxfold, and which version was not measured.

    ``excluded``: the fusions of its transformers optimizer that the folds exclude, as reported.
    """
    if options.convert_to is not None:
        return ""  # the form was chosen for a reason of its own
    if options.target is Target.KERNELS:
        return "for ONNX Runtime with onnxfold's library; --target onnx is for other runtimes"
    if options.target is Target.ONNX:
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
    """Say why the transformers optimizer goes first, where folds exclude what it fuses."""
    attentions = sum(row["fusion"] == "Attention" for row in excluded)
    why = [f"{attentions} attention{'s' if attentions > 1 else ''}"] if attentions else []
    if len(excluded) > attentions:
        why.append(_HALF_SUMS)
    return _FUSE_FIRST.format(", ".join(why)) if why else ""


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
