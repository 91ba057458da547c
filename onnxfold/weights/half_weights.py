"""Weights of 16 bits that a factor would leave with fewer bits than the product it replaces.

With the unit roundoff u and the spacing e of subnormal numbers, a stored number W' = fl(g W) errs
by at most max(u |W'|, e / 2).  Over a column of W', whose elements are summed,

    rms(fl(g W) - g W)  <=  u rms(g W)

while all numbers are normal: no more error than in a product rounded to the same type. A column of
subnormal numbers errs by more, and its input does not compensate.

A bias needs no such rule. It is added to numbers of its own type, each with an error of up to e / 2
as well, and nothing multiplies its error. Its size |b + beta W| is the size of the outputs on rows
whose norm is 0, and at most their root mean square over rows on which the parts of x have mean 0:
it errs by one rounding of the outputs. A bias that becomes infinite is not moved.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.graph.constants import HALVES, Float64, digits
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.edited import edited, float64_chunks
from onnxfold.weights.evaluation import Edit


def refuse_few_bits(
    tensor: ir.TensorProtocol | None, edit: Edit, columns: Sequence[int], name: str
) -> Refusal | None:
    """Refuse an edit that would round a column of a weight more than a product does.

    ``columns``: the axes of the layer's output; it sums over all others. A weight that was edited
    before is rounded once for all edits.
    """
    if tensor is None or tensor.dtype not in HALVES:
        return None
    changed = edited(tensor, edit, name)
    with np.errstate(all="ignore"):
        error, size = _squares(changed, columns)
        most = 4.0 ** -digits(tensor.dtype) * size
        fits = np.all(error <= most)  # NaN, as of a number that becomes infinite, does not
    if fits:
        return None
    sentence = (
        f"weight '{name}' would leave the numbers that {tensor.dtype} has all bits for, and be "
        "rounded more than what it is to take over"
    )
    return Refusal(RefusalCode.ROUNDS_MORE, sentence, (name,))


def _squares(tensor: ir.TensorProtocol, columns: Sequence[int]) -> tuple[Float64, Float64]:
    """Return the sums of squares of a weight's roundings, and of its numbers, per column."""
    shape = tuple(tensor.shape.numpy()) or (1,)
    summed = tuple(axis for axis in range(len(shape)) if axis not in columns)
    kept = tuple(1 if axis in summed else size for axis, size in enumerate(shape))
    totals = np.zeros((2, *kept))
    for start, chunk in float64_chunks(tensor):
        rows = slice(None) if 0 in summed else slice(start, start + chunk.shape[0])
        rounded = chunk.astype(tensor.dtype.numpy()).astype(np.float64)
        for total, part in zip(totals, (rounded - chunk, chunk), strict=True):
            total[rows] += np.square(part).sum(axis=summed, keepdims=True)
    return totals[0], totals[1]
