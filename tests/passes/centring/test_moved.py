"""A stream that moves without being centred: the norms before a gate fold, those after it stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.options import Folding
from onnxfold.passes.centring.plan import Fold
from onnxfold.target import Target
from tests.graphs import Array, graph, weights
from tests.soundness.folding import evaluate, fold, forced, relative_error

# float64 throughout: some hundred roundings of 2^-53.
BOUND = 1e-12
_AFTER = "y = MatMul(n2, U)"
_ENDS = {
    "activation": "w = Relu(f)",
    "gate": "s = Sigmoid(u) w = Mul(f, s)",
    "input": "w = Identity(u)",
    "norm": "w = LayerNormalization<axis=-1>(f, g3, b3)",
}


def _model(
    end: str = "activation", after: str = "y = MatMul(n2, U)", outputs: str = ""
) -> onnx.ModelProto:
    body = (
        "p = MatMul(u, W) h = Add(p, b) n1 = LayerNormalization<axis=-1>(h, g1, b1) "
        f"q = MatMul(n1, V) f = Add(q, c) {_ENDS[end]} h2 = Add(h, w) "
        f"n2 = LayerNormalization<axis=-1>(h2, g2, b2) {after}"
    )
    constants = weights(W=(6, 6), V=(6, 6), U=(6, 6))
    constants |= weights(**dict.fromkeys(("b", "c", "g1", "b1", "g2", "b2", "g3", "b3"), (6,)))
    model = graph(body, "double[B,6] u", f"double[B,6] y{outputs}", constants, opset=17)
    return ir.to_proto(model)


def _rows(rng: np.random.Generator) -> Array:
    """Rows of every kind: constant, far from 0, zero, huge and tiny."""
    x = rng.standard_normal((8, 6))
    x[1], x[2], x[3] = 3.0, x[3] + 1e3, 0.0
    x[4] *= 1e6
    x[5] *= 1e-6
    return x


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("end", _ENDS)
def test_a_norm_before_what_cannot_be_centred_folds_and_the_one_after_it_stays(
    end: str, target: Target
) -> None:
    model = _model(end)
    folded = fold(model, target, fuse_affine=True)
    of_branch = {"norm": ({"w"}, {"V", "c"})}.get(end, (set[str](), set[str]()))
    assert {f.output for f in folded.plan.folds} == {"n1"} | of_branch[0]
    assert {weight.value for weight in folded.plan.weights} == {"W", "b"} | of_branch[1]
    assert not folded.plan.insertions
    assert folded.proof.passed
    reason = folded.findings.refusals["n2"]
    assert "; it stays, and does not see that its input moves" in reason.sentence
    feeds = {"u": _rows(np.random.default_rng(0))}
    assert relative_error(evaluate(model, feeds), evaluate(folded.model, feeds)) < BOUND


@pytest.mark.parametrize(
    ("after", "outputs"),
    [
        ("y = MatMul(n2, U) z = Sigmoid(h2)", ", double[B,6] z"),
        ("y = MatMul(n2, U) z = MatMul(h2, U)", ", double[B,6] z"),
        ("y = MatMul(n2, U)", ", double[B,6] h2"),
        ("r = Mul(h2, h2) z = ReduceMean<axes=[-1]>(r) y = MatMul(n2, U)", ", double[B,1] z"),
    ],
    ids=["activation", "layer", "output", "square"],
)
def test_nothing_moves_where_somebody_sees_it(after: str, outputs: str) -> None:
    model = _model(after=after, outputs=outputs)
    assert not fold(model, allow_split_bytes=0).plan.folds
    wrong = forced(model, fold(_model(), allow_split_bytes=0).plan)
    assert not wrong.proof.passed
    feeds = {"u": _rows(np.random.default_rng(0))}
    assert relative_error(evaluate(model, feeds), evaluate(wrong.model, feeds)) > 1e-3


def test_a_norm_whose_input_only_moves_may_not_fold() -> None:
    model = _model()
    plan = fold(model, allow_split_bytes=0).plan
    wrong = forced(model, replace(plan, folds=(*plan.folds, Fold("n2", "n2"))))
    assert not wrong.proof.passed
    feeds = {"u": _rows(np.random.default_rng(0))}
    assert relative_error(evaluate(model, feeds), evaluate(wrong.model, feeds)) > 1e-3


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_changes_nothing(target: str) -> None:
    once = onnxfold.optimize(_model(), target=target, fold=Folding.ALWAYS, check=0)
    assert once.changed
    assert not onnxfold.optimize(once.model, target=target, fold="always", check=0).changed


def test_two_fibers_move_alone_and_together() -> None:
    """Centred along channels, and moved along tokens by a norm over both."""
    body = (
        "h = MatMul(u, W) n1 = LayerNormalization<axis=-1>(h, g1) q = MatMul(n1, V) w = Relu(q) "
        "h2 = Add(h, w) n2 = LayerNormalization<axis=-1>(h2, g2) "
        "t = Transpose<perm=[0, 2, 1]>(h2) n3 = LayerNormalization<axis=-1>(t, g3) "
        "y = Transpose<perm=[0, 2, 1]>(n3)"
    )
    constants = weights(W=(6, 6), V=(6, 6), g1=(6,), g2=(6,), g3=(4,))
    shapes = "double[B,4,6] u", "double[B,4,6] y, double[B,4,6] n2"
    model = ir.to_proto(graph(body, *shapes, constants, opset=17))
    assert not fold(model, allow_split_bytes=0).plan.folds  # n3 sees what differs between tokens


def test_the_norm_that_stays_rounds_no_more_than_twice_as_much() -> None:
    """In float32, with means of the two parts that cancel: the worst case for taking one away."""
    rng = np.random.default_rng(0)
    part = rng.standard_normal((1000, 64))
    errors = {}
    for name, first, second in (("before", part + 1e3, part - 1e3), ("after", part, part - 1e3)):
        exact = first + second
        narrow = first.astype(np.float32) + second.astype(np.float32)
        errors[name] = np.abs(_centred(narrow.astype(np.float64)) - _centred(exact)).max()
    assert errors["after"] <= 2 * errors["before"]


def _centred(x: Array) -> Array:
    return np.asarray(x - x.mean(-1, keepdims=True))
