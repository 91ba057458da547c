"""What other numbers show of u = r * v + s holds of the actual ones, or is not taken for it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import Fiber
from onnxfold.proof import Certificate, tester
from onnxfold.proof.candidates import Correspondence
from onnxfold.proof.neighbourhood import Neighbourhood
from onnxfold.proof.placeholders import PlaceholderRegion
from onnxfold.proof.relation import EQUAL, Float64, Relation
from onnxfold.shapes import infer
from tests.graphs import Array, graph, weights

LAYOUTS = {
    "transpose": "a = Transpose<perm=[0,2,1]>(n) m = Transpose<perm=[0,2,1]>(a) ",
    "heads": "a = Reshape(n, heads) t = Transpose<perm=[0,2,1,3]>(a) "
    "u = Transpose<perm=[0,2,1,3]>(t) m = Reshape(u, whole) ",
    "slice": "p, q = Split<axis=1, num_outputs=2>(n) m = Concat<axis=1>(q, p) ",
}


def _model(layout: str) -> ir.Model:
    made: dict[str, Array] = weights(g=(6,), b=(6,), W=(6, 3), c=(3,))
    body = f"n = LayerNormalization<axis=-1>(x, g, b) {layout}z = MatMul(m, W) y = Add(z, c)"
    if "heads" in layout:
        made |= {"heads": np.array([0, 4, 2, 3]), "whole": np.array([0, 4, 6])}
    return graph(body, "double[B,4,6] x", "double[B,4,3] y", made)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_of_other_numbers_share_a_test(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Relation, Relation | None]] = []
    plain = PlaceholderRegion.resolved

    def seen(self: PlaceholderRegion, found: Relation) -> Relation | None:
        told.append((found, plain(self, found)))
        return told[-1][1]

    monkeypatch.setattr(PlaceholderRegion, "resolved", seen)
    result = onnxfold.optimize(_model(LAYOUTS[layout]), check=0)
    assert result.report["proof"]["passed"]
    assert len(result.plan.fusions) == 1
    assert told
    assert all(relation is not None for _, relation in told)


def test_numbers_that_are_none_of_them_are_not_read() -> None:
    r, s = np.array([2.0, 3.0]), np.array([5.0, 7.0])
    made = Relation(np.array([1.25, -1.5]), np.array([1.75, -2.0]))
    other = PlaceholderRegion(region=None, placeholders=made, actual=Relation(r, s))  # type: ignore[arg-type]
    assert _numbers(other.resolved(Relation(np.array([-1.5, 1.25, 1.25]), np.array([-2.0])))) == (
        [3.0, 2.0, 2.0], [7.0],
    )  # fmt: skip
    for broken in (
        Relation(fiber=Fiber(())),  # no line at all
        Relation(np.array([1.5, 1.25]), np.array([-2.0])),  # an absolute value
        Relation(np.array([1.25]), np.array([3.5])),  # twice a shift
        Relation(np.array([1.25]), np.array([1.75]), reverse=True),
    ):
        assert other.resolved(broken) is None


def _numbers(relation: Relation | None) -> tuple[list[float], list[float]]:
    assert relation is not None
    assert relation.r is not None
    assert relation.s is not None
    r: Float64 = relation.r
    return r.tolist(), relation.s.tolist()


def test_without_a_shift_none_is_read() -> None:
    """A shift of 0 stays one: where beta is 0, padding with zeros lets gamma pass."""
    made: dict[str, Array] = weights(g=(4,), W=(3, 4, 3))
    body = "n = LayerNormalization<axis=-1>(x, g) t = Transpose<perm=[0,2,1]>(n) "
    body += "p = Pad(t, pads) y = Conv(p, W)"
    made["pads"] = np.array([0, 0, 1, 0, 0, 1])
    model = graph(body, "double[B,5,4] x", "double[B,3,5] y", made)
    result = onnxfold.optimize(model, check=0)
    assert result.report["proof"]["passed"]
    assert len(result.plan.fusions) == 1


def test_norms_that_lose_other_gammas_and_betas_share_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, plain = [], tester._relation

    def seen(asked: tester._Question) -> Relation | None:
        lines.append(asked.lines)
        return plain(asked)

    monkeypatch.setattr(tester, "_relation", seen)
    layers = 5
    made: dict[str, Array] = {}
    body = "x0 = Identity(x)"
    for n in range(layers):
        own = weights(g=(6,), b=(6,), W=(6, 6), c=(6,))
        made |= {f"{name}{n}": array * (n + 1) for name, array in own.items()}
        body += f" n{n} = LayerNormalization<axis=-1>(x{n}, g{n}, b{n})"
        body += f" z{n} = MatMul(n{n}, W{n}) a{n} = Add(z{n}, c{n}) x{n + 1} = Tanh(a{n})"
    model = graph(f"{body} y = Identity(x{layers})", "double[B,6] x", "double[B,6] y", made)
    result = onnxfold.optimize(model, check=0)
    assert result.report["proof"]["passed"]
    assert len(result.plan.fusions) == layers
    assert 0 < sum(lines) < layers


def test_other_numbers_than_those_at_hand_are_not_believed() -> None:
    """Placeholders are not clipped, but actual numbers are: their own draw distinguishes them."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (double[B,4] x) => (double[B,4] y)
        <double[4] w = {0.5, 5.0, -7.0, 1.0}, double low = {-3.0}, double high = {3.0}> {"""
    old, new = (
        infer(ir.from_proto(onnx.parser.parse_model(f"{text} {body} y = Tanh(n) }}")))
        for body in ("c = Clip(w, low, high) n = Mul(x, c)", "n = Identity(x)")
    )
    u, v = (view.by_ref() for view in (old, new))
    match = Correspondence(old, new, Certificate())
    near = Neighbourhood(old, new, match, {(u["x"], v["x"]): EQUAL}, spelled=True)
    region = near.region(u["n"], v["n"], (2, 2, False), set())
    found = tester.Tester().relation(region, (), 0.0)
    assert found is not None
    assert found.r is not None
    np.testing.assert_allclose(found.r, [[0.5, 3.0, -3.0, 1.0]], rtol=2.0**-38)  # as of a fit
