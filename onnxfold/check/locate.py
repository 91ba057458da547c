"""Find where two models diverge, by running both in float64 and comparing values of equal names."""

import numpy as np
import onnx_ir as ir

from onnxfold.check.criterion import rms
from onnxfold.check.reference import Array, Precision, is_wide_float, run, unit_roundoff
from onnxfold.check.runners import Feeds
from onnxfold.errors import OnnxfoldError

# Weights of the rewritten model are rounded once more, so in exact arithmetic the two models differ
# by u per layer; a defect shows as many more of these.
_ROUNDINGS = 64.0
_KEPT_BYTES = 1 << 30


class _FoundError(OnnxfoldError):
    """Stops the run of the rewritten model at the node that was searched for."""

    def __init__(self, node: ir.Node | None) -> None:
        super().__init__("found")
        self.node = node


def locate(original: ir.Model, rewritten: ir.Model, feeds: Feeds) -> ir.Node | None:
    """Return the first node of the rewritten model with another float64 result than the original.

    Values are matched by name, and compared up to rounding of the weights and up to a shift that
    is the same along the features, as folding a centering produces it: the last axis, or axis 1 of
    images. None: no such node.
    """
    names = {v.name for node in rewritten.graph for v in node.outputs if v.name}
    kept: dict[str, Array] = {}
    room = [_KEPT_BYTES]

    def keep(value: ir.Value, array: Array) -> Array:
        ours = value.graph is original.graph and value.name in names
        if ours and is_wide_float(array.dtype) and array.nbytes <= room[0]:
            room[0] -= array.nbytes
            kept[str(value.name)] = array
        return array

    bound = _ROUNDINGS * _coarsest_roundoff(original)

    def compare(value: ir.Value, array: Array) -> Array:
        ours = value.graph is rewritten.graph and value.name in kept
        if ours and not _agree(kept[str(value.name)], array, bound):
            raise _FoundError(value.producer())
        return array

    run(original, feeds, precision=Precision.FLOAT64, observe=keep)
    try:
        run(rewritten, feeds, precision=Precision.FLOAT64, observe=compare)
    except _FoundError as found:
        return found.node
    return None


def _coarsest_roundoff(model: ir.Model) -> float:
    """Return the unit roundoff of the coarsest floating type among the weights, or float32's."""
    roundoffs = [
        unit_roundoff(v.dtype.numpy())
        for v in model.graph.initializers.values()
        if v.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
    ]
    return max(roundoffs, default=unit_roundoff(np.dtype(np.float32)))


def _agree(a: Array, b: Array, bound: float) -> bool:
    if a.shape != b.shape:
        return False
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    gap = np.where(both, a - np.where(both, b, 0.0), 0.0)
    size = max(rms(np.where(both, a, 0.0)), rms(np.where(both, b, 0.0)))
    allowed = bound * size
    if rms(gap) <= allowed:
        return True
    features = [axis for axis in (gap.ndim - 1, 1 if gap.ndim >= 4 else -1) if axis >= 0]
    return any(
        gap.shape[axis] > 1 and rms(gap - np.mean(gap, axis=axis, keepdims=True)) <= allowed
        for axis in features
    )
