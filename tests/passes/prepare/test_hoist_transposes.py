"""Norms whose statistics are in one layout and whose end is in another, as tf2onnx leaves them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfold
from onnxfold.norms import NormKind, find_norms
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.shapes import infer

# Channels first, the gamma with them; behind two Transposes the end, the beta with it.
STATISTICS = """
    u = ReduceMean<axes=[1]>(x)
    t = Transpose<perm=[0,2,1]>(x)
    w = Reshape(u, last)
    minus = Neg(w)
    back = Reshape(w, first)
    d = Sub(x, back)
    q = Mul(d, d)
    v = ReduceMean<axes=[1]>(q)
    ve = Add(v, e)
    s = Sqrt(ve)
    r = Reciprocal(s)
    k = Mul(r, g)
"""
END = """
    kt = Transpose<perm=[0,2,1]>(k)
    a = Mul(t, kt)
    m = Mul(minus, kt)
    c = Add(m, b)
    y = Add(a, c)
"""


def _model(body: str, inputs: str = "float[B,6,5] x", **other: object) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> model ({inputs}) => (float[B,5,6] y) {{{body}}}'
    )
    constants = {
        "last": np.array([-1, 5, 1]),
        "first": np.array([-1, 1, 5]),
        "e": np.full((1, 1, 1), 1e-5, np.float32),
        "g": rng.normal(1, 0.3, (1, 6, 1)).astype(np.float32),
        "b": rng.normal(size=(1, 1, 6)).astype(np.float32),
    }
    constants.update((name, np.asarray(array)) for name, array in other.items())
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items() if name in body
    )
    return proto


def test_a_norm_of_two_layouts_becomes_one_of_the_layout_of_its_end() -> None:
    proto = _model(STATISTICS + END)
    prepared = prepare(infer(ir.from_proto(proto)).model, inferred=True)
    (site,) = find_norms(prepared.info)
    assert (site.kind, site.fiber.axes) == (NormKind.LAYER_NORM, (2,))
    assert site.input.producer().op_type == "Transpose"
    assert site.output.name == "y"
    assert {"Reshape->w", "Reshape->back", "Transpose->kt"} <= set(prepared.moved)
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 6, 5)).astype(np.float32)}
    (before,) = ReferenceEvaluator(proto).run(None, feeds)
    (after,) = ReferenceEvaluator(ir.to_proto(prepared.model)).run(None, feeds)
    # The same operations on the same numbers, but for the order of the sums of six.
    assert np.max(np.abs(after - before)) <= 8 * 6 * np.finfo(np.float32).eps


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_it_becomes_one_operator_and_a_second_run_changes_nothing(tmp_path, target: str) -> None:
    path, once, twice = (tmp_path / f"{name}.onnx" for name in ("model", "once", "twice"))
    onnx.save(_model(STATISTICS + END), path)
    assert onnxfold.optimize(path, once, target=target).verification.passed
    assert len(onnx.load(once).graph.node) == 2
    assert not onnxfold.optimize(once, twice, target=target).changed


@pytest.mark.parametrize(
    ("old", "new", "stays", "constants"),
    [
        ("(u, last)", "(u, other)", "w", {"other": [1, -1, 1]}),
        ("Transpose<perm=[0,2,1]>(x)", "Reshape(x, six)", "w", {"six": [-1, 5, 6]}),
        ("(r, g)", "(r, g)", "kt", {"g": np.ones((6, 1), np.float32)}),
        ("(r, g)", "(r, s)", "kt", {}),
        ("(d, d)", "(d, x)", "kt", {}),
        ("v = ReduceMean<axes=[1]>(q)", "v = ReduceMax<axes=[1]>(q)", "kt", {}),
    ],
    ids=["other shape", "no such layout", "short gamma", "computed factor", "no square", "no mean"],
)
def test_what_only_looks_like_it_stays(
    old: str, new: str, stays: str, constants: dict[str, object]
) -> None:
    proto = _model((STATISTICS + END).replace(old, new), **constants)
    prepared = prepare(infer(ir.from_proto(proto)).model, inferred=True)
    made = {node.outputs[0].name: node.op_type for node in prepared.model.graph}
    assert made[stays] == {"w": "Reshape", "kt": "Transpose"}[stays]
