"""Operators after one part of a joint projection, and after a rotary embedding, in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from onnxfold.passes.plan import Plan
from tests.graphs import Array
from tests.passes.affine.affine_graphs import error
from tests.passes.scales.scale_graphs import BOUND, absorb, applied, assert_moved, scale_model

WHOLE = "m = MatMul(x, QKV) a = Add(m, qkv) "
SPLIT = WHOLE + "q, key, v = Split<axis=2>(a, sizes) "
SLICES = WHOLE + (
    "q = Slice(a, zero, four1, two) key = Slice(a, four1, eight1, last) "
    "v = Slice(a, eight1, end, two) "
)
KEYS = "t = Transpose<perm=[0,2,1]>(key) s = MatMul(q, t) "
# As timm writes it: q, k and v are along an axis of their own.
STACKED = (
    "m = MatMul(x, H) a = Add(m, hb) r = Reshape(a, heads4) r2 = Transpose<perm=[2,0,1,3]>(r) "
    "q = Gather<axis=0>(r2, i0) key = Gather<axis=0>(r2, i1) v = Gather<axis=0>(r2, i2) "
)
OF_PARTS = {
    "q of a fused projection": (
        SPLIT
        + "p = Mul(q, eight) t = Transpose<perm=[0,2,1]>(key) s = MatMul(p, t) y = MatMul(s, v)",
        1,
    ),
    "the scores of a fused projection": (SPLIT + KEYS + "r = Div(s, eight) y = MatMul(r, v)", 1),
    "heads": (
        SPLIT + "h = Reshape(q, heads3) o = Transpose<perm=[0,2,1,3]>(h) p = Mul(o, eight) "
        "g = Reshape(key, heads3) t = Transpose<perm=[0,2,3,1]>(g) s = MatMul(p, t) "
        "r = Softmax(s) c = Reshape(v, heads3) w = Transpose<perm=[0,2,1,3]>(c) y = MatMul(r, w)",
        1,
    ),
    "a root on q and on key": (
        SPLIT + "p = Mul(q, eight) l = Mul(key, eight) t = Transpose<perm=[0,2,1]>(l) "
        "s = MatMul(p, t) y = MatMul(s, v)",
        2,
    ),
    "a factor per channel of v": (SPLIT + KEYS + "w = Mul(v, d3) y = MatMul(s, w)", 1),
    "one part, then all of it before": (
        "m = MatMul(x, QKV) b0 = Mul(m, eight) q, key, v = Split<axis=2>(b0, sizes) "
        + KEYS
        + "w = Mul(v, d3) y = MatMul(s, w)",
        2,
    ),
    "a bias behind the Split": (
        "m = MatMul(x, QKV) q0, key, v = Split<axis=2>(m, sizes) q1 = Add(q0, bq) "
        "q = Mul(q1, eight) " + KEYS + "y = MatMul(s, v)",
        1,
    ),
    "a part of a part": (
        "m = MatMul(x, QKV) qk, v = Split<axis=2>(m, sizes2) q, key = Split<axis=2>(qk, halves) "
        "l = Mul(key, eight) t = Transpose<perm=[0,2,1]>(l) s = MatMul(q, t) y = MatMul(s, v)",
        1,
    ),
    "a Gemm without a bias": (
        "f = Flatten<axis=2>(x) m = Gemm(f, QKV) q, key, v = Split<axis=1>(m, sizes) "
        "t = Transpose(key) p = Mul(q, eight) s = MatMul(p, t) y = MatMul(s, v)",
        1,
    ),
    "the scores of slices": (SLICES + KEYS + "r = Div(s, eight) y = MatMul(r, v)", 1),
    "a factor per channel of a slice": (SLICES + KEYS + "w = Mul(v, d3) y = MatMul(s, w)", 1),
    "the only slice": ("m = MatMul(x, W) p = Slice(m, zero, two, last) y = Mul(p, pair)", 1),
    "a shift of a part": (SPLIT + KEYS + "w = Add(v, d3) y = MatMul(s, w)", 1),
    "a shift and a factor of a slice": (
        SLICES + "q1 = Add(q, bq) q2 = Mul(q1, eight) k1 = Sub(key, bk) "
        "t = Transpose<perm=[0,2,1]>(k1) s = MatMul(q2, t) y = MatMul(s, v)",
        3,
    ),
    "biases of the parts of a Gemm without one": (
        "f = Flatten<axis=2>(x) m = Gemm(f, QKV) q0, k0, v0 = Split<axis=1>(m, sizes) "
        "q = Add(q0, bq) q1 = Mul(q, eight) key = Add(k0, bk) v = Add(v0, d3) "
        "t = Transpose(key) s = MatMul(q1, t) y = MatMul(s, v)",
        4,
    ),
    "q along an axis of its own": (
        STACKED + "p = Mul(q, eight) t = Transpose<perm=[0,2,1]>(key) s = MatMul(p, t) "
        "y = MatMul(s, v)",
        1,
    ),
}


@pytest.mark.parametrize("case", OF_PARTS)
def test_a_scale_or_shift_of_one_part_moves_into_its_columns(case: str) -> None:
    done = assert_moved(*OF_PARTS[case])
    plan = Plan.from_json(json.loads(json.dumps(Plan(scales=done.fusions).to_json())))
    assert plan.scales == done.fusions


@pytest.mark.parametrize("case", sorted(set(OF_PARTS) - {"the only slice"}))
def test_a_scale_or_shift_in_the_columns_of_another_part_fails_the_proof(case: str) -> None:
    before = scale_model(OF_PARTS[case][0])
    fusions = absorb(before).fusions
    place = next(index for index, fusion in enumerate(fusions) if fusion.part is not None)
    start, length, total = fusions[place].part or (0, 0, 0)
    moved = replace(fusions[place], part=((start + length) % (total - length), length, total))
    wrong = (*fusions[:place], moved, *fusions[place + 1 :])
    done = applied(before, wrong)
    # A factor of q may stand at k as well: then the function is the same, and shown to be.
    assert done.proof.passed == (error(before, done.model) < BOUND)


REFUSED = {
    "the part is read elsewhere": SPLIT
    + KEYS
    + "p = Mul(q, eight) r = MatMul(p, t) u = Add(r, s) y = MatMul(u, v)",
    "the whole is read elsewhere": SPLIT
    + KEYS
    + "z = MatMul(s, v) w = Tanh(a) y0 = Mul(z, eight) h = ReduceSum(w) y = Add(y0, h)",
    "a slice that overlaps": SLICES
    + "e = Slice(a, two, four1, two) z = ReduceSum<keepdims=1>(e) p = Mul(q, eight) "
    "t = Transpose<perm=[0,2,1]>(key) s = MatMul(p, t) r = MatMul(s, v) y = Add(r, z)",
    "a slice with a step": WHOLE + "q = Slice(a, zero, end, two, two) y = Mul(q, eight) "
    "z = ReduceSum<keepdims=0>(a)",
    "a body reads another part": WHOLE
    + "q = Slice(a, zero, four1, two) y = Mul(q, eight) z = If(yes) "
    + "<then_branch = t () => (double[] o) { o = Slice(a, four1, eight1, two) }, "
    + "else_branch = e () => (double[] o) { o = Slice(a, eight1, end, two) }>",
    "a shift of a part along tokens": SPLIT + KEYS + "w = Add(v, four) y = MatMul(s, w)",
    "a bias of a part of a product without one": (
        "m = MatMul(x, QKV) q, key, v0 = Split<axis=2>(m, sizes) v = Add(v0, d3) "
        + KEYS
        + "y = MatMul(s, v)"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_scale_of_one_part_stays(case: str) -> None:
    more: dict[str, Array] = {"yes": np.array(True)}
    assert not absorb(scale_model(REFUSED[case], more)).fusions
