"""Deferral on small graphs in float64: where the scale goes, what cancels it, what must see it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from rich.console import Console

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.options import Defer, Target
from onnxfold.passes.base import exclusion
from onnxfold.passes.deferral import flow
from onnxfold.passes.deferral.decide import MEASURED_CHEAPER, OPERATOR_ELEMENTS
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.plan import Plan
from onnxfold.report.text import print_norms
from tests.passes.affine.affine_graphs import Array, error, graph, weights
from tests.passes.deferral.deferral_graphs import ALL, Deferred, defer, forced, rms_graph, rms_norm

ROOT = Path(__file__).parents[3]
BOUND = 1e-12  # float64 throughout
FOUR = np.array([0, 0, 4, 4])


def _ffn(activation: str, opset: int = 18) -> ir.Model:
    body = f"h = MatMul(n, W) a = {activation} y = MatMul(a, V)"
    constants = {"W": (6, 12), "V": (12, 3), "b": (12,), "U": (6, 12)}
    used = {name: shape for name, shape in constants.items() if f"{name})" in body}
    return rms_graph(body, opset=opset, **used)


def _attention(opset: int = 18, **constants: float) -> ir.Model:
    body = (
        "q = MatMul(n, Q) k = MatMul(n, K) v = MatMul(n, V) "
        f"q4 = Reshape(q, four) {rms_norm('q4', 'qn', opset, 'eps2')}"
        f"k4 = Reshape(k, four) {rms_norm('k4', 'kn', opset, 'eps2')}"
        "v4 = Reshape(v, four) qg = Mul(qn, g) qt = Transpose<perm=[0,2,1,3]>(qg) "
        "kt = Transpose<perm=[0,2,3,1]>(kn) vt = Transpose<perm=[0,2,1,3]>(v4) "
        "s = MatMul(qt, kt) p = Softmax<axis=-1>(s) o = MatMul(p, vt) "
        "y = Transpose<perm=[0,2,1,3]>(o)"
    )
    return rms_graph(
        body,
        opset=opset,
        outputs="double[B,T,4,4] y",
        epsilon=constants.get("epsilon", 1e-5),
        Q=(6, 16),
        K=(6, 16),
        V=(6, 16),
        g=(4,),
        four=FOUR,
        eps2=np.array(constants.get("second", 1e-3)),
    )


BODIES: dict[str, tuple[Callable[[int], ir.Model], set[str], set[str]]] = {
    "a ReLU": (lambda o: _ffn("Relu(h)", o), {"y"}, set()),
    "a LeakyReLU": (lambda o: _ffn("LeakyRelu<alpha=0.2>(h)", o), {"y"}, set()),
    "an Abs": (lambda o: _ffn("Abs(h)", o), {"y"}, set()),
    "a bias": (lambda o: _ffn("Add(h, b)", o), {"h"}, set()),
    "a sigmoid": (lambda o: _ffn("Sigmoid(h)", o), {"h"}, set()),
    "norms of queries and keys": (_attention, {"v"}, {"qg", "kn"}),
}


def _glu(gate: str, opset: int) -> ir.Model:
    body = f"h = MatMul(n, W) u = MatMul(n, U) {gate} m = Mul(g, u) y = MatMul(m, V)"
    return rms_graph(body, opset=opset, W=(6, 12), U=(6, 12), V=(12, 3))


BODIES |= {
    "a ReGLU": (lambda o: _glu("g = Relu(h)", o), {"y"}, set()),
    "a bilinear GLU": (lambda o: _glu("g = Identity(h)", o), {"y"}, set()),
    "a SwiGLU": (lambda o: _glu("e = Sigmoid(h) g = Mul(h, e)", o), {"h", "y"}, set()),
}


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize("name", BODIES)
def test_the_scale_is_multiplied_where_the_fewest_elements_pass(name: str, opset: int) -> None:
    build, multiplied, cancelled = BODIES[name]
    found = defer(build(opset))
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == multiplied
    assert {output for output, _ in norm.cancelled} == cancelled
    assert not found.shown.failures
    assert error(found.before, found.after) < BOUND


def rotary(opset: int = 18, heads: int = 4) -> ir.Model:
    """Queries and keys of heads of 4, rotated with tables that the heads share."""

    def rotated(x: str, layer: str, shape: str) -> str:
        return (
            f"{x} = MatMul(n, {layer}) {x}4 = Reshape({x}, {shape}) "
            f"{x}t = Transpose<perm=[0,2,1,3]>({x}4) {x}c = Mul({x}t, cos) "
            f"{x}1, {x}2 = Split<axis=3>({x}t, halves) {x}m = Neg({x}2) "
            f"{x}r = Concat<axis=3>({x}m, {x}1) {x}s = Mul({x}r, sin) {x}y = Add({x}c, {x}s) "
        )

    body = (
        "p4 = Unsqueeze(p, one) cos = Cos(p4) sin = Sin(p4) "
        + rotated("q", "Q", "many")
        + rotated("k", "K", "few")
    )
    made = {**weights(Q=(6, 4 * heads), K=(6, 8)), "eps": np.array(1e-5), "last": np.array([-1])}
    made |= {"many": np.array([0, 0, heads, 4]), "few": np.array([0, 0, 2, 4])}
    made |= {"one": np.array([1]), "halves": np.array([2, 2])}
    inputs = "double[B,T,6] x, double[B,T,4] p"
    outputs = f"double[B,{heads},T,4] qy, double[B,2,T,4] ky"
    return graph(rms_norm("x", "n", opset) + body, inputs, outputs, made, opset=opset)


@pytest.mark.parametrize("opset", [18, 23])
def test_tables_that_heads_share_take_the_scale(opset: int) -> None:
    """2 h multiplications for cos and sin in place of (H + K) h, for queries and keys together."""
    found = defer(rotary(opset))
    (norm,) = found.plan.norms
    assert norm.multiplied == ()
    assert {table.node for table in norm.tables} == {"qc", "qs", "kc", "ks"}
    assert norm.multiplications_saved == 6 - 2 * 4
    products = sum(node.op_type == "Mul" for node in found.after.graph)
    assert products == sum(node.op_type == "Mul" for node in found.before.graph) + 2
    assert not found.shown.failures
    assert error(found.before, found.after) < BOUND


def test_a_table_that_keeps_its_numbers_breaks_the_model_and_its_proof() -> None:
    model = rotary()
    (norm,) = defer(model).plan.norms
    broken = forced(model, DeferralPlan((replace(norm, tables=norm.tables[1:]),)))
    assert error(broken.before, broken.after) > 1e-3
    assert broken.shown.failures


def test_a_scale_that_no_head_shares_is_no_table() -> None:
    """A gate of the hidden layer has as many elements as what it is multiplied by."""
    (norm,) = defer(_glu("e = Sigmoid(h) g = Mul(h, e)", 18)).plan.norms
    assert norm.tables == ()


def test_products_behind_several_results_of_a_node_have_names_of_their_own() -> None:
    body = (
        "j = MatMul(n, J) a, b, c = Split<axis=2>(j, sizes) d = Relu(a) y = MatMul(d, V) "
        "e = Sigmoid(b) f = Sigmoid(c) "
    )
    outputs = "double[B,T,3] y, double[B,T,2] e, double[B,T,1] f"
    sizes = np.array([160, 2, 1])
    found = defer(rms_graph(body, outputs=outputs, J=(6, 163), V=(160, 3), sizes=sizes))
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == {"y", "b", "c"}
    assert error(found.before, found.after) < BOUND


def test_one_product_of_all_parts_is_less_than_one_of_each() -> None:
    """As many elements, in one operator."""
    body = "j = MatMul(n, J) a, b, c = Split<axis=2, num_outputs=3>(j) y = Relu(a)"
    outputs = "double[B,T,4] y, double[B,T,4] b, double[B,T,4] c"
    found = defer(rms_graph(body, outputs=outputs, J=(6, 12)))
    (norm,) = found.plan.norms
    assert [held.value for held in norm.multiplied] == ["j"]
    assert error(found.before, found.after) < BOUND


def test_degrees_add_in_products() -> None:
    (norm,) = defer(_glu("g = Relu(h)", 18)).plan.norms
    assert [held.scale.degree for held in norm.multiplied] == [2]
    (norm,) = defer(_ffn("Relu(h)")).plan.norms
    assert [held.scale.degree for held in norm.multiplied] == [1]


@pytest.mark.parametrize("epsilon", [1e-12, 1e-2])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 1e4])
def test_every_epsilon_and_size_of_rows_is_exact(epsilon: float, size: float) -> None:
    """The paper's deferral holds up to epsilon; a row epsilon makes it exact."""
    model = _attention(epsilon=epsilon, second=epsilon)
    found = defer(model)
    x = np.random.default_rng(0).standard_normal((2, 3, 6)) * size
    x[0, 0] = 0  # a row of zeros
    first, second = (
        run(m, {"x": x}, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    largest = np.abs(first).max()
    # Where the root is that of epsilon alone, roundings are relative to it: a few of 2^-53.
    assert np.abs(first - second).max() <= 1e-12 * largest


@pytest.mark.parametrize(
    ("allowed", "forbidden"),
    [
        ("Identity(h)", "Add(h, b)"),
        ("Relu(h)", "Mul(h, e) e = Sigmoid(h)"),
        ("Identity(h)", "Add(h, r) r = MatMul(x, R)"),
        ("Relu(h)", "Mul(h, e) d = Erf(h) e = Add(d, eps)"),
        ("Relu(h)", "Softmax<axis=-1>(h)"),
        ("Relu(h)", "Tanh(h)"),
        ("Identity(h)", "Add(h, d) d = Mul(h, h)"),
    ],
    ids=["a bias", "SiLU", "a sum", "GELU", "Softmax", "Tanh", "a sum with another degree"],
)
def test_a_forbidden_crossing_breaks_the_model_and_its_proof(allowed: str, forbidden: str) -> None:
    right, wrong = _crossing(allowed), _crossing(forbidden)
    plan = defer(right).plan
    assert "a" in {held.value for held in plan.norms[0].held}
    assert "a" not in {held.value for held in defer(wrong).plan.norms[0].held}
    broken = forced(wrong, plan)
    assert error(broken.before, broken.after) > 1e-3
    assert broken.shown.failures


def _crossing(middle: str) -> ir.Model:
    """a = f(h) between two layers; what f reads besides is computed before it."""
    f, _, rest = middle.partition(") ")
    constants: dict[str, tuple[int, ...]] = {"W": (6, 12), "V": (12, 3)}
    constants |= {"b": (12,)} if "b" in f else {}
    constants |= {"R": (6, 12)} if rest.endswith("R)") else {}
    body = f"h = MatMul(n, W) {rest} a = {f.removesuffix(')')}) y = MatMul(a, V)"
    return rms_graph(body, **constants)


def test_without_the_row_epsilon_the_model_and_the_proof_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm that keeps its epsilon behind a deferred one computes something else."""
    found = defer(_attention(second=1e-1))
    (norm,) = found.plan.norms
    cancelled = tuple((output, replace(scale, degree=2)) for output, scale in norm.cancelled)
    broken = forced(_attention(second=1e-1), DeferralPlan((replace(norm, cancelled=cancelled),)))
    assert error(broken.before, broken.after) > 1e-6
    assert broken.shown.failures


def _refused(body: str, **constants: tuple[int, ...] | Array) -> Deferred:
    outputs = str(constants.pop("outputs", "double[B,T,3] y"))
    found = defer(rms_graph(body, outputs=outputs, **constants))
    assert found.plan.empty
    return found


def test_a_norm_that_a_sum_reads_as_well_stays() -> None:
    found = _refused(
        "h = MatMul(n, W) z = Add(n, x) y = Add(h, z)", W=(6, 6), outputs="double[B,T,6] y"
    )
    assert found.reasons == {"n": "exact_reader"}


def test_a_norm_that_is_an_output_stays() -> None:
    found = _refused("y = MatMul(n, W)", W=(6, 3), outputs="double[B,T,3] y, double[B,T,6] n")
    assert found.reasons == {"n": "exact_reader"}


def test_a_norm_that_no_layer_reads_stays() -> None:
    found = _refused("y = Relu(n)", outputs="double[B,T,6] y")
    assert found.reasons == {"n": "not_worth"}


def test_attention_scores_are_not_multiplied() -> None:
    body = "t = Transpose<perm=[0,2,1]>(n) s = MatMul(n, t) y = Softmax<axis=-1>(s)"
    found = _refused(body, outputs="double[B,T,T] y")
    assert found.reasons == {"n": "exact_reader"}


def test_rows_that_a_product_adds_up_keep_their_scale() -> None:
    """From the left, a weight mixes the rows."""
    found = _refused("y = MatMul(W, n)", W=(5, 3), outputs="double[B,5,6] y")
    assert found.reasons == {"n": "exact_reader"}


def _layer(dtype: str, numbers: npt.DTypeLike) -> ir.Model:
    made = {name: a.astype(numbers) for name, a in weights(W=(6, 12), V=(12, 3)).items()}
    made |= {"ones": np.ones(6, numbers)}
    body = "n = RMSNormalization<axis=-1>(x, ones) h = MatMul(n, W) a = Relu(h) y = MatMul(a, V)"
    return graph(body, f"{dtype}[B,T,6] x", f"{dtype}[B,T,3] y", made, opset=23)


def test_float16_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not normalised may exceed its range: no bound on roundings can allow for that."""
    layer = _layer("float16", np.float16)
    assert defer(layer).reasons == {"n": "unsupported_type"}
    monkeypatch.setattr(flow, "_TYPES", (ir.DataType.FLOAT16,))
    broken = defer(layer)
    assert len(broken.plan.norms) == 1
    fed = {"x": np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float16) * 1e4}
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = (
            run(m, fed, precision=Precision.NATIVE)["y"] for m in (broken.before, broken.after)
        )
    assert np.isfinite(fed["x"]).all()
    assert np.isfinite(first).all()
    assert not np.isfinite(second).all()


def test_bfloat16_is_rounded_once_where_the_scale_is_multiplied() -> None:
    """Range of float32: s and the product are float32, and the product is rounded as y was."""
    found = defer(_layer("bfloat16", ml_dtypes.bfloat16))
    assert len(found.plan.norms) == 1
    assert not found.shown.failures
    x = np.random.default_rng(0).standard_normal((2, 5, 6)) * 1e4
    fed = {"x": x.astype(ml_dtypes.bfloat16)}
    truth, exact = (
        run(m, fed, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    assert np.abs(truth - exact).max() <= 1e-12 * np.abs(truth).max()
    rounded = run(found.after, fed, precision=Precision.NATIVE)["y"].astype(np.float64)
    # Roundings to the nearest of 8 bits: of h, which V takes on, of a V and of the product.
    x, layers = fed["x"].astype(np.float64), weights(W=(6, 12), V=(12, 3))
    n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    inner, outer = (layers[k].astype(ml_dtypes.bfloat16).astype(np.float64) for k in "WV")
    bound = 2**-9 * (np.maximum(n @ inner, 0) @ np.abs(outer) + 2 * np.abs(truth))
    assert np.all(np.abs(rounded - truth) <= 1.02 * bound + 1e-6 * np.abs(truth).max())


def test_a_layer_with_a_bias_is_taken_apart() -> None:
    body = "f = Reshape(n, flat) h = Gemm(f, W, c) a = Relu(h) y = Gemm(a, V)"
    constants = {"W": (6, 12), "c": (12,), "V": (12, 3)}
    model = rms_graph(body, outputs="double[N,3] y", flat=np.array([-1, 6]), **constants)
    found = defer(model)
    ((held,),) = (norm.held[1:] for norm in found.plan.norms)
    assert (held.value, held.biased, held.scale.rows) == ("h", True, ((0, 1), ()))
    assert not found.shown.failures
    assert error(found.before, found.after) < BOUND
    # With the bias multiplied as well, both the model and its proof break.
    (norm,) = found.plan.norms
    wrong = tuple(replace(each, biased=False) for each in norm.held)
    broken = forced(model, DeferralPlan((replace(norm, held=wrong),)))
    assert error(broken.before, broken.after) > 1e-3
    assert broken.shown.failures


def test_a_bias_with_a_factor_keeps_the_norm() -> None:
    body = "f = Reshape(n, flat) y = Gemm<beta=0.5>(f, W, c)"
    flat = np.array([-1, 6])
    found = _refused(body, outputs="double[N,3] y", W=(6, 3), c=(3,), flat=flat)
    assert found.reasons == {"n": "not_worth"}


def test_rows_are_followed_through_merged_axes_alone() -> None:
    """[B, T, 6] as [B T, 6] keeps rows together; as [B, 6 T] it does not."""
    kept = rms_graph(
        "f = Reshape(n, flat) y = MatMul(f, W)",
        outputs="double[N,3] y",
        flat=np.array([-1, 6]),
        W=(6, 3),
    )
    found = defer(kept)
    assert len(found.plan.norms) == 1
    assert error(found.before, found.after) < BOUND
    body = "t = Transpose<perm=[0,2,1]>(n) f = Reshape(t, flat) y = MatMul(f, W)"
    flat = np.array([-1, 3])
    mixed = _refused(body, outputs="double[N,4] y", flat=flat, W=(3, 4))
    assert mixed.reasons == {"n": "not_worth"}


def test_excluded_norms_stay() -> None:
    model = _ffn("Relu(h)")
    settings = replace(ALL, exclude=exclusion("."))
    found = defer(model, settings)
    assert found.plan.empty
    assert found.reasons == {"n": "excluded"}


def test_a_gamma_that_stays_keeps_its_norm() -> None:
    """No constant, so that no weight can take it."""
    made = {**weights(W=(6, 3)), "eps": np.array(1e-5), "last": np.array([-1])}
    body = rms_norm("x", "r", 18) + "n = Mul(r, g) y = MatMul(n, W)"
    model = graph(body, "double[B,T,6] x, double[6] g", "double[B,T,3] y", made)
    assert defer(model).plan.empty


def test_a_folded_layer_norm_is_deferred() -> None:
    made = weights(E=(4, 6), gamma=(6,), W=(6, 3), V=(3, 2))
    body = "h = MatMul(x, E) n = LayerNormalization<axis=-1>(h, gamma) m = MatMul(n, W) y = Relu(m)"
    model = graph(body, "double[B,T,4] x", "double[B,T,3] y", made)
    result = onnxfold.optimize(model, defer="all")
    assert "left_out" not in result.report
    assert [row["action"] for row in result.report["inspect"]["norms"]] == ["deferred"]
    assert error(model, result.model) < BOUND


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("name", BODIES)
def test_a_second_run_changes_nothing(name: str, target: str) -> None:
    model = BODIES[name][0](18)
    once = onnxfold.optimize(model, target=target, defer="all")
    assert "left_out" not in once.report
    assert once.verification is not None
    again = onnxfold.optimize(once.model, target=target, defer="all", check=0)
    assert not again.changed


def test_an_operator_costs_the_elements_that_were_measured() -> None:
    with (ROOT / "benchmarks/results/row_scale_costs.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        rows = [row for row in csv.DictReader(file) if row["threads"] == "1"]
    measured = {row["operator"]: int(row["operator_elements"]) for row in rows}
    for target in Target:
        operator = "ScaleRows" if target is Target.KERNELS else "Mul"
        assert OPERATOR_ELEMENTS[target] == pytest.approx(measured[operator], rel=0.05, abs=0)


def test_auto_is_what_was_measured() -> None:
    """A target is taken whose blocks are never slower than 0.99 and somewhere faster."""
    with (ROOT / "benchmarks/results/defer.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["defer"] == "all"]
    medians: dict[str, list[float]] = {}
    for row in rows:
        medians.setdefault(row["target"], []).append(float(row["ratio"]))
    assert medians
    cheaper = {target for target, all_ in medians.items() if min(all_) >= 0.99 and max(all_) > 1}
    assert cheaper == {target.value for target in MEASURED_CHEAPER}


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_changes_no_tables(target: str) -> None:
    once = onnxfold.optimize(rotary(), target=target, defer="all")
    assert "left_out" not in once.report
    assert once.changed
    again = onnxfold.optimize(once.model, target=target, defer="all", check=0)
    assert not again.changed


def test_off_defers_nothing_and_auto_only_what_is_cheaper() -> None:
    model = _ffn("Relu(h)")
    assert onnxfold.optimize(model).report["inspect"]["summary"]["deferred"] == 0
    settings = replace(ALL, defer=Defer.AUTO)
    assert defer(model, settings).reasons == {"n": "not_worth"}


def test_the_report_says_where_the_scale_went() -> None:
    document = onnxfold.inspect(_attention(), defer="all")
    first, second, third = document["norms"]
    assert first["action"] == "deferred"
    assert first["deferral"] == {
        "applied": ["v"],
        "cancelled": ["qg", "kn"],
        "multiplications_saved": 6 - 16,
        "tables": [],
        "gammas": [],
        "centred": [],
    }
    assert second["deferral"] is None
    assert third["deferral"] is None
    assert document["summary"]["deferred"] == 1


def test_the_command_says_where_the_scale_went(capsys: pytest.CaptureFixture[str]) -> None:
    print_norms(Console(width=300), onnxfold.inspect(_attention(), defer="all"))
    printed = capsys.readouterr().out
    assert "multiplied at v; cancelled by qg, kn; 10 more multiplications per row" in printed


def test_a_plan_is_read_back_from_json() -> None:
    result = onnxfold.optimize(_attention(), defer="all")
    assert result.plan.deferred
    assert Plan.from_json(result.plan.to_json()) == result.plan
    assert "defer" in str(result.plan)
