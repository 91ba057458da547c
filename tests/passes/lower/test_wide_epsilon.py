"""A norm in double keeps its epsilon, which fits no attribute, when it folds."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.pairs import pairs
from tests.passes.affine.affine_graphs import error

_HEAD = "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
_TAIL = "e = Add(v, eps) r = Sqrt(e) q = Div(d, r) g = Mul(q, gamma) y = Add(g, beta)"
_BODIES = {
    "one difference": "c = Mul(d, d) v = ReduceMean<axes=[-1]>(c) ",
    "two differences": "d2 = Sub(h, m) c = Mul(d2, d2) v = ReduceMean<axes=[-1]>(c) ",
    "mean of squares": "c = Mul(h, h) v0 = ReduceMean<axes=[-1]>(c) mm = Mul(m, m) "
    "v = Sub(v0, mm) ",
}


@pairs(body=_BODIES, target=["kernels", "onnx", "ort"], opset=[17, 18])
def test_a_norm_in_double_folds_with_the_epsilon_that_it_has(
    body: str, target: str, opset: int
) -> None:
    made = weights(W=(6, 6), gamma=(6,), beta=(6,)) | {"eps": np.array(1e-5)}
    text = _HEAD + _BODIES[body] + _TAIL
    if opset >= 18:
        text = text.replace("ReduceMean<axes=[-1]>(h)", "ReduceMean(h, last)")
        text = text.replace("ReduceMean<axes=[-1]>(c)", "ReduceMean(c, last)")
        made["last"] = np.array([-1])
    model = graph(text, "double[B,4,6] x", "double[B,4,6] y", made, opset=opset)
    result = onnxfold.optimize(model, target=target, check=0)
    assert len(result.plan.folds) == 1
    assert "left_out" not in result.report
    # Both run in float64: some ten roundings of numbers near 1, divided by a root near 1.
    assert error(model, result.model) < 2.0**-46
    assert "Sub" not in {node.op_type for node in result.model.graph}
    assert not onnxfold.optimize(result.model, target=target, check=None).changed


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("epsilons", [(1.0, 1e-5), (1e-5, 1e-6)])
def test_a_norm_in_float_whose_two_epsilons_have_no_float_as_a_sum_keeps_both(
    epsilons: tuple[float, float], target: str
) -> None:
    """Its spelling without a mean is proved, and other norms are written for the target."""
    made = weights(W=(6, 6), V=(6, 6), gamma=(6,), beta=(6,))
    made |= dict(zip(("eps", "eps2"), map(np.array, epsilons), strict=True))
    body = (
        _HEAD
        + _BODIES["one difference"]
        + _TAIL.replace("e = Add(v, eps)", "f = Add(v, eps) e = Add(f, eps2)").replace("y =", "n =")
        + " t = Tanh(n) k = MatMul(t, V) z = LayerNormalization<epsilon=1e-3>(k, gamma, beta) "
        "y = Tanh(z)"
    )
    stored = {name: array.astype(np.float32) for name, array in made.items()}
    model = graph(body, "float[B,4,6] x", "float[B,4,6] y", stored, opset=17)
    result = onnxfold.optimize(model, target=target)
    assert len(result.plan.folds) == 2
    assert "left_out" not in result.report
    added = [node for node in result.model.graph if set(node.inputs) & _constants(result.model)]
    assert [node.op_type for node in added] == ["Add", "Add"]
    assert not onnxfold.optimize(result.model, target=target, check=None).changed


def _constants(model: ir.Model) -> set[ir.Value | None]:
    return {model.graph.initializers[name] for name in ("eps", "eps2")}


_INSIDE = "h = MatMul(x, W) w = Cast<to=11>(h) m = ReduceMean<axes=[-1]>(w) d = Sub(w, m) "
_ROOT = "e = Add(v, eps) r = Sqrt(e) q = Div(d, r) "
_ENDS = {
    "gamma in the type of the model": "n = Cast<to={to}>(q) g = Mul(n, gamma) y = Add(g, beta)",
    "gamma in double": "g = Mul(q, wide_gamma) n = Add(g, wide_beta) y = Cast<to={to}>(n)",
}


@pairs(body=_BODIES, end=_ENDS, kind=["float", "float16"], target=["kernels", "onnx", "ort"])
def test_a_norm_that_is_computed_in_double_inside_another_model_stays_in_double(
    body: str, end: str, kind: str, target: str
) -> None:
    """Its epsilon stays the double that it is, and its roots and squares have all their digits."""
    dtype, to = {"float": (np.float32, 1), "float16": (np.float16, 10)}[kind]
    made: dict[str, np.ndarray] = {
        name: array.astype(dtype)
        for name, array in weights(W=(6, 6), gamma=(6,), beta=(6,)).items()
    }
    made |= {f"wide_{name}": made[name].astype(np.float64) for name in ("gamma", "beta")}
    text = _INSIDE + _BODIES[body].replace("(h, ", "(w, ").replace(", h)", ", w)") + _ROOT
    text += _ENDS[end].format(to=to)
    made["eps"] = np.array(1e-5)
    model = graph(text, f"{kind}[B,4,6] x", f"{kind}[B,4,6] y", made, opset=17)
    result = onnxfold.optimize(model, target=target)
    assert len(result.plan.folds) == 1
    assert "left_out" not in result.report
    ops = {node.op_type for node in result.model.graph}
    assert "Sub" not in ops
    assert 1e-5 in {array.item() for array in _doubles(result.model) if array.size == 1}
    assert not onnxfold.optimize(result.model, target=target, check=None).changed


def _doubles(model: ir.Model) -> list[np.ndarray]:
    held = (value.const_value for value in model.graph.initializers.values())
    return [each.numpy() for each in held if each is not None and each.dtype is ir.DataType.DOUBLE]
