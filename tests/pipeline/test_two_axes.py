"""Norms over two axes whose input is written by two weights: both are centered, or neither."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxfold
from tests.soundness.float64 import evaluate, relative_error

_ROUNDING = 1e-12  # of float64
_RNG = np.random.default_rng
_FEEDS = {"x": _RNG(1).standard_normal((3, 10))}
# What writes the second operand: of as many elements, or of as many as one of the two axes has.
_SECOND = {
    "both axes": (48, "t = Reshape (m2, wide)"),
    "one axis, repeated along the other": (8, "t = Reshape (m2, narrow)"),
}


def _model(width: int, second: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        twice (double[batch, 10] x) => (double[batch, 6, 4] y) {{
            m1 = MatMul (x, w1)  s = Reshape (m1, wide)  r = Relu (x)  m2 = MatMul (r, w2)
            {second}
            z = Add (s, t)  n = LayerNormalization <axis = -2> (z, gamma)  y = MatMul (n, w3)
        }}""")
    rng = _RNG(0)
    arrays = {
        "w1": rng.standard_normal((10, 48)),
        "w2": rng.standard_normal((10, width)),
        "w3": rng.standard_normal((8, 4)),
        "gamma": 1 + rng.random((6, 8)),
        "wide": np.array([-1, 6, 8]),
        "narrow": np.array([-1, 1, 8]),
    }
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


@pytest.mark.parametrize("second", _SECOND)
def test_both_weights_are_centred(second: str) -> None:
    model = _model(*_SECOND[second])
    result = onnxfold.convert(model, to="rms", check=0)
    assert result.proof is not None
    assert (result.proof.folded_norms, result.proof.centred_weights) == (1, 2)
    expected = evaluate(model, _FEEDS)
    assert relative_error(expected, evaluate(result.model, _FEEDS)) < _ROUNDING


def test_weights_of_one_axis_each_cannot_take_the_mean_over_both_out() -> None:
    """P(A h B) over both axes is A h B - 1 (a h b) 1', of another rank than (P A) h (P B)."""
    rng = _RNG(2)
    A, h, B = (rng.standard_normal(shape) for shape in ((6, 5), (5, 7), (7, 8)))
    centred = A @ h @ B - (A @ h @ B).mean()
    by_weights = (A - A.mean(axis=0)) @ h @ (B - B.mean(axis=1, keepdims=True))
    assert np.abs(by_weights.mean()) < 1e-12 * np.abs(centred).max()  # 0 too, but not the same
    assert np.abs(centred - by_weights).max() > 0.1 * np.abs(centred).max()

    model = _model(*_SECOND["both axes"])
    del model.graph.node[:2]
    model.graph.node.insert(0, onnx.helper.make_node("MatMul", ["tokens", "h"], ["s0"]))
    model.graph.node.insert(1, onnx.helper.make_node("MatMul", ["s0", "w4"], ["s"]))
    extra = {"tokens": A, "h": h[None], "w4": B}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in extra.items())
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "h"))
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("h", onnx.TensorProto.DOUBLE, ["batch", 5, 7])
    )
    (norm,) = onnxfold.inspect(model)["norms"]
    assert norm["reason"]["code"] == "fiber_broken"
