"""The kernels, by family; importing this package registers all of them."""

from __future__ import annotations

from onnxfold.check.reference.kernels import (
    activation,
    attention,
    contrib,
    control,
    convolution,
    delegated,
    elementwise,
    indexing,
    layout,
    linear,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    sampling,
    tensors,
)

__all__ = [
    "activation",
    "attention",
    "contrib",
    "control",
    "convolution",
    "delegated",
    "elementwise",
    "indexing",
    "layout",
    "linear",
    "normalization",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "tensors",
]
