"""Centered weights: arrays in, arrays out.

    P W = W - mean(W), the mean over each set of a fiber of W

    MatMul W: [in, out]              mean over axis 1 for each input
    Gemm transB W: [out, in]         mean over axis 0 for each input
    Conv W: [out, in, *kernel]       mean over axis 0 for each (input, kernel position)
    ConvTranspose W: [in, out, ...]  mean over axis 1
    table: [V, d]                    mean over axis 1, each row
    bias b: [out]                    mean over axis 0

Means and differences are float64; the result is rounded once, to the type of W, even if W was
scaled before. A fiber without axes has sets of one element, which are centered to 0.

Source: CBWC, column-centered weight transformation; Pre-RMSNorm Transformers, section 3.
"""

import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.graph.array_types import Array
from onnxfold.model_io.mapped import RowReader
from onnxfold.weights.edited import EditedTensor, edited
from onnxfold.weights.edits import Centre
from onnxfold.weights.means import is_centred

_SAMPLED_ROWS = 64


def centred(W: Array, fiber: Fiber) -> Array:
    """Return P W in the type and shape of ``W``; it needs a few MiB of work space."""
    return centred_tensor(ir.Tensor(W), fiber, "").numpy()


def centred_tensor(tensor: ir.TensorProtocol, fiber: Fiber, name: str) -> EditedTensor:
    """Return P of a tensor, computed whenever it is read or saved, one at a time."""
    return edited(tensor, Centre(fiber), name)


def is_centred_weight(tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
    """Whether P W = W up to the rounding of stored values.

    A large file is read only if some rows pass.

    Raises InvariantError if the fiber does not fit the shape.
    """
    rows = tensor.shape.numpy()[0] if len(tensor.shape) else 0
    within_rows = all(digit.axis != 0 for digit in fiber.digits)
    if isinstance(tensor, RowReader) and rows >= 2 * _SAMPLED_ROWS and within_rows:
        sample = tensor.read_rows(range(0, rows, rows // _SAMPLED_ROWS))
        if not is_centred(sample, fiber):
            return False
    return is_centred(tensor.numpy(), fiber)
