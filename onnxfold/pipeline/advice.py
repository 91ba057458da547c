"""The line that ends ``optimize``: what another target would gain, and what was not measured."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnxfold.options import Device, Options, Target, WrittenForm
from onnxfold.passes.lower.installed import MEASURED, installed_device, onnxruntime_version

# The methods `target ort`, and `onnxfold` for kernels, in benchmarks/results/models.csv, and
# `folded, ort` and `folded, kernels` in gpu_models.csv.
_OTHERS: Mapping[Device, str] = MappingProxyType(
    {
        Device.CPU: "in ONNX Runtime 1.32 on a CPU, BERT and MiniLM, float32 and int8, ran 1.02 to "
        "1.27 times as fast with --target ort, 1.04 to 1.31 with --target kernels and its library",
        Device.CUDA: "in ONNX Runtime 1.31 on an H100, BERT, GPT-2 and ViT, float32 and float16, "
        "ran 1.02 to 1.31 times as fast with --target ort --device cuda, 1.02 to 1.30 with "
        "--target kernels and its library",
    }
)
_WITH_KERNELS: Mapping[Device, str] = MappingProxyType(
    {
        Device.CPU: "--target kernels is faster with onnxfold's library",
        Device.CUDA: "--target kernels with onnxfold's library is faster where LayerNorms stay, "
        "as in BERT",
    }
)
# As in text encoders of CLIP, and in float16 (docs/pipeline.md).
_FUSE_FIRST = "its transformers optimizer goes before onnxfold: "
_ATTENTIONS = (
    "{} {} beside norms that fold, and it makes Attention of what it knows from "
    "LayerNormalization alone"
)
_HALF_SUMS = "at opt_level 0 it joins no folded norm in 16 bits with the sum in front of it"
_HALVES = (
    "in 16 bits sessions on CPUs run {} in pieces before ONNX Runtime 1.23, as other runtimes may; "
    "--target ort keeps one operator"
)
_LAST = (
    "other optimizers go before onnxfold, for they look for Add and LayerNormalization, not for "
    "Sum and SimplifiedLayerNormalization"
)


def advice(options: Options, inspected: Mapping[str, Any]) -> str:
    """Say what another target would gain in ONNX Runtime, and which version was not measured.

    ``inspected``: the report of the norms; it has the fusions of its transformers optimizer that
    the folds exclude, and how many of these are in 16 bits.
    """
    if options.convert_to is not None:
        return ""  # the form was chosen for a reason of its own
    if options.target is Target.KERNELS:
        return "for ONNX Runtime with onnxfold's library; --target onnx is for other runtimes"
    if options.target is Target.ONNX:
        others = [*_fuse_first(inspected["excluded_fusions"]), *_halves(options, inspected)]
        return "; ".join([_OTHERS[installed_device()], *others])
    oldest, newest = MEASURED[options.device]
    version = onnxruntime_version()
    on = "" if options.device is Device.CPU else " on CUDA"
    chosen = f"chosen for ONNX Runtime {_named(version)}{on}"
    if not oldest <= version <= newest:
        known = _named(oldest) if oldest == newest else f"{_named(oldest)} to {_named(newest)}"
        return f"{chosen}, which was not measured, as {known} was; {_LAST}"
    return f"{chosen}; {_LAST}; {_WITH_KERNELS[options.device]}"


def _halves(options: Options, inspected: Mapping[str, Any]) -> list[str]:
    """Say which sessions make no one operator of a norm that is spelled out in 16 bits."""
    folded = inspected["summary"]["folded_halves"]
    if not folded or options.norm_form is WrittenForm.OP:
        return []
    return [_HALVES.format(f"the {folded} folded norms" if folded > 1 else "the folded norm")]


def _fuse_first(excluded: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say why the transformers optimizer goes first, where folds exclude what it fuses."""
    attentions = sum(row["fusion"] == "Attention" for row in excluded)
    stand = "attentions stand" if attentions > 1 else "attention stands"
    why = [_ATTENTIONS.format(attentions, stand)] if attentions else []
    if len(excluded) > attentions:
        why.append(_HALF_SUMS)
    return [_FUSE_FIRST + ", and ".join(why)] if why else []


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
