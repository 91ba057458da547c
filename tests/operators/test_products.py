"""Factors of channels pass a product where the channels are what they were."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.shapes import infer


@pytest.mark.parametrize(
    ("x", "h", "size", "axis"),
    [
        ("B,4,6", "B,4,6", 6, 2),
        ("B,4,6", "B,4,1", 6, 2),
        ("4,6", "B,4,1", 6, 2),  # the result has an axis more in front
        ("B,4,1", "B,4,6", 1, None),  # one factor for six channels is none of a channel
    ],
)
def test_channels_that_a_product_spreads_are_others(
    x: str, h: str, size: int, axis: int | None
) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    g (double[{x}] x, double[{h}] h) => (double[B,4,6] y) {{ y = Mul(x, h) }}"""
    view = infer(ir.from_proto(onnx.parser.parse_model(text)))
    (node,) = view.nodes()
    last = x.count(",")
    known = map_of(view, node)
    assert isinstance(known, IndexMap)
    found = known.image(Fiber((AxisBlock(last, 1, size, 1),)), known.operand(0), known.output)
    assert found == (None if axis is None else Fiber((AxisBlock(axis, 1, size, 1),)))
