"""The scale of a norm in cos and sin: every layout of RoPE, tables computed and cached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph.channels import SCALAR
from onnxfold.graph.edit import change_constant
from onnxfold.graph.operands import known_tensor
from onnxfold.passes.deferral import apply
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.gamma_tables import GammaTables
from onnxfold.target import TRAITS, Target
from onnxfold.weights.edited import edited
from onnxfold.weights.evaluation import Scale
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.deferral_graphs import defer, forced, rms_norm

BOUND = 1e-12  # float64 throughout
HEADS, KEYS, SIZE, WIDTH = 4, 2, 4, 6

COMPUTED = (
    "p1 = Cast<to=11>(p) p2 = Unsqueeze(p1, last) an = Mul(p2, frequencies) "
    "{twice} cos = Unsqueeze(co, one) sin = Unsqueeze(si, one) "
)
TWICE = "aa = Concat<axis=-1>(an, an) co = Cos(aa) si = Sin(aa)"
CACHED = "co = Gather(C, p) si = Gather(S, p) cos = Unsqueeze(co, one) sin = Unsqueeze(si, one) "
HALVES = (
    "{x}c = Mul({x}t, cos) {x}1, {x}2 = Split<axis=3>({x}t, halves) {x}m = Neg({x}2) "
    "{x}r = Concat<axis=3>({x}m, {x}1) {x}s = Mul({x}r, sin) {x}y = Add({x}c, {x}s) "
)
PAIRS = (
    "{x}c = Mul({x}t, cos) {x}1 = Slice({x}t, zero, many, last, two) "
    "{x}2 = Slice({x}t, one, many, last, two) {x}m = Neg({x}2) {x}e = Unsqueeze({x}m, last) "
    "{x}f = Unsqueeze({x}1, last) {x}g = Concat<axis=-1>({x}e, {x}f) {x}r = Reshape({x}g, pairs) "
    "{x}s = Mul({x}r, sin) {x}y = Add({x}c, {x}s) "
)
PARTIAL = (
    "{x}a, {x}b = Split<axis=3>({x}t, halves) {x}c = Mul({x}a, cos) "
    "{x}1, {x}2 = Split<axis=3>({x}a, ones) {x}m = Neg({x}2) {x}r = Concat<axis=3>({x}m, {x}1) "
    "{x}s = Mul({x}r, sin) {x}d = Add({x}c, {x}s) {x}y = Concat<axis=3>({x}d, {x}b) "
)
MICROSOFT = "{x}y = com.microsoft.RotaryEmbedding<interleaved={near}>({x}t, p, C, S) "
STANDARD = "{x}y = RotaryEmbedding<interleaved={near}>({x}t, C, S, p) "
LAID_OUT = "{x}y = RotaryEmbedding<interleaved={near}>({x}t, c3, s3) "
GATHERED = "c3 = Gather(C, p) s3 = Gather(S, p) "

# What makes the tables, what turns one of queries and keys, the width of a table, how many of them.
CASES: dict[str, tuple[str, str, int, int]] = {
    "halves, computed": (COMPUTED.format(twice=TWICE), HALVES, SIZE, 18),
    "halves, cached": (CACHED, HALVES, SIZE, 18),
    "neighbours, computed": (COMPUTED.format(twice=TWICE), PAIRS, SIZE, 18),
    "neighbours, cached": (CACHED, PAIRS, SIZE, 18),
    "com.microsoft, halves": ("", MICROSOFT.replace("{near}", "0"), SIZE // 2, 18),
    "com.microsoft, neighbours": ("", MICROSOFT.replace("{near}", "1"), SIZE // 2, 18),
    "opset 23, halves": ("", STANDARD.replace("{near}", "0"), SIZE // 2, 23),
    "opset 23, neighbours": ("", STANDARD.replace("{near}", "1"), SIZE // 2, 23),
    "opset 23 without positions": (GATHERED, LAID_OUT.replace("{near}", "0"), SIZE // 2, 23),
}


def _model(
    tables: str,
    turn: str,
    width: int,
    opset: int,
    *,
    packed: bool = False,
    gammas: tuple[int, ...] = (),
) -> ir.Model:
    """Turned queries and keys; of a norm with gammas of this shape first, where that is given."""
    layer = "{x} = MatMul(n, {w}) "
    heads = "{x}4 = Reshape({x}, {x}n) {x}t = Transpose<perm=[0,2,1,3]>({x}4) "
    if gammas:
        again = rms_norm("{x}4", "{x}i", opset).replace("{{", "{").replace("}}", "}")
        heads = f"{{x}}4 = Reshape({{x}}, {{x}}n) {again}{{x}}h = Mul({{x}}i, {{x}}gamma) "
        heads += "{x}t = Transpose<perm=[0,2,1,3]>({x}h) "
    body = tables
    for x, w in (("q", "Q"), ("k", "K")):
        body += (layer + ("{x}t = Identity({x}) " if packed else heads) + turn).format(x=x, w=w)
    draw = np.random.default_rng(0).standard_normal
    made: dict[str, Array] = weights(Q=(WIDTH, HEADS * SIZE), K=(WIDTH, KEYS * SIZE))
    made |= {"C": draw((8, width)), "S": draw((8, width)), "eps": np.array(1e-5)}
    made |= {"frequencies": np.array([1.0, 0.1]), "last": np.array([-1]), "one": np.array([1])}
    made |= {"qn": np.array([0, 0, HEADS, SIZE]), "kn": np.array([0, 0, KEYS, SIZE])}
    made |= {"halves": np.array([2, 2]), "ones": np.array([1, 1]), "zero": np.array([0])}
    made |= {"two": np.array([2]), "many": np.array([2**31]), "pairs": np.array([0, 0, 0, -1])}
    text = rms_norm("x", "n", opset) + body
    made |= weights(qgamma=gammas, kgamma=gammas) if gammas else {}
    used = {n: a for n, a in made.items() if any(f"{n}{end}" in text for end in ",)")}
    inner = "{h},T,4" if not packed else "T,{w}"
    outputs = ", ".join(
        f"double[B,{inner.format(h=h, w=h * SIZE)}] {x}y" for x, h in (("q", HEADS), ("k", KEYS))
    )
    return graph(text, f"double[B,T,{WIDTH}] x, int64[B,T] p", outputs, used, opset=opset)


@pytest.mark.parametrize("case", CASES)
def test_cos_and_sin_take_the_scale(case: str) -> None:
    tables, turn, width, opset = CASES[case]
    model = _model(tables, turn, width, opset)
    found = defer(model)
    (norm,) = found.plan.norms
    assert norm.multiplied == ()
    assert norm.multiplications_saved == WIDTH - 2 * width
    found.assert_right()
    result = onnxfold.optimize(model, defer="all", check=0)
    assert not onnxfold.optimize(result.model, defer="all", check=0).changed
    back = onnxfold.optimize(result.model, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert error(model, back.model) < BOUND


def test_what_is_not_turned_takes_the_scale_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of every head: its other half, of queries and keys, by two tables of half a head."""
    cheap = replace(TRAITS[Target.ONNX], product_elements=1)  # heads of 4 are small
    monkeypatch.setitem(TRAITS, Target.ONNX, cheap)
    model = _model(CACHED, PARTIAL, SIZE // 2, 18)
    found = defer(model)
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == {"qb", "kb"}
    rest = (HEADS + KEYS) * SIZE // 2
    assert norm.multiplications_saved == WIDTH - 2 * (SIZE // 2) - rest
    found.assert_right()


@pytest.mark.parametrize("turn", [MICROSOFT, STANDARD])
def test_an_operator_that_turns_a_part_keeps_its_tables(turn: str) -> None:
    part = turn.replace("<", f"<rotary_embedding_dim={SIZE // 2}, ").replace("{near}", "0")
    part = part.replace("<", f"<num_heads={HEADS}, ") if turn is MICROSOFT else part
    found = defer(_model("", part, SIZE // 4, 23))
    (norm,) = found.plan.norms
    assert not norm.tables
    assert norm.multiplications_saved == WIDTH - (HEADS + KEYS) * SIZE
    found.assert_right()


def test_heads_in_one_axis_share_tables_too() -> None:
    turn = MICROSOFT.replace("{near}", "0")
    found = defer(_model("", turn, SIZE // 2, 18, packed=True))
    (norm,) = found.plan.norms
    assert norm.multiplications_saved == WIDTH - SIZE
    found.assert_right()


def test_tables_of_positions_that_are_counted_keep_their_numbers() -> None:
    """Rows of a table are of one offset then, and no sample has one of its own to scale."""
    model = _model("", MICROSOFT.replace("{near}", "0"), SIZE // 2, 18)
    (positions,) = (value for value in model.graph.inputs if value.name == "p")
    positions.shape = ir.Shape([1])
    found = defer(model)
    (norm,) = found.plan.norms
    assert not norm.tables
    assert not found.shown.failures


@pytest.mark.parametrize("case", ["com.microsoft, halves", "opset 23 without positions"])
def test_a_table_that_keeps_its_numbers_breaks_the_model_and_its_proof(case: str) -> None:
    tables, turn, width, opset = CASES[case]
    model = _model(tables, turn, width, opset)
    norm = defer(model).norm
    first, *others = norm.tables
    cos = replace(first, indices=first.indices[:1])
    forced(model, DeferralPlan((replace(norm, tables=(cos, *others)),))).assert_broken()


@pytest.mark.parametrize("case", list(CASES)[:4])
def test_gammas_of_queries_go_into_tables_that_more_heads_share(case: str) -> None:
    """4 heads against two tables of a head; for 2 heads it saves nothing."""
    tables, turn, width, opset = CASES[case]
    model = _model(tables, turn, width, opset, gammas=(SIZE,))
    found = defer(model)
    (norm,) = found.plan.norms
    assert norm.gammas == ("qh",)
    assert {output for output, _ in norm.cancelled} == {"qh", "kh"}
    assert norm.multiplications_saved == WIDTH + HEADS * SIZE - 2 * SIZE
    found.assert_right()
    result = onnxfold.optimize(model, defer="all", check=0)
    assert "left_out" not in result.report
    assert not onnxfold.optimize(result.model, defer="all", check=0).changed
    back = onnxfold.optimize(result.model, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert error(model, back.model) < BOUND


def test_tables_take_gammas_that_have_taken_a_scale_and_are_not_rounded_yet() -> None:
    """The scale of the scores goes into the gamma of q; both are rounded once, together."""
    model = _in_float32(_model(*CASES["halves, cached"], gammas=(SIZE,)))
    gamma = model.graph.initializers["qgamma"]
    change_constant(gamma, edited(known_tensor(gamma), Scale(SCALAR, np.array([0.01])), "qgamma"))
    found = defer(model)
    (norm,) = found.plan.norms
    assert norm.gammas == ("qh",)
    assert not found.shown.failures


def _in_float32(model: ir.Model) -> ir.Model:
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE:
            numbers = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return ir.from_proto(proto)


@pytest.mark.parametrize("case", ["com.microsoft, halves", "opset 23, neighbours"])
def test_operators_that_hold_each_number_once_take_no_gamma(case: str) -> None:
    """A number of cos multiplies two channels, of different gammas."""
    found = defer(_model(*CASES[case], gammas=(SIZE,)))
    (norm,) = found.plan.norms
    assert norm.gammas == ()
    assert len(norm.cancelled) == 2
    found.assert_right()


def test_a_gamma_that_is_not_permuted_breaks_the_model_and_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With g in place of rotate|g| for sin."""
    model = _model(*CASES["halves, cached"], gammas=(SIZE,))
    plan = defer(model).plan
    real = apply.gamma_tables

    def unpermuted(*arguments: Any) -> GammaTables | None:
        found = real(*arguments)
        if found is not None:
            (_, _, gamma), *_ = found.factors
            found.factors = [(node, index, gamma) for node, index, _ in found.factors]
        return found

    monkeypatch.setattr(apply, "gamma_tables", unpermuted)
    forced(model, plan).assert_broken()
