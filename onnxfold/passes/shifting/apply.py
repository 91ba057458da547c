"""Shifts weights: W becomes W + c, one number c for each set of a fiber.

    MatMul W: [in, out]   W + c 1'  one number for each input
    bias b: [out]         b + d 1   one number
    table: [V, d]         one number for each row

c is normal, of the size of the weight's own numbers: the stream gets a mean of about its deviation.
"""

from zlib import crc32

import numpy as np
import onnx_ir as ir

from onnxfold.graph.channels import Channels
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.graph.operands import known_tensor
from onnxfold.graph.stored_rows import stored_rows
from onnxfold.passes.base import Settings
from onnxfold.passes.shifting.plan import ShiftingPlan, WeightShift
from onnxfold.weights.edited import EditedTensor, edited
from onnxfold.weights.edits import Shift


def apply(edit: Editor, plan: ShiftingPlan, settings: Settings) -> None:
    """Shift every weight that is named."""
    del settings
    values = edit.by_ref()
    for weight in plan.weights:
        value = values[weight.value]
        change_constant(value, _shifted(known_tensor(value), weight, plan.seed))


def _shifted(tensor: ir.TensorProtocol, weight: WeightShift, seed: int) -> EditedTensor:
    shape = tuple(tensor.shape.numpy())
    kept = Channels.along(
        (axis, size) for axis, size in enumerate(shape) if axis not in weight.fiber.axes
    )
    rng = np.random.default_rng([seed, crc32(weight.value.encode())])
    vector = rng.standard_normal(kept.size) * _root_mean_square(tensor)
    return edited(tensor, Shift(kept, vector), tensor.name or weight.value)


def _root_mean_square(tensor: ir.TensorProtocol) -> float:
    total = sum(float(np.square(rows, dtype=np.float64).sum()) for rows in stored_rows(tensor))
    return float(np.sqrt(total / max(1, tensor.size)))
