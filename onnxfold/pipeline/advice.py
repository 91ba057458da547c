"""The line that ends ``optimize``: what another target would gain, and what was not measured."""

from onnxfold.options import Device, Options, Target
from onnxfold.passes.lower.installed import MEASURED, onnxruntime_version

# The method `target ort`, and `onnxfold` for kernels, in benchmarks/results/models.csv.
_GAINS = {Target.ORT: (1.02, 1.27), Target.KERNELS: (1.04, 1.31)}
_OTHERS = (
    "in ONNX Runtime 1.32 on a CPU, BERT and MiniLM, float32 and int8, ran {:g} to {:g} times as "
    "fast with --target ort, {:g} to {:g} with --target kernels and its library"
).format(*_GAINS[Target.ORT], *_GAINS[Target.KERNELS])
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
        return f"{_OTHERS}; {first}" if excluded else _OTHERS
    oldest, newest = MEASURED
    version = onnxruntime_version()
    measured = oldest <= version <= newest and options.device is Device.CPU
    on = "" if options.device is Device.CPU else " on CUDA"
    chosen = f"chosen for ONNX Runtime {version[0]}.{version[1]}{on}"
    if not measured:
        return f"{chosen}, which was not measured; {_LAST}"
    return f"{chosen}; {_LAST}; --target kernels is faster with onnxfold's library"
