"""Norms whose exponent, axes or epsilon callers may replace: initializers that are inputs too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.refusal import EXPLANATIONS, RefusalCode
from tests.graphs import graph, weights
from tests.pairs import pairs

_MEAN = "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
_NORMS = {
    "TorchScript": f"{_MEAN} q = Pow(d, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) "
    "r = Sqrt(e) k = Div(d, r) g = Mul(k, gamma) n = Add(g, beta) ",
    "dynamo": "m = ReduceMean(h, last) d = Sub(h, m) q = Mul(d, d) v = ReduceMean(q, last) "
    "e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) k = Mul(d, i) g = Mul(k, gamma) "
    "n = Add(g, beta) ",
    "tf2onnx": f"{_MEAN} q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
    "i = Reciprocal(r) j = Mul(i, gamma) k = Mul(h, j) l = Mul(m, j) b = Sub(beta, l) "
    "n = Add(k, b) ",
    "RMS": "q = Pow(h, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
    "k = Div(h, r) n = Mul(k, gamma) ",
}
_DTYPES = {"float": np.float32, "float16": np.float16, "double": np.float64}


def _model(norm: str, kind: str, overridable: tuple[str, ...] = ()) -> ir.Model:
    body = f"h = MatMul(x, W) {_NORMS[norm]} y = MatMul(n, V)"
    made = weights(W=(6, 6), V=(6, 3), gamma=(6,), beta=(6,))
    made |= {"two": np.array(2.0), "eps": np.array(2.0**-10)}
    read = {name: a.astype(_DTYPES[kind]) for name, a in made.items() if f"{name})" in body
            or f"({name}," in body or f", {name})" in body}  # fmt: skip
    if "last" in body:
        read["last"] = np.array([-1])
    opset = 18 if "last" in body else 13
    model = graph(body, f"{kind}[B,4,6] x", f"{kind}[B,4,3] y", read, opset=opset)
    model.graph.inputs.extend(
        model.graph.initializers[name] for name in overridable if name in read
    )
    return model


@pairs(
    names=[("eps",), ("two", "last"), ("W", "V", "gamma", "beta", "two", "eps", "last")],
    norm=_NORMS,
    kind=_DTYPES,
)
def test_the_reason_is_named(names: tuple[str, ...], norm: str, kind: str) -> None:
    model = _model(norm, kind, names)
    given = {value.name for value in model.graph.inputs} & {"two", "eps", "last", "gamma", "beta"}
    (row,) = onnxfold.inspect(model)["norms"]
    if not given & {"two", "eps", "last"}:
        return  # its constants are its own: tests/passes/centring/test_plan.py has its weights
    assert row["reason"]["code"] == RefusalCode.OVERRIDABLE_INITIALIZER
    assert set(row["reason"]["nodes"]) == given
    assert "remove" in row["reason"]["sentence"]
    for target in ("onnx", "ort", "kernels"):
        result = onnxfold.optimize(model, target=target)
        assert not result.plan.folds
        ops = [node.op_type for node in result.model.graph]
        assert ops == [node.op_type for node in model.graph]
    assert "inputs" in EXPLANATIONS[RefusalCode.OVERRIDABLE_INITIALIZER].remedy


def test_before_ir_version_4_every_initializer_is_an_input() -> None:
    model = _model("TorchScript", "float", ("W", "V", "gamma", "beta", "two", "eps"))
    model.ir_version = 3
    assert len(onnxfold.optimize(model).plan.folds) == 1


@pytest.mark.parametrize("number", [2.5, 1e-5])
def test_what_a_caller_gives_is_computed(number: float) -> None:
    """Another exponent, or epsilon: a fold of the norm of the defaults would break the model."""
    name = "two" if number > 1 else "eps"
    model = _model("RMS", "float", ("two", "eps"))
    result = onnxfold.optimize(model, target="ort")
    onnx.checker.check_model(ir.to_proto(result.model))
    assert name in {value.name for value in result.model.graph.inputs}
    assert {"Pow", "Sqrt"} <= {node.op_type for node in result.model.graph}
