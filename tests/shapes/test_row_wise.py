"""Inputs without a shape from which a model reads rows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.errors import OnnxfoldError
from onnxfold.shapes.row_wise import width_of_rows
from tests.graphs import weights
from tests.pairs import pairs
from tests.sessions import outputs

_HEAD = "h0 = MatMul(x, W) h = Add(h0, b) "
_TAIL = "p = MatMul(n, V) y = Add(p, c)"
_MEAN = "m = ReduceMean<axes=[-1]>(w) d = Sub(w, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) "
_ROOT = "e = Add(v, eps) r = Sqrt(e) k = Div(d, r) "
_WIDE = "w = Cast<to=11>(h) m = ReduceMean<axes=[-1]>(w) d = Sub(w, m) q = Mul(w, w) "
_NORM = f"w = Identity(h) {_MEAN} {_ROOT} g = Mul(k, gamma) n = Add(g, beta)"
_BODIES = {
    "an operator": f"{_HEAD} n = LayerNormalization(h, gamma, beta) {_TAIL}",
    "spelled": f"{_HEAD} {_NORM} {_TAIL}",
    "in double": f"{_HEAD} {_WIDE} o = ReduceMean<axes=[-1]>(q) mm = Mul(m, m) v = Sub(o, mm) "
    "e = Add(v, wide_eps) r = Sqrt(e) k = Div(d, r) f = Cast<to=1>(k) g = Mul(f, gamma) "
    f"n = Add(g, beta) {_TAIL}",
    "a residual": f"{_HEAD} t = Tanh(h) o = LayerNormalization(h, gamma) n = Add(o, t) {_TAIL}",
}
_SHAPES = ((8,), (4, 8), (2, 3, 8), (1, 2, 2, 8))


def _model(body: str, output: str = "float y", opset: int = 17) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float x) => ({output}) {{ {body} }}'
    )
    for value in (*proto.graph.input, *proto.graph.output):
        if not value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")
    made: dict[str, np.ndarray] = weights(W=(8, 8), V=(8, 3), b=(8,), gamma=(8,), beta=(8,), c=(3,))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    made |= {"eps": np.array(1e-3, np.float32), "wide_eps": np.array(1e-5), "two": np.eye(2, 8)}
    made["two"] = made["two"].astype(np.float32)
    for name, array in made.items():
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return outputs(model, {"x": x})[0]


@pairs(
    body=_BODIES.values(), output=["float y", "float[P,Q,3] y"], target=["onnx", "ort", "kernels"]
)
def test_the_width_is_known_and_any_number_of_axes_runs(
    body: str, output: str, target: str
) -> None:
    model = _model(body, output)
    result = onnxfold.optimize(model, target=target)
    assert result.report["inspect"]["norms"][0]["size"] == 8
    assert len(result.plan.folds) == 1 or "Tanh" in body
    assert "left_out" not in result.report
    assert not result.report["inspect"]["claimed_shapes"]["untrue"]
    (given,) = result.model.graph.input
    assert not given.type.tensor_type.HasField("shape")
    (made,) = result.model.graph.output
    assert made.type.tensor_type.HasField("shape") == ("P" in output)
    for shape in _SHAPES if "P" not in output else _SHAPES[2:3]:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for rows in (x, x + 1000, np.zeros_like(x), np.full_like(x, 3)):
            before, after = _run(model, rows), _run(result.model, rows)
            assert before.shape == after.shape
            # Some twenty roundings of 2^-24, of numbers as large as the largest row.
            bound = 2.0**-17 * (1 + np.abs(rows).max())
            np.testing.assert_allclose(after, before, rtol=0, atol=bound)
    assert not onnxfold.optimize(result.model, target=target, check=None).changed


@pytest.mark.parametrize(
    "body",
    [
        f"{_HEAD} t = Transpose(h) n = LayerNormalization(t, gamma) y = Transpose(n)",
        f"{_HEAD} n = LayerNormalization<axis=1>(h, gamma) {_TAIL}",
        f"{_HEAD} s = Shape(h) n = LayerNormalization(h, gamma) z = Reshape(n, s) y = MatMul(z, V)",
        f"{_HEAD} n0 = LayerNormalization(h, gamma) n = Add(n0, two) {_TAIL}",
        f"{_HEAD} m = ReduceMean<axes=[0]>(h) d = Sub(h, m) n = LayerNormalization(d, gamma) "
        f"{_TAIL}",
        f"{_HEAD} n = LayerNormalization(h, gamma) t = Softmax<axis=0>(n) y = MatMul(t, V)",
    ],
    ids=["Transpose", "axis 1", "Shape", "another axis", "a mean of rows", "Softmax of rows"],
)
def test_what_looks_at_the_axes_in_front_keeps_the_size_unknown(body: str) -> None:
    """With as many axes as the assumption has, some of them would fold, and others be wrong."""
    (row,) = onnxfold.inspect(_model(body))["norms"]
    assert (row["size"], row["foldable"]) == (0, False)
    assert row["reason"]["code"] == "dynamic_fiber"


def test_two_inputs_without_a_shape_are_not_taken_for_rows() -> None:
    """Their sum may have other axes than each."""
    model = _model(_BODIES["an operator"])
    model.graph.input.append(onnx.ValueInfoProto(name="z", type=model.graph.input[0].type))
    model.graph.node[0].input[0] = "xz"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["x", "z"], ["xz"]))
    assert onnxfold.inspect(model)["norms"][0]["reason"]["code"] == "dynamic_fiber"
    with pytest.raises(OnnxfoldError, match="has no shape in the model"):
        onnxfold.verify(model, model)
    model.graph.node.pop(0)
    model.graph.node[0].input[0] = "x"  # now each has rows of its own
    model.graph.node.append(onnx.helper.make_node("Relu", ["z"], ["z1"]))
    read = ir.from_proto(model)
    assert width_of_rows(read, read.graph.inputs[0]) is None
