"""A second run of optimize changes nothing, whatever the first one left."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import ModelInfo
from tests.case_files import read, shapes
from tests.graphs import Array, graph, weights
from tests.pairs import pairs, pairwise

_TARGETS = ("kernels", "onnx", "ort")
_MEAN = "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
_SPELLED = (
    _MEAN + "c = Mul(d, d) v = ReduceMean<axes=[-1]>(c) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) "
)


def _float32(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: array.astype(np.float32) for name, array in weights(**shapes).items()}


def _mean_in_half() -> ir.Model:
    """x - mean(x) in half, then a norm in float: ONNX Runtime would fuse both across the Cast."""
    made = _float32(gamma=(6,), beta=(6,), W=(6, 6), V=(6, 5))
    made |= {name: made[name].astype(np.float16) for name in "WV"}
    body = (
        "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) c = Cast<to=1>(d) "
        "n = LayerNormalization(c, gamma, beta) k = Cast<to=10>(n) y = MatMul(k, V)"
    )
    return graph(body, "float16[B,4,6] x", "float16[B,4,5] y", made, opset=17)


def _in_pieces() -> ir.Model:
    """A file for kernels has one epsilon of each name: the rarer one stays in several operators."""
    second = _SPELLED.replace("(h", "(t").replace("eps)", "wide)").replace("Div(d, r)", "Inv(r)")
    for name in "mdcver":
        second = re.sub(rf"\b{name}\b", f"{name}2", second)
    second = second.replace("q = Inv(r2)", "i = Reciprocal(r2) s = Mul(d2, i)")
    body = f"h = Tanh(x) {_SPELLED} t = Sigmoid(q) {second} n = Add(s, beta) y = MatMul(n, V)"
    made = _float32(beta=(6,), V=(6, 5))
    made |= {"eps": np.array(2.0**-10, np.float32), "wide": np.array(1e-3, np.float32)}
    return graph(body, "float[B,4,6] x", "float[B,4,5] y", made, opset=13)


def _twins() -> ir.Model:
    """Two norms of one value, of which a tool has merged the common part."""
    body = (
        f"h = Tanh(x) {_SPELLED} g = Mul(q, gamma) a = Mul(q, k) t = Tanh(g) u = Sigmoid(a) "
        "w = Mul(t, u) z = Add(w, h) y = MatMul(z, V)"
    )
    made = _float32(gamma=(6,), k=(6,), V=(6, 5)) | {"eps": np.array(1e-5, np.float32)}
    return graph(body, "float[B,4,6] x", "float[B,4,5] y", made, opset=17)


# What a norm gives, where a scale or a shift may stand, and the way back.
_LAYOUTS = {
    "rows": ("Reshape(n, flat)", "k", "Reshape(z, rows)"),
    "heads": ("Reshape(n, heads)", "k23", "Reshape(z, whole)"),
    "turned": ("Transpose<perm=[0,2,1]>(n)", "l", "Transpose<perm=[0,2,1]>(z)"),
    "a sum with zeros": ("Add(n, zeros)", "k", "Identity(z)"),
}
_BEHIND_LAYOUTS = ("Neg(w)", "Mul(w, l)", "Div(w, l)", "Mul(w, {k})", "Add(w, l)", "Add(w, {k})")


def _behind_layout(first: str, last: str, layout: str, behind: str) -> ir.Model:
    """A node after a layout of a spelled-out norm, which lacks a gamma and possibly a beta."""
    before, k, back = _LAYOUTS[layout]
    body = (
        f"h = {first} {_SPELLED} n = {last} w = {before} z = {behind.format(k=k)} u = {back} "
        "t = Tanh(u) y = MatMul(t, V)"
    )
    made = _float32(W=(6, 6), beta=(6,), V=(6, 5), k=(6,), k23=(2, 3))
    made |= {"eps": np.array(1e-5, np.float32), "l": np.array(1.5, np.float32)}
    made |= {"zeros": np.zeros(6, np.float32), "flat": np.array([-1, 6])}
    made |= {"rows": np.array([-1, 4, 6]), "heads": np.array([0, 0, 2, 3])}
    made |= {"whole": np.array([0, 0, 6])}
    return graph(body, "float[B,4,6] x", "float[B,4,5] y", made, opset=17)


_CASES = read("second_runs")
_COMMON = "W 6 6, gamma 6, beta 6, V 6 6, b 6, U 6 5, k 6"


def _model(name: str) -> ir.Model:
    opset, sides, sizes, numbers = _CASES[name].columns
    body = _CASES[name].body
    inputs, _, output = (sides or "float[B,4,6] x -> float[B,4,5] y").partition(" -> ")
    made = weights(**(shapes(_COMMON) | shapes(sizes)))
    made |= {"eps": np.array(1e-5), "l": np.array(1.5), "ones": np.ones(6), "zeros": np.zeros(6)}
    made |= {each: np.array(known) for each, known in shapes(numbers).items()}
    made = {each: array for each, array in made.items() if f" {each} = " not in f" {body}"}
    dtype = np.float64 if inputs.startswith("double") else np.float32
    return graph(body, inputs, output, made, int(opset), dtype=dtype)


@pairs(
    name=[*_CASES, "a mean in half before a norm in float"],
    target=_TARGETS,
    defer=["off", "all", "means"],
)
def test_a_second_run_changes_nothing(name: str, target: str, defer: str) -> None:
    means = defer == "means"
    chosen = {"target": target, "defer": "all" if means else defer, "defer_means": means}
    model = _model(name) if name in _CASES else _mean_in_half()
    once = onnxfold.optimize(model, check=0, **chosen)
    assert "left_out" not in once.report
    kept = ModelInfo(once.model)
    assert not [node.op_type for node in kept.nodes() if kept.is_dead(node)]
    again = onnxfold.optimize(once.model, check=None, **chosen)
    assert not again.changed
    summary = again.report["inspect"]["summary"]
    assert summary["foldable"] == summary["left_foldable"]  # a norm of a table, for --target onnx


@pairs(
    first=["MatMul(x, W)", "Tanh(x)"],
    last=["Identity(q)", "Add(q, beta)", "Add(q, zeros)"],
    layout=_LAYOUTS,
    behind=_BEHIND_LAYOUTS,
    target=_TARGETS,
)
def test_what_stands_behind_a_layout_of_a_norm_stays(
    first: str, last: str, layout: str, behind: str, target: str
) -> None:
    """The norm has no gamma until it is one operator, which has ones."""
    once = onnxfold.optimize(_behind_layout(first, last, layout, behind), target=target)
    assert "left_out" not in once.report
    assert not onnxfold.optimize(once.model, target=target, check=None).changed


def test_a_beta_of_zeros_goes_without_a_bias_to_take_it() -> None:
    result = onnxfold.optimize(_model("zero beta of a folded norm, opset 17"))
    (fusion,) = result.plan.fusions
    assert fusion.gamma
    assert fusion.beta
    assert not any(reader.biases for reader in fusion.readers)
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize("target", _TARGETS)
def test_group_norm_on_vectors_folds_where_nothing_tells_its_type(target: str) -> None:
    made = _float32(W=(4, 6), g=(6,), b=(6,))
    body = "h = MatMul(x, W) n = GroupNormalization<num_groups=2>(h, g, b) y = Tanh(n)"
    model = graph(body, "float[N,4] x", "float[N,6] y", made, opset=21)
    result = onnxfold.optimize(model, target=target)
    assert len(result.plan.folds) == 1
    assert result.verification is not None
    assert result.verification.passed


def test_parameters_per_group_become_one_per_channel() -> None:
    """Until opset 18 GroupNormalization took one gamma for all channels of a group."""
    made = _float32(W=(4, 6), g=(2,), b=(2,))
    body = "h = MatMul(x, W) n = GroupNormalization<num_groups=2>(h, g, b) y = Tanh(n)"
    model = graph(body, "float[N,4] x", "float[N,6] y", made, opset=18)
    result = onnxfold.optimize(model, check=None)
    (weight,) = [v for v in result.model.graph.initializers.values() if "gamma" in (v.name or "")]
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), np.repeat(made["g"], 3))
    assert onnxfold.verify(model, result.model).passed


def _two_epsilons(epsilons: tuple[float, ...], kept: int) -> ir.Model:
    """A residual stream with a norm before each block; the first ``kept`` stay LayerNorms."""
    shapes = {"E": (6, 6)}
    body = ["h0 = MatMul(x, E)"]
    for number, epsilon in enumerate(epsilons):
        shapes |= {f"{name}{number}": (6,) for name in ("gamma", "beta")}
        shapes |= {f"{name}{number}": (6, 6) for name in ("W", "V")}
        branch = f"MatMul(a{number}, V{number})" if number >= kept else f"Tanh(a{number})"
        body.append(
            f"n{number} = LayerNormalization<axis=-1, epsilon={epsilon:.9f}>"
            f"(h{number}, gamma{number}, beta{number}) a{number} = MatMul(n{number}, W{number}) "
            f"o{number} = {branch} h{number + 1} = Add(h{number}, o{number})"
        )
    body.append(
        f"n = LayerNormalization<axis=-1, epsilon={epsilons[0]:.9f}>"
        f"(h{len(epsilons)}, gamma0, beta0) y = MatMul(n, E)"
    )
    return graph("\n".join(body), "float[B,4,6] x", "float[B,4,6] y", _float32(**shapes), opset=17)


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize(
    "epsilons",
    [row for n in (3, 4, 5) for row in pairwise(product((1e-5, 1e-6), repeat=n))],
)
def test_norms_of_two_epsilons_choose_alike_in_a_second_run(
    epsilons: tuple[float, ...], kept: int
) -> None:
    """A file for kernels keeps one epsilon of each name, and the same one whenever it is asked."""
    once = onnxfold.optimize(_two_epsilons(epsilons, kept), target="kernels", check=None)
    again = onnxfold.optimize(once.model, target="kernels", check=None)
    assert not again.changed


def test_scales_of_rows_do_not_count_among_the_epsilons_of_norms() -> None:
    """They come of deferred norms, of which a first run finds none when it chooses."""
    body = (
        "h = MatMul(x, W) a = LayerNormalization<axis=-1, epsilon=1e-5>(h, gamma) b = MatMul(a, V) "
        "c = Tanh(b) d = MatMul(c, Z) e = LayerNormalization<axis=-1, epsilon=1e-6>(d, gamma) "
        "f = Tanh(e) g = RMSNormalization<axis=-1, epsilon=1e-5>(f, gamma) y = Tanh(g)"
    )
    made = _float32(W=(6, 6), gamma=(6,), V=(6, 6), Z=(6, 6))
    model = graph(body, "float[B,4,6] x", "float[B,4,6] y", made, opset=23)
    once = onnxfold.optimize(model, target="kernels", defer="all", check=0)
    operators = [node.op_type for node in once.model.graph]
    for name in ("RowScale", "RMSNormScale", "RMSNormalization"):
        assert operators.count(name) == 1
    assert not onnxfold.optimize(once.model, target="kernels", defer="all", check=None).changed


@pytest.mark.parametrize("target", ["onnx", "kernels"])
@pytest.mark.parametrize("casts", [False, True])
def test_a_norm_in_double_is_written_without_a_scale(casts: bool, target: str) -> None:
    """No session fuses it, whose scale would be a product that a second run takes away."""
    norm = "n = LayerNormalization(h, gamma, beta) " * (not casts) or (
        "w = Cast<to=11>(h) k = LayerNormalization(w, gamma, beta) n = Cast<to=1>(k) "
    )
    body = f"h = MatMul(x, W) {norm} p = MatMul(n, V) y = Add(p, b)"
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), V=(6, 5), b=(5,))
    made |= {each: made[each].astype(np.float32) for each in "WVb" if casts}
    of = "float" if casts else "double"
    model = graph(body, f"{of}[B,4,6] x", f"{of}[B,4,5] y", made, opset=17)
    once = onnxfold.optimize(model, target=target)
    assert once.report["inspect"]["summary"]["folded"] == 1
    assert [node.op_type for node in once.model.graph].count("Mul") == 2  # x * x, x * (1 / root)
    assert not onnxfold.optimize(once.model, target=target, check=None).changed


def test_a_norm_in_double_is_one_operator_whatever_epsilon_others_have() -> None:
    """A file for kernels keeps one epsilon for a name; norms in double are not calls of it."""
    body = (
        f"f = LayerNormalization<epsilon=1e-6>(x, g) h = Cast<to=11>(f) {_SPELLED} y = Identity(q)"
    )
    made = _float32(g=(6,)) | {"eps": np.array(2.0**-10)}
    model = graph(body, "float[B,4,6] x", "double[B,4,6] y", made, opset=17)
    once = onnxfold.optimize(model, target="kernels", check=0)
    operators = [node.op_type for node in once.model.graph]
    assert operators.count("LayerNormalization") == 1
    assert not onnxfold.optimize(once.model, target="kernels", check=None).changed


def test_a_norm_that_stays_in_several_operators_is_still_a_norm() -> None:
    """No call takes its product and its sum, after which a second run would move its mean."""
    once = onnxfold.optimize(_in_pieces(), target="kernels", check=None)
    names = [node.op_type for node in once.model.graph]
    assert names.count("LayerNormAffine") == names.count("Reciprocal") == 1
    assert not [name for name in names if name.startswith("ScaleRows")]
    again = onnxfold.optimize(once.model, target="kernels", fold="always", check=None)
    assert not again.changed


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_norms_that_share_more_than_a_mean_fold_in_the_first_run(target: str) -> None:
    """Each becomes one operator with a mean of its own, so that one centring saves the means."""
    once = onnxfold.optimize(_twins(), target=target, fold="always", check=0)
    assert "left_out" not in once.report
    assert len(once.plan.folds) == 2
    assert not onnxfold.optimize(once.model, target=target, fold="always", check=None).changed


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_norm_that_no_output_needs_pays_for_no_centring(target: str) -> None:
    """A second run would not find it."""
    body = (
        "h = Tanh(x) n = LayerNormalization(h, gamma) dead = LayerNormalization(h, beta) "
        "t = Tanh(n) z = Add(t, h) y = MatMul(z, V)"
    )
    made = _float32(gamma=(6,), beta=(6,), V=(6, 5))
    model = graph(body, "float[B,4,6] x", "float[B,4,5] y", made, opset=17)
    once = onnxfold.optimize(model, target=target, fold="always", check=None)
    assert not once.plan.folds
    assert not onnxfold.optimize(once.model, target=target, fold="always", check=None).changed


@pytest.mark.parametrize("target", _TARGETS)
def test_a_norm_that_no_output_needs_keeps_its_gamma(target: str) -> None:
    """It has no reader that could not take it, however its spelling is read in a second run."""
    body = (
        "h = Tanh(x) a = LayerNormalization(h, gamma) b = LayerNormalization(h, beta) s = Add(h, h)"
        "dead = LayerNormalization(s, gamma) u = Tanh(a) v = Sigmoid(b) z = Add(u, v) "
        "e = Exp(h) k = Add(z, e) y = MatMul(k, V)"
    )
    made = {
        name: array.astype(np.float16)
        for name, array in _float32(gamma=(6,), beta=(6,), V=(6, 5)).items()
    }
    model = graph(body, "float16[B,4,6] x", "float16[B,4,5] y", made, opset=17)
    chosen = {"target": target, "fold": "always", "defer": "all"}
    once = onnxfold.optimize(model, check=0, **chosen)
    assert not once.plan.fusions
    assert not onnxfold.optimize(once.model, check=None, **chosen).changed


def test_what_is_no_call_has_the_body_of_its_own_type() -> None:
    """A call's body supports float32 and half, with Casts that other norms do not need."""
    once = onnxfold.optimize(_two_epsilons((1e-6, 1e-5, 1e-6), 0), target="kernels", check=0)
    operators = [node.op_type for node in once.model.graph]
    assert "Pow" in operators
    assert not {"Cast", "CastLike"} & set(operators)
