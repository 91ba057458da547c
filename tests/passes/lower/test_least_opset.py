"""A centering is a call from the opset on whose operators its body needs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.operators.functions import MIN_OPSET
from onnxfold.target import Target
from onnxfold.targets.lowering import TargetLowering


@pytest.mark.parametrize(
    ("dtype", "opset", "called"),
    [
        (ir.DataType.FLOAT, MIN_OPSET, True),
        (ir.DataType.BFLOAT16, 13, True),
        (ir.DataType.BFLOAT16, 12, False),
    ],
)
def test_a_centring_is_called_from_its_least_opset_on(
    dtype: ir.DataType, opset: int, called: bool
) -> None:
    x = ir.val("x", dtype, ir.Shape([2, 4]))
    model = ir.Model(ir.Graph([x], [x], nodes=[], opset_imports={"": opset}), ir_version=8)
    lowering = TargetLowering(ModelInfo(model), Target.KERNELS)
    nodes = lowering.centring(x, Fiber.of([AxisBlock(1, 1, 4, 1)])).nodes
    assert (len(nodes) == 1) == called
