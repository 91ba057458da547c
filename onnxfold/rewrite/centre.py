"""Centred weights: arrays in, arrays out.

    P W = W - mean(W), the mean over each set of a fiber of W

    MatMul W: [in, out]              mean over axis 1 for each input
    Gemm transB W: [out, in]         mean over axis 0 for each input
    Conv W: [out, in, *kernel]       mean over axis 0 for each (input, kernel position)
    ConvTranspose W: [in, out, ...]  mean over axis 1
    table: [V, d]                    mean over axis 1, each row
    bias b: [out]                    mean over axis 0

Means and differences are float64; the result is rounded once, to the type of W.  A fiber without
axes has sets of one element, whose centring is 0.

Source: CBWC, column-centred weight transformation; Pre-RMSNorm Transformers, section 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.zero_mean.arrays import fiber_means, split_digits

__all__ = ["centred", "centred_tensor"]

_CHUNK_ELEMENTS = 1 << 17  # float64 work space of 1 MiB, which stays in cache

Array = npt.NDArray[np.generic]


def centred(W: Array, fiber: Fiber) -> Array:
    """Return P W in the type and shape of ``W``; work space beyond the result is a few MiB."""
    digits, members = split_digits(W.shape, fiber)
    view = W.reshape(digits)
    result = np.empty(digits, dtype=W.dtype)
    if view.ndim == 0:
        return np.zeros_like(W)
    means = fiber_means(W, fiber) if 0 in members else None
    row = max(1, view.size // max(1, digits[0]))
    step = max(1, _CHUNK_ELEMENTS // row)
    for start in range(0, digits[0], step):
        rows = slice(start, start + step)
        chunk = view[rows].astype(np.float64)
        # Whole sets lie within a chunk unless the first digit is part of the fiber.
        chunk -= chunk.mean(axis=members, keepdims=True) if means is None else means
        result[rows] = chunk
    return result.reshape(W.shape)


def centred_tensor(tensor: ir.TensorProtocol, fiber: Fiber, name: str) -> ir.LazyTensor:
    """Return a tensor that is computed whenever it is read or saved, one at a time."""

    def compute() -> ir.TensorProtocol:
        array = centred(tensor.numpy(), fiber)
        return ir.Tensor(array, dtype=tensor.dtype, name=name)

    return ir.LazyTensor(
        compute,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
        cache=False,
    )
