"""A model is brought to a newer opset where every operator has an exact form there."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxfold.passes.lower.opset import raise_opset


def _split(inputs: str) -> ir.Node:
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[4,6] x, int64[2] sizes) => (float[4,3] y, float[4,3] z) {{
      y, z = Split<axis=1>({inputs})
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    raise_opset(model, 23)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model.graph[0]


@pytest.mark.parametrize(("inputs", "number"), [("x", 2), ("x, sizes", None)])
def test_a_split_is_told_its_number_of_parts_where_it_has_no_sizes(
    inputs: str, number: int | None
) -> None:
    assert _split(inputs).attributes.get_int("num_outputs", None) == number
