"""Axes of the data that GatherND indexes are not in its result; the axes after them are."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.operators.families.rules import transfer_of
from onnxfold.shapes import infer


@pytest.mark.parametrize(("axis", "behind"), [(0, None), (1, None), (2, 1)])
def test_a_shift_passes_along_axes_that_are_not_indexed(axis: int, behind: int | None) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[4,4,4] x, int64[5,2] i) => (float[5,4] y) { y = GatherND(x, i) }"""
        )
    )
    view = infer(model)
    (node,) = view.model.graph
    transfer = transfer_of(node)
    assert transfer is not None
    told = transfer.forward(view, node, 0, Fiber((AxisBlock(axis, 1, 4, 1),)))
    assert told == (None if behind is None else ((0, Fiber((AxisBlock(behind, 1, 4, 1),))),))
    assert transfer.forward(view, node, 1, Fiber((AxisBlock(axis, 1, 4, 1),))) is None
