"""What a deferred norm leaves becomes calls of the kernels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.operators.functions import DOMAIN
from onnxfold.passes.lower.row_scales import reduces_rows
from tests.case_files import read
from tests.graphs import model, weights, without_shapes
from tests.sessions import outputs

C = 16
CASES = read("row_scales")


def model_of(body: str, *outputs: str) -> onnx.ModelProto:
    constants = weights(W=(C, C), b=(C,), gamma=(C,))
    constants |= {"epsilon": np.array(2.0**-17), "wide": np.array(2.0**-10)}
    constants |= {"last": np.array([-1]), "flat": np.array([-1, C])}
    given = "xr" if " r)" in body and "x = " not in body else "r" if "x = " in body else "x"
    inputs = ", ".join(f"float[2,3,{C}] {name}" for name in given)
    results = ", ".join(f"float {name}" for name in outputs)
    return without_shapes(model(body, inputs, results, constants, 20, dtype=np.float32))


def outputs_of(model: onnx.ModelProto, *, kernels: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    inputs = {
        each.name: rng.standard_normal((2, 3, C)).astype(np.float32) for each in model.graph.input
    }
    return outputs(model, inputs, kernels=kernels)


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_rows_become_calls(case: str) -> None:
    names, calls = CASES[case].columns
    given = model_of(CASES[case].body, *names.split())
    result = onnxfold.optimize(given, target="kernels", defer="all")
    assert "left_out" not in result.report
    written = result.model
    found = [each.op_type for each in written.graph.node if each.domain == DOMAIN]
    assert found == calls.split()
    expected = outputs_of(given, kernels=False)
    for kernels in (False, True):
        for got, want in zip(outputs_of(written, kernels=kernels), expected, strict=True):
            # Float32 of products of 16 terms, a root, a quotient: 1e-5 of values not above 16.
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def test_the_name_of_a_product_is_known_in_any_order() -> None:
    """PyTorch declares sequence*batch for the rows of batch and sequence."""
    body = CASES["a norm"].body.replace("y = Mul(n, gamma) h = MatMul(y, W)", "{}")
    given = model_of(body.format("rows = Reshape(n, flat) h = MatMul(rows, W)"), "out")
    shape = given.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[1].dim_param = "batch", "sequence"
    for name in ("rows", "h", "z"):
        declared = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["sequence*batch", C])
        given.graph.value_info.append(declared)
    written = onnxfold.optimize(given, target="kernels", defer="all").model
    found = [each.op_type for each in written.graph.node if each.domain == DOMAIN]
    assert found == ["RowScale", "ScaleRowsBiasRelu"]


@pytest.mark.parametrize(
    ("axes", "kept", "of_rows"),
    [("{1}", 1, True), ("{-1}", 1, True), ("{0}", 1, False), ("{1}", 0, False), (None, 1, False)],
)
def test_a_reduction_of_rows_has_known_axes_that_stay(
    axes: str | None, kept: int, of_rows: bool
) -> None:
    constant = "" if axes is None else f"axes = Constant <value = int64[1] {axes}> ()"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> agraph (float[2,3] x'
        f"{', int64[1] axes' if axes is None else ''}) => (float y) {{ {constant}"
        f" y = ReduceMean <keepdims = {kept}> (x, axes) }}"
    )
    view = ModelInfo(ir.from_proto(model))
    (node,) = (node for node in view.nodes() if node.op_type == "ReduceMean")
    assert reduces_rows(view, node, rank=2) == of_rows
