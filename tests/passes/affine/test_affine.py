"""Gamma and beta in the weights: the same function, in float64, for every reader and layout."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from onnxfold.check.compare import verify
from onnxfold.model_io.load import Source
from tests.case_files import read, shapes
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import BOUND, error, forced, fuse, rightly

LN = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
RMS = "n = SimplifiedLayerNormalization<axis=-1>(x, gamma)"
X = "double[B,4,6] x"
AFFINE = {"gamma": (6,), "beta": (6,)}

Shapes = dict[str, tuple[int, ...]]
MOVES = read("affine_moves")
HARMFUL = read("affine_refusals")
FIXED = {
    "to_heads": np.array([0, 0, 2, 3]),
    "to_tokens": np.array([0, 0, 6]),
    "to_rows": np.array([-1, 6]),
    "to_batch": np.array([-1, 4, 5]),
    "axis1": np.array([1]),
    "twice": np.array([1.0, 1.0, 2.0], np.float32),
    "half": np.array([1.0, 1.0, 0.5], np.float32),
    "picked": np.array([[[1], [3]], [[0], [0]]]),
    "choice": np.array([[True], [False]]),
    "tokens": np.array(1),
    "axis2": np.array([2]),
    "one": np.array(1),
    "pads": np.array([0, 1, 0, 0, 2, 0]),
    "epsilon": np.array(0.7),
    "roi": np.array([0, 0, -0.5, 1, 1, 1.5], np.float32),
    "at_token": np.array([0, 2, 0]),
    "to_token": np.array([2**62, 3, 6]),
    "axes3": np.arange(3),
    "last": np.array([-1]),
    "first": np.array([-1000]),
    "minus": np.array([-1]),
}


def _model(
    body: str, sizes: Shapes, results: str = "double[] y", dtype: npt.DTypeLike = None
) -> ir.Model:
    # Shape inference does not know FusedMatMul with operands of different ranks.
    body = f"<double[B,4,5] m> {body}" if "Fused" in body else body
    made = weights(**(AFFINE | sizes)) | FIXED
    given, kind = f"double[B,4,{made['gamma'].size}] x", "double" if dtype is None else "float"
    given, results = (text.replace("double", kind) for text in (given, results))
    model = graph(body, given, results, made, dtype=dtype)
    for value in model.graph.outputs:
        value.shape = None
    return model


def _case(name: str, more: str = "", **results: str) -> ir.Model:
    return _model(f"{MOVES[name].body} {more}", shapes(MOVES[name].columns[0]), **results)


@pytest.mark.parametrize("case", MOVES)
def test_gamma_and_beta_move_and_nothing_else_changes(case: str) -> None:
    before = _case(case)
    fused = rightly(before, (1, int(MOVES[case].columns[1])))
    again = fuse(fused.model) if "dyt" not in case else fused
    assert again is fused or again.moved == (0, 0)


def test_a_norm_in_parts_loses_its_operators_and_keeps_its_name() -> None:
    fused = fuse(_case("a norm in parts"))
    nodes = list(fused.model.graph)
    assert [node.op_type for node in nodes].count("Mul") == 1  # the square
    (division,) = [node for node in nodes if node.op_type == "Div"]
    assert division.outputs[0].name == "n"
    assert not {"gamma", "beta"} & set(fused.model.graph.initializers)


def test_beta_over_gamma_stays_where_only_gamma_can_move_and_that_saves_an_operator() -> None:
    before = _model(
        "a = Mul(x, epsilon) h = Tanh(a) g = Mul(h, gamma) n = Add(g, beta) y = MatMul(n, W)",
        {"W": (6, 5)},
    )
    fused = rightly(before, (1, 0))
    assert [node.op_type for node in fused.model.graph] == ["Mul", "Tanh", "Add", "MatMul"]


@pytest.mark.parametrize("reader", ["", "k = Tanh(z)"])
def test_a_norm_whose_inside_is_read_keeps_its_gamma(reader: str) -> None:
    before = _case("a norm in parts", reader, results=f"double[] y, double[] {reader[:1] or 'z'}")
    fused = fuse(before)
    assert fused.moved == (0, 0)
    assert [value.name for value in fused.model.graph.outputs] == ["y", reader[:1] or "z"]


def test_a_beta_of_zeros_needs_no_bias() -> None:
    parts = MOVES["a norm in parts"]
    body = parts.body.replace("m = MatMul(n, W) y = Add(m, b)", "y = MatMul(n, W)")
    before = _model(body, shapes(parts.columns[0]))
    before.graph.initializers["beta"].const_value = ir.tensor(np.zeros(6))
    fused = fuse(before)
    assert fused.moved == (1, 1)
    assert error(before, fused.model) < BOUND
    assert [node.op_type for node in fused.model.graph].count("Add") == 1  # of epsilon


@pytest.mark.parametrize("case", HARMFUL)
def test_what_is_refused_would_change_the_function_and_fail_the_proof(case: str) -> None:
    harmless, harmful = _pair(case)
    right = fuse(harmless, limit=0)
    fusions = right.decision.fusions[:1]
    assert fusions
    assert right.proof.passed
    decided = fuse(harmful, limit=0)
    assert fusions[0].output not in {fusion.output for fusion in decided.decision.fusions}
    wrong = forced(harmful, fusions)
    assert error(harmful, wrong.model) > 1e-2
    assert not wrong.proof.passed


def _pair(case: str, dtype: npt.DTypeLike = None) -> tuple[ir.Model, ir.Model]:
    """What is allowed, and the like of it that is not."""
    sizes, bodies = shapes(HARMFUL[case].columns[0]), HARMFUL[case].bodies
    both = "double[] y, double[] n" if "output" in case else "double[] y"
    return (
        _model(bodies["allowed"], sizes, dtype=dtype),
        _model(bodies["refused"], sizes, both, dtype),
    )


@pytest.mark.parametrize(
    "case",
    [
        "a residual reads the norm",
        "the norm is an output",
        "padding with a number and gamma",
        "padding and beta",
        "two gammas on one weight",
        "a padded conv and beta",
        "a matmul on the wrong side",
    ],
)
def test_what_is_refused_fails_the_verification_too(case: str) -> None:
    harmless, harmful = _pair(case, np.float32)
    right = fuse(harmless, limit=0)
    assert verify(Source(harmless), Source(right.model), samples=1).passed
    wrong = forced(harmful, right.decision.fusions[:1])
    verification = verify(Source(harmful), Source(wrong.model), samples=1)
    assert not verification.passed
    assert verification.noise_ratio > 1e3


def _two_gammas() -> ir.Model:
    two = HARMFUL["two gammas on one weight"]
    body = two.bodies["refused"].replace("y = Add(r, k)", "y = Identity(r)")
    return _model(body, shapes(two.columns[0]))


def test_a_small_weight_of_two_norms_is_stored_twice() -> None:
    before = _two_gammas()
    rightly(before, (2, 2))


def test_a_weight_of_three_norms_is_stored_once_for_each_gamma() -> None:
    norms = (f"n{k} = SimplifiedLayerNormalization<axis=-1>(x, gamma{k}) " for k in range(3))
    body = "".join(norms) + "a = MatMul(n0, W) b = MatMul(n1, W) c = MatMul(n2, W) y = Sum(a, b, c)"
    before = _model(body, {"W": (6, 5)} | {f"gamma{k}": (6,) for k in range(3)})
    fused = rightly(before, (3, 0))
    assert (fused.proof.scaled_weights, fused.proof.shifted_biases) == (3, 0)


def test_a_weight_as_large_as_the_limit_is_stored_twice_and_a_larger_one_is_not() -> None:
    model = _two_gammas()
    bytes_of_W = 8 * 6 * 6
    assert fuse(model, limit=bytes_of_W).moved == (2, 2)
    assert fuse(model, limit=bytes_of_W - 1).moved != (2, 2)


def test_norms_of_one_gamma_share_a_weight_in_place() -> None:
    body = (
        f"{LN} m = MatMul(n, W) a = Add(m, b) t = Tanh(a) "
        "k = LayerNormalization<axis=-1>(t, gamma, beta) c = MatMul(k, W) y = Add(c, b)"
    )
    before = _model(body, {"W": (6, 6), "b": (6,)})
    fused = rightly(before, (2, 2), limit=0)
    assert "W" in fused.model.graph.initializers
    assert len([v for v in fused.model.graph.initializers if v.startswith("W")]) == 1


@pytest.mark.parametrize("name", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_gamma_of_a_centring_that_ends_in_an_rms_operator_moves(name: str) -> None:
    """gamma is then an operand of the operator, not a Mul after it."""
    model = graph(
        f"u = ReduceMean(x, axes) d = Sub(x, u) n = {name}<axis=-1>(d, gamma) y = MatMul(n, W)",
        X,
        "double[B,4,5] y",
        weights(gamma=(6,), W=(6, 5)) | {"axes": np.array([-1])},
        opset=23,
    )
    rightly(model, (1, 0))


def test_many_layers_with_weights_in_constant_nodes_take_gamma_and_beta() -> None:
    """Their stored weights counted as unknown values: the proof gave up."""
    layers = range(8)
    shapes: Shapes = dict(AFFINE)
    for i in layers:
        shapes |= {f"W{i}": (6, 5), f"b{i}": (5,)}
    body = " ".join(f"m{i} = MatMul(n, W{i}) y{i} = Add(m{i}, b{i})" for i in layers)
    made = weights(**shapes)
    constants = " ".join(
        f"{name} = Constant<value = double[{','.join(map(str, array.shape))}] "
        f"{{{','.join(map(repr, array.ravel().tolist()))}}}>()"
        for name, array in made.items()
    )
    outputs = ", ".join(f"double[B,4,5] y{i}" for i in layers)
    found = fuse(graph(f"{constants} {LN} {body}", X, outputs, {}))
    assert found.decision.fusions
    assert found.proof.passed


def test_gamma_and_beta_in_front_of_a_cast_at_the_end_of_a_norm_go() -> None:
    body = (
        "w = Cast<to=11>(x) m = ReduceMean<keepdims=1>(w, last) d = Sub(w, m) s = Mul(d, d) "
        "v = ReduceMean<keepdims=1>(s, last) e = Add(v, epsilon) r = Sqrt(e) q = Div(d, r) "
        "g = Mul(q, gamma) n = Add(g, beta) c = Cast<to=1>(n) k = MatMul(c, W) y = Add(k, b)"
    )
    single = {name: a.astype(np.float32) for name, a in weights(W=(6, 5), b=(5,)).items()}
    made = weights(**AFFINE) | {"epsilon": np.array(1e-5), "last": np.array([-1])} | single
    found = fuse(graph(body, "float[2,3,6] x", "float[2,3,5] y", made))
    assert found.moved == (1, 1)
    assert found.proof.passed
    ends = [node.op_type for node in found.model.graph][-4:]
    assert ends == ["Div", "Cast", "MatMul", "Add"]


@pytest.mark.parametrize("op_type", ["Reciprocal", "Exp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gamma_that_is_computed_from_constants_moves(op_type: str, dtype: type) -> None:
    """With the numbers that it has before the rounding to its type."""
    body = f"k = {op_type}(gamma) n = LayerNormalization(x, k) y = MatMul(n, W)"
    made = {name: a.astype(dtype) for name, a in weights(gamma=(6,), W=(6, 5)).items()}
    name = "float" if dtype is np.float32 else "double"
    found = fuse(graph(body, f"{name}[2,3,6] x", f"{name}[2,3,5] y", made))
    assert found.moved == (1, 0)
    assert found.proof.passed


def test_a_gamma_of_one_and_a_weight_moves() -> None:
    """LayerNorm1P of Megatron, in float32, where 1 + w is rounded."""
    body = "k = Add(gamma, one) n = LayerNormalization(x, k, beta) h = MatMul(n, W) y = Add(h, b)"
    made = weights(W=(6, 5), b=(5,), **AFFINE) | {"one": np.ones(())}
    single = {name: array.astype(np.float32) for name, array in made.items()}
    found = fuse(graph(body, "float[2,3,6] x", "float[2,3,5] y", single))
    assert found.moved == (1, 1)
    assert found.proof.passed
