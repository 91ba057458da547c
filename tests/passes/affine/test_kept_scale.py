"""The scale that stays where gamma moves: a power of two, which the weights take back exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.model_io.load import open_source
from onnxfold.options import Target
from onnxfold.passes.affine import apply
from onnxfold.passes.affine.decide import decide
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error, forced, fuse

NORM = "n = LayerNormalization<axis=-1, epsilon=1e-5>(h, G, B)"
SPELLED = (
    "mean = ReduceMean<axes=[-1]>(h)  d = Sub(h, mean)  square = Pow(d, two)"
    "  v = ReduceMean<axes=[-1]>(square)  e = Add(v, tiny)  root = Sqrt(e)"
    "  q = Div(d, root)  g = Mul(q, G)  n = Add(g, B)"
)
RMS = (
    "square = Pow(h, two)  v = ReduceMean<axes=[-1]>(square)  e = Add(v, tiny)  root = Sqrt(e)"
    "  q = Div(h, root)  n = Mul(q, G)"
)


def model(
    *, gamma: Array, beta: Array | None = None, W: Array | None = None, kind: str = "float",
    body: str = NORM, opset: int = 18,
) -> onnx.ModelProto:  # fmt: skip
    """A layer, a norm and a layer, eight channels wide."""
    rng = np.random.default_rng(0)
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
        f"g ({kind}[B,3,4] x) => ({kind}[B,3,8] y) {{"
        f" h = MatMul(x, V)  {body}  m = MatMul(n, W)  y = Add(m, c) }}"
    )
    dtype = np.float16 if kind == "float16" else np.float32
    arrays = {
        "V": rng.standard_normal((4, 8)),
        "W": rng.standard_normal((8, 8)) if W is None else W,
        "c": rng.standard_normal(8),
        "G": gamma,
        "B": np.zeros(8) if beta is None else beta,
        "two": np.array(2.0),
        "tiny": np.array(1e-5),
    }
    read = {operand for node in proto.graph.node for operand in node.input}
    for name, array in arrays.items():
        if name in read:
            proto.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    return proto


def initializers(proto: onnx.ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}


GAMMA = np.linspace(0.5, 1.5, 8)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_no_norm_multiplies_by_ones(target: str, kind: str) -> None:
    original = model(gamma=GAMMA, kind=kind)
    result = onnxfold.optimize(original, target=target)
    (fusion,) = result.plan.fusions
    assert (fusion.gamma, fusion.left) == (True, 0.5)
    after = initializers(result.model)
    assert not any(np.all(array == 1) for array in after.values() if array.size > 1)
    assert any(np.all(array == 0.5) for array in after.values() if array.size > 1)
    before = initializers(original)
    exact = before["W"].astype(np.float64) * before["G"].astype(np.float64)[:, None]
    assert np.array_equal(after["W"], 2 * exact.astype(after["W"].dtype))
    again = onnxfold.optimize(result.model, target=target, check=0)
    assert not again.changed


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize(("body", "chosen"), [(SPELLED, "auto"), (RMS, "always")])
def test_a_norm_in_operators_keeps_its_product(body: str, chosen: str, target: str) -> None:
    beta = np.linspace(-1, 1, 8) if body is SPELLED else None
    original = model(gamma=GAMMA, beta=beta, body=body, opset=17)
    result = onnxfold.optimize(original, target=target, fuse_affine=chosen)
    (fusion,) = result.plan.fusions
    assert (fusion.gamma, fusion.beta, fusion.left) == (True, body is SPELLED, 0.5)
    after = initializers(result.model)
    assert not any(np.all(array == 1) for array in after.values() if array.size > 1)
    assert not onnxfold.optimize(result.model, target=target, fuse_affine=chosen).changed


def test_a_norm_that_was_not_trained_gets_a_scale_as_well() -> None:
    """ONNX Runtime makes one operator of a norm with a product alone; ones would be taken away."""
    original = model(gamma=np.ones(8))
    result = onnxfold.optimize(original)
    assert len(result.plan.folds) == 1
    (fusion,) = result.plan.fusions
    assert (fusion.gamma, fusion.beta, fusion.left) == (False, False, 0.5)
    assert result.report["inspect"]["summary"]["gamma_fused"] == 0
    after = initializers(result.model)
    assert np.array_equal(after["W"], 2 * initializers(original)["W"])
    assert not onnxfold.optimize(result.model, check=0).changed


def test_a_norm_without_gamma_or_reader_stays_one_operator() -> None:
    body = NORM.replace("n = ", "k = ") + "  n = Relu(k)"
    original = model(gamma=np.ones(8), body=body)
    result = onnxfold.optimize(original)
    assert result.plan.folds == ()
    (norm,) = result.report["inspect"]["norms"]
    assert norm["foldable"]
    assert norm["reason"]["code"] == "comes_apart"
    assert "onnxslim" in norm["reason"]["sentence"]
    assert norm["affine_reason"] is None
    for options in ({"target": "ort"}, {"norm_form": "decomposed"}):
        assert len(onnxfold.optimize(original, **options).plan.folds) == 1


def test_where_half_floats_overflow_the_norm_multiplies_by_two() -> None:
    W = np.full((8, 8), 40_000.0)
    result = onnxfold.optimize(model(gamma=GAMMA, W=W, kind="float16"), check=0)
    (fusion,) = result.plan.fusions
    assert fusion.left == 2.0
    assert np.all(np.isfinite(initializers(result.model)["W"]))


def test_where_neither_is_exact_gamma_stays() -> None:
    W = np.full((8, 8), 40_000.0)
    W[0, 0] = 2.0**-14
    result = onnxfold.optimize(model(gamma=GAMMA, W=W, kind="float16"), check=0)
    assert not any(fusion.gamma for fusion in result.plan.fusions)
    (norm,) = result.report["inspect"]["norms"]
    assert norm["affine_reason"]["code"] == "non_finite_weight"


@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_a_scale_that_the_weights_do_not_take_back_breaks_the_model_and_its_proof(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"{NORM.replace('(h, G, B)', '(x, G)')} y = MatMul(n, W)"
    made = weights(W=(16, 8))
    made["G"] = np.linspace(0.5, 1.5, 16)
    source = graph(body, "double[2,5,16] x", "double[2,5,8] y", made)
    plan = fuse(source).decision
    (fusion,) = plan.fusions
    right = forced(source, (replace(fusion, left=0.5),))
    assert right.proof.passed
    assert error(source, right.model) < 1e-12
    whole = apply.Norms._filled
    monkeypatch.setattr(apply.Norms, "_filled", lambda self, like, _: whole(self, like, wrong))
    broken = forced(source, (replace(fusion, left=0.5),))
    assert not broken.proof.passed
    assert error(source, broken.model) > 1e-2


@pytest.mark.parametrize("name", ["llama-small", "gptj"])
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_always_moves_what_auto_leaves(name: str, target: str) -> None:
    from tests.passes.lower.test_weightless import RECIPES

    result = onnxfold.optimize(
        RECIPES / f"{name}.onnx", target=target, fuse_affine="always", dry_run=True
    )
    norms = result.report["inspect"]["norms"]
    left = [row for row in norms if row["affine"] and not row["gamma_fused"]]
    assert Counter(row["affine_reason"]["code"] for row in left) == (
        {} if name == "llama-small" else {"graph_output": 1}
    )
    betas = [row for row in norms if "beta" in row["affine"]]
    assert sum(row["beta_fused"] for row in betas) == max(0, len(betas) - 1)


def test_always_adds_a_bias_and_auto_does_not() -> None:
    """beta of a norm that stays a LayerNorm costs nothing where it is."""
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        f"g (float[B,3,8] h) => (float[B,3,8] y) {{ {NORM}  y = MatMul(n, W) }}"
    )
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"G": (8,), "B": (8,), "W": (8, 8)}.items():
        array = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    assert not onnxfold.optimize(proto).changed
    result = onnxfold.optimize(proto, fuse_affine="always")
    assert [node.op_type for node in result.model.graph.node] == [
        "LayerNormalization", "MatMul", "Add"
    ]  # fmt: skip
    assert not onnxfold.optimize(result.model, fuse_affine="always").changed
    assert not onnxfold.optimize(result.model).changed
    assert not onnxfold.optimize(proto, fuse_affine="never").changed


def test_fuse_affine_takes_what_it_took() -> None:
    original = model(gamma=GAMMA)
    for moves, given in ((True, True), (False, False), (True, "auto"), (False, "never")):
        assert bool(onnxfold.optimize(original, fuse_affine=given).plan.fusions) is moves
    with pytest.raises(onnxfold.OnnxfoldError, match="sometimes"):
        onnxfold.optimize(original, fuse_affine="sometimes")


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_norm_of_no_elements_keeps_what_it_has(target: str) -> None:
    """The scale that it kept got a new name in each run."""
    shapes = {"W": (3, 0), "gamma": (0,), "beta": (0,), "V": (0, 4)}
    constants: dict[str, Array] = {
        name: np.zeros(each, np.float32) for name, each in shapes.items()
    }
    body = "h = MatMul(x, W) n = LayerNormalization<axis=-1>(h, gamma, beta) y = MatMul(n, V)"
    model = graph(body, "float[B,3] x", "float[B,4] y", constants, opset=17)
    assert not onnxfold.optimize(model, target=target, check=0, fuse_affine="always").changed


@pytest.mark.parametrize("gamma", [GAMMA, np.ones(8)], ids=["gamma", "ones"])
def test_folds_are_planned_for_norms_without_gamma_alone(gamma: Array) -> None:
    """It takes a plan of all norms to tell whether such a norm needs a scale."""
    info = prepare(open_source(model(gamma=gamma)).model).info
    asked: list[frozenset[str]] = []

    def folding(info: ModelInfo, settings: Settings, with_beta: frozenset[str]) -> frozenset[str]:
        asked.append(with_beta)
        return frozenset()

    decide(info, Settings(Target.ONNX), folding)
    assert bool(asked) == bool(np.ptp(gamma) == 0)
