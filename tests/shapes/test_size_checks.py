"""Sizes that onnx would take without a look are refused, and those before them are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.errors import ModelError
from onnxfold.shapes.size_checks import check_size
from tests.operators.sample import Array

_MOST, _MOST_OF_A_VECTOR = 2**40, 2**26


def _constant(array: Array) -> ir.Value:
    return ir.node("Constant", [], {"value": ir.Tensor(array)}).outputs[0]


def _node(op_type: str, operands: dict[int, Any], results: int, **attributes: Any) -> ir.Node:
    """Return a node with constants at the places of ``operands`` and others before them."""
    inputs = [
        _constant(np.array(operands[place])) if place in operands else ir.Value(name=f"x{place}")
        for place in range(max(operands, default=0) + 1)
    ]
    return ir.node(op_type, inputs, attributes, num_outputs=results)


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes", "refusal"),
    [
        ("ConstantOfShape", {0: [_MOST_OF_A_VECTOR]}, {}, None),
        ("ConstantOfShape", {0: [_MOST_OF_A_VECTOR + 1]}, {}, "asks for 67108865 elements"),
        ("Expand", {1: [2**20, 2**20]}, {}, None),
        ("Expand", {1: [2**20, -(2**20), 2]}, {}, "asks for 1048576x1048576x2 elements"),
        ("Tile", {1: [2.0**50]}, {}, None),
        ("GatherND", {}, {"batch_dims": 0}, None),
        ("GatherND", {}, {"batch_dims": -1}, "has -1 batch axes"),
        ("Pad", {1: [0, -_MOST]}, {}, None),
        ("Pad", {1: [0, -_MOST - 1]}, {}, "pads by -1099511627777 elements"),
        ("Pad", {}, {"pads": [_MOST + 1, 0]}, "pads by 1099511627777 elements"),
        ("Resize", {2: [0.5, float(_MOST)]}, {}, None),
        ("Resize", {2: [0.5, float(_MOST) * 2]}, {}, "resizes 2199023255552.0 times"),
        ("Resize", {2: [0.5, 0.0]}, {}, "resizes 0.0 times"),
        ("Resize", {3: [4, 4]}, {}, None),
        ("Upsample", {1: [-1.0]}, {}, "resizes -1.0 times"),
        ("Slice", {4: [1 - 2**31]}, {}, None),
        ("Slice", {4: [2**31]}, {}, "has steps of 2147483648"),
        ("Slice", {4: [0]}, {}, "has steps of 0"),
        ("Split", {}, {"num_outputs": 2}, None),
        ("Split", {}, {"num_outputs": 1}, "has 2 results of 1 parts"),
        ("Split", {}, {}, None),
    ],
)
def test_a_size_that_nothing_can_hold_is_refused(
    op_type: str, operands: dict[int, Any], attributes: dict[str, Any], refusal: str | None
) -> None:
    results = 2 if op_type == "Split" else 1
    node = _node(op_type, operands, results, **attributes)
    own = _node(op_type, operands, results, **attributes)
    own.domain = "own"
    check_size(own)
    if refusal is None:
        check_size(node)
        return
    with pytest.raises(ModelError, match=f"node '{op_type}' {refusal}$"):
        check_size(node)


def test_only_short_constants_are_read() -> None:
    for count in (32, 33):
        node = _node("ConstantOfShape", {0: np.full(count, 4)}, 1)
        if count == 33:
            check_size(node)  # of more axes than any tensor has, which onnx refuses itself
        else:
            with pytest.raises(ModelError, match="asks for 4x4x"):
                check_size(node)
