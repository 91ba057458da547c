"""One number through rotary embeddings, and the law that it rests on, in float64."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.graph import ModelInfo
from onnxfold.passes.scales import writer as back
from onnxfold.passes.scales.constant_operands import carries_factor
from onnxfold.shapes import infer
from tests.graphs import Array, graph
from tests.passes.affine.affine_graphs import error
from tests.passes.scales.scale_graphs import absorb, assert_moved, scale_model

QUERIES = "m = MatMul(x, H) a = Add(m, hb) r = Reshape(a, heads4) u = Transpose<perm=[0,2,1,3]>(r) "
TURNED = (
    "c = Mul(u, cos) u1 = Slice(u, zero, two, last) u2 = Slice(u, two, end, last) n2 = Neg(u2) "
    "w = Concat<axis=-1>(n2, u1) z = Mul(w, sin) q = Add(c, z) "
)
PAIRS = (
    "c = Mul(u, cos) u1 = Slice(u, zero, end, last, two) u2 = Slice(u, one, end, last, two) "
    "n2 = Neg(u2) e1 = Unsqueeze(n2, last) e2 = Unsqueeze(u1, last) "
    "w = Concat<axis=-1>(e1, e2) f = Reshape(w, pairs) z = Mul(f, sin) q = Add(c, z) "
)
PARTIAL = (
    "u0, rest = Split<axis=3, num_outputs=2>(u) c = Mul(u0, cos2) "
    "j1, j2 = Split<axis=3, num_outputs=2>(u0) n2 = Neg(j2) w = Concat<axis=-1>(n2, j1) "
    "z = Mul(w, sin2) q0 = Add(c, z) q = Concat<axis=-1>(q0, rest) "
)
KEY = "n = MatMul(x, H2) nr = Reshape(n, heads4) t = Transpose<perm=[0,2,3,1]>(nr) "
SLICES = (
    "m = MatMul(x, QKV) a = Add(m, qkv) u = Slice(a, zero, four1, two) "
    "key = Slice(a, four1, eight1, two) "
)
MORE: dict[str, Array] = {
    "H2": np.random.default_rng(1).standard_normal((6, 12)),
    "cos2": np.random.default_rng(2).standard_normal((4, 2)),
    "sin2": np.random.default_rng(3).standard_normal((4, 2)),
    "pairs": np.array([0, 0, 0, -1]),
    "of_elements": np.arange(1.0, 5.0),
    "hg": np.arange(1.0, 13.0),
}
ROTARY = {
    "halves": QUERIES + TURNED + "y = Mul(q, eight)",
    "pairs of neighbours": QUERIES + PAIRS + "y = Mul(q, eight)",
    "some of the elements": QUERIES + PARTIAL + "y = Mul(q, eight)",
    "scores": QUERIES + TURNED + KEY + "s = MatMul(q, t) y = Div(s, eight)",
    "the angles are activations": QUERIES
    + "g0 = Sigmoid(x) g1 = ReduceMean(g0) "
    + TURNED.replace("sin)", "g1)")
    + "y = Mul(q, eight)",
    "queries are normalised": QUERIES.replace("a = ", "a0 = ").replace(
        "r = ", "nn = LpNormalization<axis=-1, p=2>(a0) a = Mul(nn, hg) r = "
    )
    + TURNED
    + "y = Mul(q, eight)",
    "q is a slice": SLICES + TURNED + "p = Mul(q, eight) o = Softmax(key) y = Add(p, o)",
}


@pytest.mark.parametrize("case", ROTARY)
def test_a_number_behind_a_rotary_embedding_moves_into_the_weight_before_it(case: str) -> None:
    assert_moved(ROTARY[case], 1, MORE)


END = "y = Mul(q, eight)"
STAYS = {
    "a factor per channel": QUERIES + TURNED + "y = Mul(q, of_elements)",
    "an angle is added": QUERIES + TURNED.replace("Mul(u, cos)", "Add(u, cos)") + END,
    "one half is squared": QUERIES + TURNED.replace("Neg(u2)", "Mul(u2, u2)") + END,
    "one half is another's": QUERIES + KEY + TURNED.replace("Slice(u, two", "Slice(t, two") + END,
    "others read the queries": QUERIES + TURNED + "e = Mul(q, eight) y = Sub(e, u)",
    "a half is read again": QUERIES + TURNED + "e = Mul(q, eight) o = Softmax(u1) "
    "o2 = ReduceSum(o) y = Add(e, o2)",
    "something else is added": QUERIES + TURNED.replace("Add(c, z)", "Sum(c, z, cos)") + END,
}


@pytest.mark.parametrize("case", STAYS)
def test_a_number_that_does_not_pass_on_every_way_stays(case: str) -> None:
    assert not absorb(scale_model(STAYS[case], MORE)).fusions


@pytest.mark.parametrize("case", ["an angle is added", "one half is squared"])
def test_the_proof_follows_every_way_by_itself(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that takes any sum for a rotary embedding is found out."""
    model = scale_model(STAYS[case], MORE)
    query = next(node.outputs[0].name for node in model.graph if node.op_type == "Transpose")

    def anything(view: ModelInfo, value: ir.Value) -> ir.Value | None:
        return next((known for ref, known in view.by_ref().items() if ref == query), None)

    monkeypatch.setattr(back, "common_source", anything)
    done = absorb(model)
    assert len(done.fusions) == 1
    assert error(model, done.model) > 1e-2
    assert not done.proof.passed


NODES = (
    "y = Add(p, o)", "y = Sub(p, o)", "y = Sum(p, o, r)", "y = Mul(p, o)", "y = Div(p, o)",
    "y = Concat<axis=1>(p, o)", "y = MatMul(p, o)", "y = com.microsoft.FusedMatMul(p, o)",
    "y = Neg(p)", "y = Identity(p)", "y = Transpose(p)", "y = Reshape(p, shape)",
    "y = Slice(p, start, stop)", "y, z = Split<axis=1, num_outputs=2>(p)", "y = Gather(p, start)",
    "y = Expand(p, shape3)", "y = Tile(p, larger)", "y = Flatten(p)", "y = Unsqueeze(p, start)",
    "y = Cast<to=1>(p)", "y = Cast<to=7>(p)", "y = Softmax(p)", "y = Tanh(p)", "y = Max(p, o)",
    "y = Pow(p, o)", "y = ReduceMax(p)",
)  # fmt: skip
SHAPES = {"shape": np.array([-1]), "start": np.array([1]), "stop": np.array([2])}
SHAPES |= {"larger": np.array([2, 1]), "shape3": np.array([3, 4, 4])}
# Not in the table, though what they do to positive numbers is linear.
UNUSED = ("Max", "ReduceMax")


@pytest.mark.parametrize("text", NODES)
def test_inputs_that_carry_a_factor_together_are_those_of_the_numbers(text: str) -> None:
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    names = [word for word in words if word in ("p", "o", "r")]
    inputs = ", ".join(f"double[4,4] {name}" for name in names)
    model = graph(text, inputs, "double[] y", SHAPES)
    model.graph.outputs[0].shape = model.graph.outputs[0].type = None
    (node,) = model.graph
    view = infer(model)
    rng = np.random.default_rng(0)
    feeds = {name: rng.uniform(0.5, 2.0, (4, 4)) for name in names}
    told = run(model, feeds, precision=Precision.FLOAT64)["y"]
    assert view.rank(node.outputs[0]) == told.ndim
    for count in range(1, len(names) + 1):
        for some in combinations(range(len(names)), count):
            more = feeds | {names[i]: 2.5 * feeds[names[i]] for i in some}
            result = run(model, more, precision=Precision.FLOAT64)["y"]
            # Products and sums of a few numbers: 16 roundings of 2^-53 at most.
            linear = bool(np.allclose(result, 2.5 * told, rtol=2.0**-48, atol=0))
            assert carries_factor(view, node, some) == (linear and node.op_type not in UNUSED)
