"""The dots of an Einsum are axes that broadcast: its law equals the equation's without them."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.operands import einsum_labels
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.families.transfer import Carried
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.shapes import infer

EQUATIONS = [
    ("...ij,jk->...ik", "abij,jk->abik", ["2,3,4,5", "5,6"]),
    ("...ij,...jk->...ik", "abij,cdjk->abik", ["2,3,4,5", "1,1,5,6"]),
    ("ec,...c->...e", "ec,abc->abe", ["6,5", "2,3,5"]),
    ("...i,i->...", "abi,i->ab", ["2,3,5", "5"]),
]


def _laws(equation: str, shapes: list[str]) -> list[object]:
    inputs = ", ".join(f"float[{shape}] x{number}" for number, shape in enumerate(shapes))
    text = f'y = Einsum <equation = "{equation}"> (x0, x1)'
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[N] y) {{ {text} }}'
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    view = infer(prepare(ir.from_proto(model)).model)
    (node,) = view.model.graph
    transfer = transfer_of(node)
    assert transfer is not None
    told: list[object] = []
    for axis, size in enumerate(view.shape(node.outputs[0]) or ()):
        assert isinstance(size, int)
        told.append(transfer.backward(view, node, 0, Fiber((AxisBlock(axis, 1, size, 1),))))
    for index, operand in enumerate(node.inputs):
        for axis, size in enumerate(view.shape(operand) or ()):
            assert isinstance(size, int)
            told.append(transfer.forward(view, node, index, Fiber((AxisBlock(axis, 1, size, 1),))))
    return told


@pytest.mark.parametrize(("dots", "letters", "shapes"), EQUATIONS)
def test_dots_stand_for_the_axes_that_they_hide(dots: str, letters: str, shapes: list[str]) -> None:
    told = _laws(dots, shapes)
    assert any(isinstance(law, Carried) for law in told)
    if "cd" not in letters:  # a broadcast axis has no letter
        spelled = _laws(letters, shapes)
        assert [law for law in told if isinstance(law, Carried)] == [
            law for law in spelled if isinstance(law, Carried)
        ]


@pytest.mark.parametrize("hidden", [0, 10, 11])
def test_dots_stand_for_as_many_axes_as_there_are_labels(hidden: int) -> None:
    dims = ",".join(["1"] * hidden + ["5"])
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[{dims}] x) => (float[{dims}] y)
        {{ y = Einsum <equation = "...i->...i"> (x) }}"""
    )
    view = infer(prepare(ir.from_proto(model)).model)
    node = view.model.graph[0]
    labels = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
    spelled = "9876543210"[10 - hidden :] + "i"
    assert labels == (None if hidden > 10 else ([spelled], spelled))
