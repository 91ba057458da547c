"""States of loops that no body declares a shape of, as of scripted PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.shapes import infer
from tests.graphs import weights

_STEP = (
    "m = MatMul(s, W) a = Add(m, b) n = LayerNormalization<axis=-1>(a, gamma, beta) "
    "p = MatMul(n, V) "
)
_BODIES = {
    "kept": (f"{_STEP} t = Add(p, c)", ["?", 8]),
    "a residual": (f"{_STEP} t = Add(s, p)", ["?", 8]),
    "longer": (f"{_STEP} t = Concat<axis=0>(s, p)", ["?", 8]),
    "turned": (f"{_STEP} t = Transpose<perm=[1,0]>(p)", ["?", "?"]),
    "of another rank": (f"{_STEP} t = Unsqueeze(p, front)", None),
    "of a rank that nothing tells": (f"{_STEP} t = Squeeze(p, axes)", None),
}


def _model(body: str, initial: str = "double[B,8] x", opset: int = 17) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({initial}, int64 count, int64[k] axes) => (double[P,Q] y) {{
            y = Loop (count, go, x) <body = step (int64 i, bool more, double[1] s)
                => (bool on, double[1] t) {{ {body} on = Identity(more) }}>
        }}"""
    )
    (loop,) = proto.graph.node
    inside = loop.attribute[0].g
    for value in (inside.input[2], inside.output[1]):
        value.type.tensor_type.ClearField("shape")
    made = weights(W=(8, 8), V=(8, 8), b=(8,), gamma=(8,), beta=(8,), c=(8,))
    made |= {"go": np.array(True), "front": np.array([0])}
    for name, array in made.items():
        if name == "go" or any(name in node.input for node in inside.node):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def _shape(proto: onnx.ModelProto, name: str) -> list[object] | None:
    view = infer(ir.from_proto(proto))
    (value,) = (value for ref, value in view.by_ref().items() if ref.partition("@")[0] == name)
    shape = view.shape(value)
    return None if shape is None else [dim if isinstance(dim, int) else "?" for dim in shape]


@pytest.mark.parametrize(("body", "shape"), _BODIES.values(), ids=_BODIES)
def test_a_state_keeps_what_each_step_gives_it_again(body: str, shape: list[object] | None) -> None:
    proto = _model(body)
    assert _shape(proto, "s") == shape
    assert _shape(proto, "m") == (None if shape is None else ["?", 8])


def test_a_first_size_that_grows_is_not_kept() -> None:
    proto = _model(_BODIES["longer"][0], "double[2,8] x")
    assert _shape(proto, "s") == ["?", 8]
    proto = _model(_BODIES["kept"][0], "double[2,8] x")
    assert _shape(proto, "s") == [2, 8]


def test_the_states_of_a_scan_and_of_a_loop_in_a_loop_are_known() -> None:
    scan = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B,8] x, float[n,B,8] e, int64 count, bool go) => (float[P,Q] y, float[n,P,Q] z) {
            y, z = Scan <num_scan_inputs = 1, body = step (float[1] s, float[1] k)
                => (float[1] t, float[1] o) {
                    q = Tanh(s)
                    u = Loop (count, go, q) <body = inner (int64 i, bool more, float[1] v)
                        => (bool on, float[1] w) { w = Exp(v) on = Identity(more) }>
                    t = Neg(u) o = Abs(u)
                }> (x, e)
        }"""
    )
    outer = scan.graph.node[0].attribute
    body = next(attribute.g for attribute in outer if attribute.HasField("g"))
    inner = next(a.g for node in body.node for a in node.attribute if a.HasField("g"))
    for value in (body.input[0], *body.output, inner.input[2], inner.output[1]):
        value.type.tensor_type.ClearField("shape")
    assert _shape(scan, "q") == _shape(scan, "w") == ["?", 8]


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("body", ["kept", "a residual", "longer", "turned", "of another rank"])
def test_a_norm_in_a_loop_folds_where_its_width_is_known(body: str, target: str) -> None:
    proto = _model(_BODIES[body][0])
    known = body != "of another rank"
    model = ir.from_proto(proto)
    result = onnxfold.optimize(model, target=target, check=0)
    assert len(result.plan.folds) == known
    assert "left_out" not in result.report
    inside = next(node for node in result.model.graph if node.op_type == "Loop").attributes["body"]
    assert inside.as_graph().inputs[2].shape is None  # as it was: what was found is not written
    if not known:
        (row,) = result.report["inspect"]["norms"]
        assert row["reason"]["code"] == "dynamic_fiber"
