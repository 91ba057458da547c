"""Operators of sequences and optionals: onnx's implementations, which only move tensors."""

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, Datum, Output, kernel
from onnxfold.check.reference.kernels.delegated import delegated
from onnxfold.graph.sequences import is_unbind
from onnxfold.operators.table import op_types


def _split_to_sequence(call: Call, x: Array, split: Datum = None) -> Output:
    """Split single elements as ONNX Runtime does, and everything else as the standard does."""
    if not is_unbind(call.node):
        return delegated(call, x, split)
    return (list(np.moveaxis(x, call.integer("axis", 0), 0)),)


def _concat_from_sequence(call: Call, sequence: list[Array]) -> Output:
    """Concatenate by the standard: onnx 1.17 stacks along the last axis, whatever the axis."""
    call.check_size([sum(x.size for x in sequence)])
    join = np.stack if call.integer("new_axis", 0) else np.concatenate
    return (join(sequence, axis=call.integer("axis", 0)),)


_OWN = ("ConcatFromSequence", "SplitToSequence")
kernel("ConcatFromSequence", raw=True)(_concat_from_sequence)
kernel("SplitToSequence", raw=True)(_split_to_sequence)
kernel(*(name for name in op_types("sequences") if name not in _OWN), raw=True)(delegated)
