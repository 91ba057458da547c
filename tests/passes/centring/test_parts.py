"""Norms of q and k after a joint product of q, k and v: a part of its weight is centered.

Every layout is folded, proved, and compared with the original in float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import Fiber
from onnxfold.graph.constants import constant_tensor
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.decide import decide
from onnxfold.passes.findings import paper_counts
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.target import Target
from tests.graphs import Array, graph, weights
from tests.soundness.folding import evaluate, fold, forced, relative_error

B, T, C, H, D = 2, 3, 5, 2, 4  # H heads of D channels
_NORM = "LayerNormalization<axis=-1>"
_INTEGERS = {
    "stacked": [0, 0, H, 3, D], "parted": [0, 0, 3, H, D], "heads": [0, 0, -1, D],
    "rows": [-1, C], "back": [B, T, 3 * H * D], "threes": [8, 8, 8], "unlike": [16, 8, 8],
    "one_two": [8, 16], "pair": [8, 8], "ones": [1, 1, 1], "i0": 0, "i1": 1, "i2": 2,
    "n0": [0], "n2": [2], "n3": [3], "n2H": [2 * H], "n3H": [3 * H], "n4H": [4 * H],
    "nHD": [H * D], "n2HD": [2 * H * D], "n3HD": [3 * H * D], "nodd": [H * D - 1],
    "axes": [0, 1, 2], "at0": [0, 0, 0], "at1": [0, 0, H * D], "at2": [0, -T, 2 * H * D],
    "to1": [B, T, H * D], "to2": [B, T, 2 * H * D], "to3": [B, 1 << 62, 3 * H * D],
}  # fmt: skip


@dataclass(frozen=True)
class _Case:
    """``body`` computes q and k from s, v with them or not; ``folds``: how many norms do."""

    body: str
    folds: int = 2
    product: str = "s = MatMul(x, W) h = Add(s, b)"
    wide: int = 3 * H * D
    transposed: bool = False


_NORMS = f"yq = {_NORM}(q, gq, bq) yk = {_NORM}(k, gk) "
_Q, _K = f"yq = {_NORM}(q, gq, bq) ", f"yk = {_NORM}(k, gk) "
_PICKED = "q = Gather<axis=3>(r, i0) k = Gather<axis=3>(r, i1) v = Gather<axis=3>(r, i2) "
_UNBOUND = (
    "r = Reshape(h, parted) t = Transpose<perm=[2,0,3,1,4]>(r) "
    "a, c, e = Split<axis=0>(t, ones) q = Squeeze(a, n0) k = Squeeze(c, n0) v = Squeeze(e, n0) "
)
_SLICED = (
    "sq = Slice(h, n0, nHD, n2) sk = Slice(h, nHD, n2HD, n2) sv = Slice(h, n2HD, n3HD, n2)"
    " q = Reshape(sq, heads) k = Reshape(sk, heads) v = Reshape(sv, heads) "
)
_ALL_AXES = (  # as jax2onnx writes jnp.split
    "sq = Slice(h, at0, to1, axes) sk = Slice(h, at1, to2, axes) sv = Slice(h, at2, to3, axes)"
    " q = Reshape(sq, heads) k = Reshape(sk, heads) v = Reshape(sv, heads) "
)
_GROUPED = "sq, sk, v = Split<axis=-1>(h, unlike) q = Reshape(sq, heads) k = Reshape(sk, heads) "

_FOLDING = {
    "heads of three, as Persimmon": _Case("r = Reshape(h, stacked) " + _PICKED + _NORMS),
    "three of heads, as ViT": _Case(_UNBOUND + _NORMS),
    "slices of the channels": _Case(_SLICED + _NORMS),
    "slices of the channels, by all axes": _Case(_ALL_AXES + _NORMS),
    "fewer heads of keys": _Case(_GROUPED + _NORMS, wide=4 * H * D),
    "fewer heads of keys, cut by heads": _Case(
        "r = Reshape(h, heads) q = Slice(r, n0, n2H, n2) k = Slice(r, n2H, n3H, n2) "
        "n = Slice(r, n3H, n4H, n2) v = Relu(n) " + _NORMS,
        wide=4 * H * D,
    ),
    "q alone": _Case("r = Reshape(h, stacked) " + _PICKED + _Q + "yk = Relu(k) ", folds=1),
    "q, k and v": _Case("r = Reshape(h, stacked) " + _PICKED.replace("v =", "n =") + _NORMS
                        + f"v = {_NORM}(n, gk) ", folds=3),
    "cut twice": _Case(
        "sq, kv = Split<axis=-1>(h, one_two) sk, v = Split<axis=-1>(kv, pair) "
        "q = Reshape(sq, heads) k = Reshape(sk, heads) " + _NORMS,
    ),
    "one norm of all heads": _Case(
        "q, k, v = Split<axis=-1>(h, threes) "
        f"yq = {_NORM}(q, gw, bw) yk = {_NORM}(k, gw) ",
    ),
    "no bias": _Case("r = Reshape(h, stacked) " + _PICKED + _NORMS, product="h = MatMul(x, W)"),
    "a bias per channel behind the reshape": _Case(
        "p = Reshape(h, stacked) r = Add(p, bs) " + _PICKED + _NORMS, product="h = MatMul(x, W)"
    ),
    "a Gemm of rows": _Case(
        "r = Reshape(h, stacked) " + _PICKED + _NORMS,
        product="xr = Reshape(x, rows) g = Gemm<transB=1>(xr, W, b) h = Reshape(g, back)",
        transposed=True,
    ),
}  # fmt: skip
_STAYING = {
    "a cut within a head": _Case(
        "sq = Slice(h, n0, nodd, n2) q = Slice(sq, n3, nHD, n2) "
        "v = Slice(h, nHD, n3HD, n2) yk = Relu(v) " + _Q,
    ),
    "all is read as well": _Case("r = Reshape(h, stacked) " + _PICKED.replace("v =", "n =")
                                 + "v = Sigmoid(h) " + _NORMS),
    "an activation before the cut": _Case(
        "a = Relu(h) r = Reshape(a, stacked) " + _PICKED + _NORMS
    ),
    "a bias that q, k and v share": _Case(
        "p = Reshape(h, stacked) r = Add(p, bd) " + _PICKED + _NORMS, product="h = MatMul(x, W)"
    ),
    "overlapping parts": _Case(
        "sq = Slice(h, n0, n2HD, n2) v = Slice(h, nHD, n3HD, n2) q = Reshape(sq, heads) "
        + _Q + "yk = Relu(q) "
    ),
    "an index that is not known": _Case(
        "r = Reshape(h, stacked) q = Gather<axis=3>(r, i0) k = Gather<axis=3>(r, which) "
        "v = Gather<axis=3>(r, i2) yk = Relu(k) " + _Q,
    ),
}  # fmt: skip


def _model(case: _Case, dtype: str = "float") -> ir.Model:
    made = weights(
        W=(C, case.wide), b=(case.wide,), gq=(D,), bq=(D,), gk=(D,), gw=(H * D,), bw=(H * D,),
        bd=(D,), bs=(H, 3, D),
    )  # fmt: skip
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    made = {name: (array + 0.3).astype(kind) for name, array in made.items()}
    if case.transposed:
        made["W"] = made["W"].T.copy()
    made |= {name: np.array(value) for name, value in _INTEGERS.items()}
    text = f"{case.product} {case.body}"
    model = graph(
        text,
        f"{dtype}[{B},{T},{C}] x" + (", int64 which" if "which" in text else ""),
        f"{dtype} yq, {dtype} yk, {dtype} v",
        {name: array for name, array in made.items() if re.search(rf"\b{name}\b", text)},
    )
    for value in model.graph.outputs:
        value.shape = None  # the type alone would show that it has no axes
    return model


def _feeds(dtype: str) -> dict[str, Array]:
    x = np.random.default_rng(1).standard_normal((B, T, C))
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    return {"x": x.astype(kind), "which": np.array(1)}


def _error(before: onnx.ModelProto, after: onnx.ModelProto, dtype: str = "double") -> float:
    names = {value.name for value in before.graph.input}
    feeds = {name: array for name, array in _feeds(dtype).items() if name in names}
    return relative_error(evaluate(before, feeds), evaluate(after, feeds))


@pytest.mark.parametrize("name", _FOLDING)
def test_norms_of_parts_fold(name: str) -> None:
    case = _FOLDING[name]
    model = ir.to_proto(_model(case, "double"))
    folded = fold(model)
    assert folded.proof.passed, folded.proof.failures
    assert len(folded.plan.folds) == folded.proof.folded_norms == case.folds
    assert not folded.plan.insertions
    # One edit for each weight, whatever number of parts is centered.
    assert len({weight.value for weight in folded.plan.weights}) == len(folded.plan.weights)
    # Float64 on both sides; sums of C terms and means of at most H D, in another order.
    assert _error(model, folded.model) <= 64 * 2.0**-52


@pytest.mark.parametrize("name", _STAYING)
def test_what_cannot_be_told_apart_stays(name: str) -> None:
    model = ir.to_proto(_model(_STAYING[name], "double"))
    folded = fold(model)
    assert folded.proof.passed, folded.proof.failures
    centred = [weight for weight in folded.plan.weights if weight.fiber.part is not None]
    assert not centred
    assert not folded.plan.folds
    assert folded.plan.refusals
    assert all(refusal.sentence for _, refusal in folded.plan.refusals)


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
@pytest.mark.parametrize("name", ["heads of three, as Persimmon", "a Gemm of rows"])
def test_only_the_parts_change_and_once(name: str, dtype: str) -> None:
    case = _FOLDING[name]
    model = _model(case, dtype)
    folded = fold(ir.to_proto(model))
    assert folded.proof.passed, folded.proof.failures
    before, after = (_columns(side, case) for side in (model, ir.from_proto(folded.model)))
    wide = before.astype(np.float64)
    assert np.array_equal(before[..., 2, :], after[..., 2, :])
    expected = wide - wide.mean(axis=-1, keepdims=True)
    # Rounded once: what float64 gives, in the type of the weight.
    assert np.array_equal(expected[..., :2, :].astype(before.dtype), after[..., :2, :])


def _columns(model: ir.Model, case: _Case) -> Array:
    """Return the weight as [C, H, 3, D]."""
    tensor = constant_tensor(next(v for v in model.graph.initializers.values() if v.name == "W"))
    assert tensor is not None
    W = tensor.numpy()
    return (W.T if case.transposed else W).reshape(C, H, 3, D)


def _next_part(fiber: Fiber) -> Fiber:
    assert fiber.part is not None
    chosen = fiber.part.chosen
    return fiber.within(fiber.part.digits, (*chosen[1:], chosen[0]))


def _all_sets(fiber: Fiber) -> Fiber:
    return fiber.every


def _first_alone(fiber: Fiber) -> Fiber:
    assert fiber.part is not None
    chosen = fiber.part.chosen
    first = chosen.index(True)
    return fiber.within(fiber.part.digits, (number == first for number in range(len(chosen))))


@pytest.mark.parametrize("wrong", [_next_part, _all_sets, _first_alone])
@pytest.mark.parametrize(
    "name", ["heads of three, as Persimmon", "three of heads, as ViT", "fewer heads of keys"]
)
def test_a_wrong_part_is_seen_and_refused(name: str, wrong: Callable[[Fiber], Fiber]) -> None:
    model = ir.to_proto(_model(_FOLDING[name], "double"))
    plan = fold(model).plan
    changed = tuple(replace(each, fiber=wrong(each.fiber)) for each in plan.weights)
    parts = tuple((value, wrong(fiber)) for value, fiber in plan.parts)
    broken = forced(model, replace(plan, weights=changed, parts=parts))
    assert not broken.proof.passed
    # The norms divide by their deviations: what is left of the mean is of the order of 1.
    assert _error(model, broken.model) > 1e-3


def test_hints_are_not_believed() -> None:
    model = ir.to_proto(_model(_FOLDING["heads of three, as Persimmon"], "double"))
    plan = fold(model).plan
    hints = tuple((value, _next_part(fiber)) for value, fiber in plan.parts)
    assert not forced(model, replace(plan, parts=hints)).proof.passed


def test_the_plan_is_read_back_with_its_parts() -> None:
    plan = fold(ir.to_proto(_model(_FOLDING["fewer heads of keys"], "double"))).plan
    assert plan.parts
    assert Plan.from_json(plan.to_json()) == plan


def test_algorithm_1_does_not_ask_who_moves_with_a_norm() -> None:
    """The paper's count is of its own rules: whole weights, though v would move with q and k."""
    info = prepare(_model(_FOLDING["heads of three, as Persimmon"], "double")).info
    folds = decide(info, Settings(Target.KERNELS)).plan.folds
    assert (len(folds), paper_counts(info).algorithm1) == (2, 2)
