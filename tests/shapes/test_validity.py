"""A model keeps to the rules that its operators have at its own opset."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxfold.pipeline.error_context import complaint


def _complaint(opset: int, node: str, result: str = "float[n, 4] y") -> str | None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "own" : 1]>
    g (float[n, 4] x, float[4] w, float[3] three, float[1] one) => ({result}) {{ y = {node} }}"""
    return complaint(ir.from_proto(parser.parse_model(text)))


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (17, "LayerNormalization (x, w)"),
        (17, "LayerNormalization (x, one, w)"),
        (17, "LayerNormalization <axis = 0> (x, w)"),
        (11, "Dropout <ratio = 0.5> (x)"),  # whose ratio is an input since opset 12
        (13, "LayerNormalization (x, w)"),  # as ONNX Runtime has it before opset 17
        (17, "com.microsoft.Gelu (x)"),
        (17, "own.Odd <anything = 1> (x)"),
    ],
)
def test_a_node_that_keeps_to_the_rules_of_its_opset_is_no_fault(opset: int, node: str) -> None:
    assert _complaint(opset, node) is None


@pytest.mark.parametrize(
    ("opset", "node", "told"),
    [
        (13, "Dropout <ratio = 0.5> (x)", "Unrecognized attribute: ratio"),
        (13, "LayerNormalization (x)", "has input size 1 not in range"),
        (17, "Add (x)", "has input size 1 not in range"),
        (17, "Reshape (x, w)", "tensor(float)"),
        (17, "LayerNormalization (x, three)", "'three' of LayerNormalization"),
    ],
)
def test_a_node_that_breaks_them_is_told_of_in_one_line(opset: int, node: str, told: str) -> None:
    found = _complaint(opset, node)
    assert found is not None
    assert told in found
    assert "\n" not in found


def test_a_size_that_no_memory_holds_is_a_fault() -> None:
    most = 2**63 // 8 // 4
    for dim, valid in ((most - 1, True), (most, False)):
        found = _complaint(17, "Neg (x)", f"float[{dim}, 4] y")
        assert (found is None) == valid, found
