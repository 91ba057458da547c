"""Bfloat16 where the float16 converter writes float16: built and checked without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.check.runners import native
from onnxfold.errors import UsageError
from onnxfold.options import Device
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.steps import STEPS, Context

_MODEL = """<ir_version: 9, opset_import: ["" : 17]> g (float[B,4] x) => (float[B,4] y)
    <float[4,4] w = {1,0,0,0, 0,1e5,0,0, 0,0,1e-9,0, 0,0,0,3.14159}> {
    p = MatMul (x, w)  c = Constant <value = float {1e6}> ()  y = Mul (p, c) }"""


def _converted(folder: Path, text: str = _MODEL) -> ir.Model:
    onnx.save(onnx.parser.parse_model(text), folder / "a.onnx")
    STEPS["bf16"].apply(folder / "a.onnx", folder / "b.onnx", Context(ModelFacts("bert")))
    return ir.load(folder / "b.onnx")


def test_weights_are_rounded_from_float32_which_float16_would_clip(tmp_path: Path) -> None:
    made = _converted(tmp_path)
    weights = {v.name: v.const_value for v in made.graph.initializers.values()}
    stored = weights["w"]
    assert stored is not None
    assert stored.dtype is ir.DataType.BFLOAT16
    assert np.diag(stored.numpy().astype(np.float64)) == pytest.approx(
        [1.0, 1e5, 1e-9, 3.14159], rel=2.0**-8
    )
    onnx.checker.check_model(tmp_path / "b.onnx")


def test_inputs_and_outputs_keep_their_types_and_the_numbers_are_near(tmp_path: Path) -> None:
    made = _converted(tmp_path)
    assert {v.dtype for v in (*made.graph.inputs, *made.graph.outputs)} == {ir.DataType.FLOAT}
    types = {v.dtype for node in made.graph for v in node.outputs}
    assert ir.DataType.FLOAT16 not in types
    x = np.array([[1, 2, 3, 4]], np.float32)
    (result,) = native(made, [{"x": x}])
    expected = x * np.array([1.0, 1e5, 1e-9, 3.14159]) * 1e6
    np.testing.assert_allclose(result["y"], expected, rtol=3 * 2.0**-8, atol=0)


def test_what_is_float16_already_is_refused(tmp_path: Path) -> None:
    half = """<ir_version: 9, opset_import: ["" : 17]>
    g (float16[B,4] x) => (float16[B,4] y) { y = Relu (x) }"""
    with pytest.raises(UsageError, match="holds float16"):
        _converted(tmp_path, half)


def test_it_is_a_precision_of_gpus() -> None:
    with pytest.raises(UsageError, match="for GPUs"):
        TuneOptions(precision=(TargetPrecision.BF16,))
    TuneOptions(precision=(TargetPrecision.BF16,), device=Device.CUDA)
