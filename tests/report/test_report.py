"""What the report says of norms whose results move by rounding."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from rich.console import Console

import onnxfold
from onnxfold.report.html import page
from onnxfold.report.printed import print_norms
from tests.sessions import outputs

SENTENCE = "results move by rounding, towards the exact ones"
TWO_MOMENTS = "w = ReduceMean<axes=[-1]>(xx)\nuu = Mul(u, u)\nv = Sub(w, uu)\n"
TWO_PASSES = "dd = Mul(d, d)\nv = ReduceMean<axes=[-1]>(dd)\n"


def _model(variance: str, mean: float = 0.0) -> onnx.ModelProto:
    """A LayerNorm of h = x + mean, which no weight can center."""
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,3,256] x) => (float[n,3,256] y)
        <float e = {{1e-5}}, float c = {{{mean}}}>
        {{
            h = Add(x, c)  xx = Mul(h, h)  u = ReduceMean<axes=[-1]>(h)  d = Sub(h, u)
            {variance}
            ve = Add(v, e)  s = Sqrt(ve)  y = Div(d, s)
        }}"""
    )


def _said(report: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_norms(console, report["inspect"])
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_variance_of_two_moments_becomes_two_passes_and_the_report_says_so() -> None:
    result = onnxfold.optimize(_model(TWO_MOMENTS))
    (norm,) = result.report["inspect"]["norms"]
    assert norm["action"] == "fused_layer_norm"
    assert norm["moves_by_rounding"]
    assert result.report["inspect"]["summary"]["moved_by_rounding"] == 1
    assert SENTENCE in _said(result.report)
    assert SENTENCE in page(result.report)


def test_results_move_in_the_better_direction() -> None:
    """With a mean of 100 deviations, E[x^2] - E[x]^2 has lost four digits."""
    original = _model(TWO_MOMENTS, mean=100.0)
    rewritten = onnxfold.optimize(original).model
    x = np.random.default_rng(0).standard_normal((2, 3, 256)).astype(np.float32)
    h = (x + np.float32(100)).astype(np.float64)
    d = h - h.mean(-1, keepdims=True)
    exact = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    before, after = (_run(model, x) - exact for model in (original, rewritten))
    assert np.abs(after).max() < 0.1 * np.abs(before).max()


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return outputs(model, {"x": x})[0].astype(np.float64)


@pytest.mark.parametrize(
    ("variance", "leak"), [(TWO_PASSES, ""), (TWO_MOMENTS, "v")], ids=["two passes", "stays"]
)
def test_nothing_is_said_where_nothing_moves(variance: str, leak: str) -> None:
    proto = _model(variance)
    if leak:
        proto.graph.output.append(onnx.ValueInfoProto(name=leak))
    document = onnxfold.inspect(proto)
    assert not document["norms"][0]["moves_by_rounding"]
    assert document["summary"]["moved_by_rounding"] == 0
    assert SENTENCE not in _said({"inspect": document})


def test_a_bias_that_moves_into_a_layer_is_not_called_a_scale_alone() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,4] x) => (float[n,2] y)
        <float[4] one = {1, 1, 1, 1}, float[4,2] W = {1, 2, 3, 4, 2, 3, 4, 5}, float[2] b = {1, 2}>
        {
            n = LayerNormalization(x, one)  h = Gemm(n, W)  y = Add(h, b)
        }"""
    )
    said = _said(onnxfold.optimize(model).report)
    assert "; 1 scale or bias moves into the linear layers before" in said


@pytest.mark.parametrize("epsilon", ["", "<epsilon=1e-5>"], ids=["the default", "given"])
def test_a_norm_that_ends_behind_a_reshape_once_its_gamma_is_gone_is_still_that_norm(
    epsilon: str,
) -> None:
    """An InstanceNormalization without its gamma and beta is a norm of rows."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[6,5] x) => (float[8,3] y) <int64[1] zero = {{0}}>
        {{
            h = MatMul(x, W)  u = Unsqueeze(h, zero)
            n = InstanceNormalization{epsilon}(u, gamma, beta)
            s = Squeeze(n, zero)  t = Transpose<perm=[1,0]>(s)  y = Gemm(t, V, c)
        }}"""
    )
    shapes = {"W": (5, 8), "gamma": (6,), "beta": (6,), "V": (6, 3), "c": (3,)}
    for name, shape in shapes.items():
        array = rng.normal(1, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    report = onnxfold.optimize(model, target="ort").report
    (norm,) = report["inspect"]["norms"]
    assert (norm["kind"], norm["action"], norm["reason"]) == ("instance_norm", "rms", None)
    assert "0 of 0 LayerNorms fold to RMSNorm, and 1 other norm; 1 gamma and" in _said(report)


def test_parameters_are_the_numbers_that_are_stored() -> None:
    assert onnxfold.inspect(_model(TWO_PASSES))["model"]["parameters"] == 2
