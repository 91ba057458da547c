"""A beta whose readers have no bias: worth an Add or not, by the target's costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph.edit import Editor
from onnxfold.passes.affine.apply import apply
from onnxfold.passes.affine.decide import BetaCosts, decide_affine
from onnxfold.passes.base import Settings
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import decide_all
from onnxfold.recognition import find_norms
from onnxfold.target import Target
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import BOUND, LARGE, Fused, error, proof_of

NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
ALWAYS = BetaCosts(lambda work: work.elements, lambda *_: 1 << 40)
NO_NEW_ADD = BetaCosts(lambda work: work.elements, lambda *_: 0)

BODIES: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "a graph output": (f"{NORM} y = MatMul(n, W)", {"W": (6, 3)}),
    "two readers of the product": (
        f"{NORM} m = MatMul(n, W) a = Relu(m) b = Tanh(m) y = Add(a, b)",
        {"W": (6, 3)},
    ),
    "from the left": (
        f"{NORM} t = Transpose<perm=[0,2,1]>(n) y = MatMul(W, t)",
        {"W": (3, 6)},
    ),
    "with a factor": (
        f"{NORM} y = com.microsoft.FusedMatMul<alpha=0.5>(n, W)",
        {"W": (6, 3)},
    ),
    "beside one that has a bias": (
        f"{NORM} m = MatMul(n, W) y0 = Add(m, b) k = MatMul(n, V) y = Add(y0, k)",
        {"W": (6, 3), "b": (3,), "V": (6, 3)},
    ),
    "from an Einsum": (f'{NORM} y = Einsum<equation="bsd,de->bse">(n, W)', {"W": (6, 3)}),
    "from an Einsum into heads": (
        f'{NORM} y = Einsum<equation="bsd,hdk->bksh">(n, W)',
        {"W": (2, 6, 3)},
    ),
}


def _model(body: str) -> ir.Model:
    text, shapes = BODIES[body]
    made = weights(gamma=(6,), beta=(6,), **shapes)
    shape = "B,3,4" if "Transpose" in text else "B,3,4,2" if "bksh" in text else "B,4,3"
    return graph(text, "double[B,4,6] x", f"double[{shape}] y", made)


def _fused(model: ir.Model, weighing: BetaCosts, *, spoil: float = 0.0) -> Fused:
    view = prepare(model).info
    copy, sites = view.model, find_norms(view)
    decision = decide_affine(view, sites, allow_split_bytes=LARGE, weighing=weighing)
    apply(Editor(view), decision, Settings())
    if spoil:
        for name, value in copy.graph.initializers.items():
            if name.endswith(".bias") and value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy() + spoil, name=name)
    proof = proof_of(model, copy, decision.fusions)
    return Fused(copy, decision, proof)


@pytest.mark.parametrize("body", BODIES)
def test_a_new_bias_computes_the_same(body: str) -> None:
    model = _model(body)
    fused = _fused(model, ALWAYS)
    assert fused.moved == (1, 1)
    assert not fused.decision.refusals
    assert fused.proof.passed, fused.proof.failures
    assert fused.proof.shifted_biases == (2 if "beside" in body else 1)
    assert error(model, fused.model) < BOUND
    names = [value.name for node in fused.model.graph for value in node.outputs]
    assert len(set(names)) == len(names)
    assert [value.name for value in fused.model.graph.outputs] == ["y"]


@pytest.mark.parametrize("body", BODIES)
def test_a_new_bias_that_is_wrong_fails_the_proof(body: str) -> None:
    assert not _fused(_model(body), ALWAYS, spoil=1e-9).proof.passed


def test_a_new_bias_without_the_beta_that_it_takes_fails_the_proof() -> None:
    """The plan of one model carried out on another, whose product is of other weights."""
    model = _model("a graph output")
    fused = _fused(model, ALWAYS)
    other = _model("a graph output")
    constant = other.graph.initializers["beta"]
    constant.const_value = ir.tensor(np.ones(6), name="beta")
    proof = proof_of(other, fused.model, fused.decision.fusions)
    assert not proof.passed


def test_a_plan_with_a_new_bias_is_read_back_equal() -> None:
    plan = Plan(fusions=_fused(_model("a graph output"), ALWAYS).decision.fusions)
    assert Plan.from_json(plan.to_json()) == plan
    assert "behind" in str(plan.to_json())


@pytest.mark.parametrize(("saving", "pays"), [(1199, False), (1200, False), (1201, True)])
def test_a_new_bias_is_made_when_it_costs_less_than_beta(saving: int, pays: bool) -> None:
    fused = _fused(
        _model("a graph output"), BetaCosts(lambda work: 100 * work.elements, lambda *_: saving)
    )
    assert fused.moved == ((1, 1) if pays else (0, 0))
    if not pays:
        ((_, refusal),) = fused.decision.refusals
        assert (
            f"an Add would cost 0.0012 µs, and the norm saves at most {saving / 1e6:.4g} µs without"
            in refusal.sentence
        )


FOLDING = "h = MatMul(x, U) n = LayerNormalization<axis=-1>(h, gamma, beta) y = MatMul(n, W)"


def _folding(width: int) -> ir.Model:
    made = weights(U=(6, 8), gamma=(8,), beta=(8,), W=(8, width))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    return graph(FOLDING, "float[B,4,6] x", f"float[B,4,{width}] y", made)


@pytest.mark.parametrize(
    ("target", "width", "moved"),
    [
        ("onnx", 3, True),  # the norm folds, and an RMS norm adds no beta
        ("ort", 3, True),
        ("ort", 8, False),  # as many elements to add to after the product
        ("ort", 24, False),
        ("kernels", 3, False),  # the kernel adds beta for nothing
    ],
)
def test_the_costs_of_the_target_decide(target: str, width: int, moved: bool) -> None:
    model = ir.to_proto(_folding(width))
    result = onnxfold.optimize(model, target=target)
    assert len(result.plan.folds) == 1
    assert any(fusion.beta for fusion in result.plan.fusions) is moved
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed
    again = onnxfold.optimize(result.model, target=target)
    assert not again.changed


@pytest.mark.parametrize(("width", "moved"), [(3, True), (8, False)])
def test_rows_that_nobody_counts_are_those_of_the_norm(width: int, moved: bool) -> None:
    body = (
        "h = MatMul(x, U) n = LayerNormalization<axis=-1>(h, gamma, beta) "
        "rows = Slice(n, first, last, first) y = MatMul(rows, W)"
    )
    made = weights(U=(6, 8), gamma=(8,), beta=(8,), W=(8, width))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    inputs, first = "float[4,6] x, int64[1] last", {"first": np.array([0])}
    model = graph(body, inputs, f"float[rows,{width}] y", made | first)
    (fusion,) = decide_all(prepare(model), Settings(Target.ORT)).plan.fusions or (None,)
    assert (fusion is not None and fusion.beta) is moved


def test_a_norm_that_stays_keeps_its_beta() -> None:
    """LayerNormalization adds beta for nothing; only its fold makes beta an operator."""
    body = FOLDING.replace("h = MatMul(x, U)", "h = Tanh(x)")
    made = {k: v.astype(np.float32) for k, v in weights(gamma=(6,), beta=(6,), W=(6, 3)).items()}
    model = graph(body, "float[B,4,6] x", "float[B,4,3] y", made)
    plan = decide_all(prepare(model), Settings(Target.ORT)).plan
    assert not plan.fusions


def test_the_beta_of_a_dyt_is_weighed_as_the_add_that_it_is() -> None:
    made = weights(gamma=(6,), beta=(6,), W=(6, 3)) | {"alpha": np.array(0.5)}
    body = "s = Mul(x, alpha) t = Tanh(s) g = Mul(t, gamma) n = Add(g, beta) y = MatMul(n, W)"
    model = graph(body, "double[B,4,6] x", "double[B,4,3] y", made)
    (fusion,) = decide_all(prepare(model), Settings()).plan.fusions
    assert fusion.beta
    assert replace(fusion, beta=False).places  # gamma moves as well


@pytest.mark.parametrize(("smallest", "moves"), [(1e-3, True), (1e-5, False), (0.0, False)])
def test_beta_over_gamma_stays_where_its_type_can_hold_it(smallest: float, moves: bool) -> None:
    """1e5 exceeds float16; a plan with it would be refused, and all other moves with it."""
    made = {
        "alpha": np.array(0.5, np.float16),
        "gamma": np.array([[[1.0]], [[smallest]]], np.float16),
        "beta": np.ones((2, 1, 1), np.float16),
        "W": np.ones((3, 2, 3, 3), np.float16),
    }
    body = (
        "s = Mul(x, alpha) t = Tanh(s) g = Mul(t, gamma) n = Add(g, beta) "
        "y = Conv<pads=[1,1,1,1]>(n, W)"
    )
    model = graph(body, "float16[B,2,6,6] x", "float16[B,3,6,6] y", made)
    result = onnxfold.optimize(model, check=0)
    assert "left_out" not in result.report
    assert bool(result.plan.fusions) is moves


def test_before_opset_17_a_norm_gives_its_gamma_away_where_it_folds_alone() -> None:
    """One that stays is fused by runtimes only with the product by gamma in it."""
    spelled = (
        "{y}m = ReduceMean<axes=[-1]>({x}) {y}d = Sub({x}, {y}m) {y}q = Mul({y}d, {y}d) "
        "{y}v = ReduceMean<axes=[-1]>({y}q) {y}e = Add({y}v, eps) {y}s = Sqrt({y}e) "
        "{y}z = Div({y}d, {y}s) {y}g = Mul({y}z, gamma) {y} = Add({y}g, beta) "
        "{y}h = MatMul({y}, W) {y}o = Add({y}h, b) "
    )
    body = "l = MatMul(x, U) " + spelled.format(x="l", y="folds") + "t = Tanh(x) "
    body += spelled.format(x="t", y="stays") + "y = Add(foldso, stayso)"
    made = weights(U=(6, 6), gamma=(6,), beta=(6,), W=(6, 3), b=(3,)) | {"eps": np.array(1e-5)}
    made = {name: array.astype(np.float32) for name, array in made.items()}
    model = graph(body, "float[B,4,6] x", "float[B,4,3] y", made, opset=16)
    plan = decide_all(prepare(model), Settings()).plan
    assert [fold.output for fold in plan.folds] == ["folds"]
    assert [fusion.output for fusion in plan.fusions] == ["folds"]


SPLIT = (
    "m = MatMul(n, W) q0, k0, v0 = Split<axis=-1>(m, sizes) q = Add(q0, bq) k = Add(bk, k0) "
    "v = Add(v0, bv) kt = Transpose<perm=[0,2,1]>(k) a = MatMul(q, kt) y = MatMul(a, v)"
)
SLICED = SPLIT.replace(
    "q0, k0, v0 = Split<axis=-1>(m, sizes)",
    "v0 = Slice(m, six, end, last) q0 = Slice(m, zero, three, last) k0 = Slice(m, three, six, two)",
)
SIZES = {"b4": (4,), "W": (6, 12), "bq": (3,), "bk": (3,), "bv": (6,)}


def _split(body: str = SPLIT) -> ir.Model:
    numbers = {"zero": 0, "two": 2, "three": 3, "six": 6, "last": -1, "end": 1 << 62}
    fixed = {name: np.array([number]) for name, number in numbers.items()}
    made = weights(gamma=(6,), beta=(6,), **SIZES) | {"sizes": np.array([3, 3, 6])} | fixed
    return graph(f"{NORM} {body}", "double[B,4,6] x", "double[B,4,6] y", made)


@pytest.mark.parametrize("body", [SPLIT, SLICED], ids=["Split", "Slices"])
def test_the_biases_behind_parts_take_their_parts_of_beta(body: str) -> None:
    model = _split(body)
    fused = _fused(model, NO_NEW_ADD)
    assert fused.moved == (1, 1)
    assert fused.proof.passed, fused.proof.failures
    assert fused.proof.shifted_biases == 3
    assert error(model, fused.model) < BOUND
    plan = Plan(fusions=fused.decision.fusions)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("body", [SPLIT, SLICED], ids=["Split", "Slices"])
@pytest.mark.parametrize("name", ["bq", "bk", "bv"])
def test_a_wrong_part_fails_the_proof(name: str, body: str) -> None:
    model = _split(body)
    fused = _fused(model, NO_NEW_ADD)
    bias = fused.model.graph.initializers[name]
    assert bias.const_value is not None
    bias.const_value = ir.tensor(np.roll(bias.const_value.numpy(), 1), name=name)
    proof = proof_of(model, fused.model, fused.decision.fusions)
    assert not proof.passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k = Add(bk, k0)", "k = Relu(k0)"),
        ("v = Add(v0, bv)", "v1 = Tanh(v0) v2 = Add(v0, bv) v = Add(v1, v2)"),
        (
            "a = MatMul(q, kt)",
            "qm = Softmax(m) a0 = MatMul(q, kt) qs = ReduceMax(qm) a = Add(a0, qs)",
        ),
    ],
    ids=["one has no bias", "one is read elsewhere", "the product is read elsewhere"],
)
def test_a_split_without_a_bias_for_every_part_takes_no_beta(old: str, new: str) -> None:
    assert old in SPLIT
    assert _fused(_split(SPLIT.replace(old, new)), NO_NEW_ADD).moved == (0, 0)


@pytest.mark.parametrize("start", ["zero", "two"])
def test_slices_that_overlap_or_leave_a_gap_take_no_beta(start: str) -> None:
    body = SLICED.replace("Slice(m, three, six, two)", f"Slice(m, {start}, six, two)")
    body = body.replace("Add(bk, k0)", "Slice(k1, zero, three, two)").replace(
        "q = Add", f"k1 = Add(k0, {'bv' if start == 'zero' else 'b4'}) q = Add"
    )
    assert _fused(_split(body), NO_NEW_ADD).moved == (0, 0)
