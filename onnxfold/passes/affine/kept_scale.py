"""The scale left in a norm whose gamma moves: a power of two, which W absorbs exactly.

    y W = (n s) (diag(g / s) W)                          for any s > 0

A norm of one operator always multiplies by a scale, and runtimes fuse a spelled-out norm only with
a product after it. Simplifiers remove products by ones (docs/pipeline.md), so s is 1/2: 2 g W is as
exact as g W. If half floats cannot represent the result, s is 2, unless g W / 2 has fewer digits
than g W.
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Float64
from onnxfold.passes.affine.plan import Absorption
from onnxfold.refusal import Refusal, RefusalCode

_HALF, _TWO = 0.5, 2.0


def is_kept_scale(gamma: Float64) -> bool:
    """Whether a gamma is one power of two other than 1, which is not worth moving."""
    mantissa, exponent = np.frexp(gamma[:1])
    return bool(gamma.size and mantissa[0] == 0.5 and exponent[0] != 1 and np.ptp(gamma) == 0)


def kept_scale(view: ModelInfo, gamma: Float64, readers: Iterable[Absorption]) -> float | Refusal:
    """Return the scale that all readers of a norm can absorb, or why there is none."""
    left = _HALF
    for reader in readers:
        tensor = view.tensor(view.by_ref()[reader.weight.value])
        if tensor is None or tensor.dtype is not ir.DataType.FLOAT16:
            continue  # other types have the exponents of float32 or more
        shape = tuple(tensor.shape.numpy())
        factor = reader.weight.channels.spread(reader.placed(gamma, 1.0), shape)
        sizes = np.abs(tensor.numpy().astype(np.float64) * factor)
        limits = np.finfo(np.float16)
        if 2 * sizes.max(initial=0.0) <= float(limits.max):
            continue
        left = _TWO
        if np.any((sizes > 0) & (sizes < 2 * float(limits.smallest_normal))):
            name = reader.weight.value
            sentence = f"weight '{name}' can absorb neither 1/2 nor 2 as {tensor.dtype}"
            return Refusal(RefusalCode.NON_FINITE_WEIGHT, sentence, (name,))
    return left
