"""The line that ends ``optimize``: what another target would gain, and what was not measured."""

from collections.abc import Mapping
from types import MappingProxyType

from onnxfold.options import Device, Options, Target
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
# As in text encoders of CLIP (docs/pipeline.md).
_FUSE_FIRST = (
    "its transformers optimizer goes before onnxfold: {} {} beside norms that fold, and it makes "
    "Attention of what it knows from LayerNormalization alone"
)
_LAST = (
    "other optimizers go before onnxfold, for they look for Add and LayerNormalization, not for "
    "Sum and SimplifiedLayerNormalization"
)


def advice(options: Options, excluded: int) -> str:
    """Say what another target would gain in ONNX Runtime, and which version was not measured.

    ``excluded``: how many fusions of its transformers optimizer the folds exclude.
    """
    if options.convert_to is not None:
        return ""  # the form was chosen for a reason of its own
    if options.target is Target.KERNELS:
        return "for ONNX Runtime with onnxfold's library; --target onnx is for other runtimes"
    if options.target is Target.ONNX:
        first = _FUSE_FIRST.format(
            excluded, "attentions stand" if excluded > 1 else "attention stands"
        )
        others = _OTHERS[installed_device()]
        return f"{others}; {first}" if excluded else others
    oldest, newest = MEASURED[options.device]
    version = onnxruntime_version()
    on = "" if options.device is Device.CPU else " on CUDA"
    chosen = f"chosen for ONNX Runtime {_named(version)}{on}"
    if not oldest <= version <= newest:
        known = _named(oldest) if oldest == newest else f"{_named(oldest)} to {_named(newest)}"
        return f"{chosen}, which was not measured, as {known} was; {_LAST}"
    return f"{chosen}; {_LAST}; {_WITH_KERNELS[options.device]}"


def _named(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
