"""Parts of one axis meet where they share an element; parts along two axes always do."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxfold.operators.families.cut_parts import AxisPart


@pytest.mark.parametrize(
    ("axis", "start", "length", "meets"),
    [(0, 0, 2, False), (0, 1, 2, True), (0, 3, 1, True), (0, 4, 4, False), (1, 0, 2, True)],
)
def test_parts_meet_where_an_element_is_in_both(
    axis: int, start: int, length: int, meets: bool
) -> None:
    source = ir.val("x")
    one, other = AxisPart(source, 0, 2, 2, 8), AxisPart(source, axis, start, length, 8)
    assert one.meets(other) == meets
    assert other.meets(one) == meets
