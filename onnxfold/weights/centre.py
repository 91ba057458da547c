"""Centred weights: arrays in, arrays out.

    P W = W - mean(W), the mean over each set of a fiber of W

    MatMul W: [in, out]              mean over axis 1 for each input
    Gemm transB W: [out, in]         mean over axis 0 for each input
    Conv W: [out, in, *kernel]       mean over axis 0 for each (input, kernel position)
    ConvTranspose W: [in, out, ...]  mean over axis 1
    table: [V, d]                    mean over axis 1, each row
    bias b: [out]                    mean over axis 0

Means and differences are float64; the result is rounded once, to the type of W, also where W has
been scaled before.  A fiber without axes has sets of one element, whose centring is 0.

Source: CBWC, column-centred weight transformation; Pre-RMSNorm Transformers, section 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.weights.edited import EditedTensor, edited
from onnxfold.weights.edits import Centre

__all__ = ["centred", "centred_tensor"]

Array = npt.NDArray[np.generic]


def centred(W: Array, fiber: Fiber) -> Array:
    """Return P W in the type and shape of ``W``; work space beyond the result is a few MiB."""
    return centred_tensor(ir.Tensor(W), fiber, "").numpy()


def centred_tensor(tensor: ir.TensorProtocol, fiber: Fiber, name: str) -> EditedTensor:
    """Return P of a tensor, computed whenever it is read or saved, one at a time."""
    return edited(tensor, Centre(fiber), name)
