"""LpNormalization and MeanVarianceNormalization times sqrt(d) g, plus b: one norm with both."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.graph.edit import change_constant
from onnxfold.norms import NormForm
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.proofs import prove_affine
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer
from tests.graphs import graph
from tests.passes.affine.affine_graphs import error, fuse

BOUND = 1e-12  # float64 throughout
RNG = np.random.default_rng(0)
D = 6
MADE = {
    "g": RNG.uniform(0.5, 2, D) * np.sqrt(D),
    "root": np.float64(np.sqrt(D)),
    "b": RNG.standard_normal(D),
    "column": RNG.uniform(0.5, 2, (D, 1)),
    "rows": RNG.uniform(0.5, 2, (4, 1)),
    "W": RNG.standard_normal((D, 3)),
    "c": RNG.standard_normal(3),
}
LP, MVN = "n = LpNormalization<axis=-1>(x)", "n = MeanVarianceNormalization<axes=[-1]>(x)"
MOVES = {
    "a vector": f"{LP} s = Mul(n, g) y = MatMul(s, W)",
    "from the left": f"{LP} s = Mul(g, n) y = MatMul(s, W)",
    "one number": f"{LP} s = Mul(n, root) y = MatMul(s, W)",
    "and a bias": f"{LP} s = Mul(n, g) t = Add(s, b) y = Gemm(t, W, c)",
    "variance": f"{MVN} s = Mul(n, g) t = Add(b, s) y = Gemm(t, W, c)",
    "another axis": "n = LpNormalization<axis=0>(x) s = Mul(n, rows) t = Transpose<perm=[1,0]>(s) "
    "y = MatMul(t, V)",
}
STAYS = {
    "along rows": f"{LP} s = Mul(n, rows) y = MatMul(s, W)",
    "read twice": f"{LP} s = Mul(n, g) z = Tanh(n) y = MatMul(s, W)",
    "not linear": f"{LP} s = Mul(n, g) y = Tanh(s)",
    "length 1": "n = LpNormalization<axis=-1, p=1>(x) s = Mul(n, g) y = MatMul(s, W)",
}


def _model(text: str, dtype: str = "double") -> ir.Model:
    named = MADE | {"V": RNG.standard_normal((4, 3))}
    read = set(re.findall(r"\w+", text))
    made = {n: np.asarray(a, dtype.replace("float", "float32")) for n, a in named.items()
            if n in read}  # fmt: skip
    outputs = f"{dtype}[a,b] y" + (f", {dtype}[4,{D}] z" if "z =" in text else "")
    return graph(text, f"{dtype}[4,{D}] x", outputs, made, 17)


@pytest.mark.parametrize("case", MOVES)
def test_the_product_is_part_of_the_norm_and_moves(case: str) -> None:
    model = _model(MOVES[case])
    fused = fuse(model)
    assert fused.moved == (1, int("t = Add" in MOVES[case]))
    assert fused.proof.passed, fused.proof.failures
    assert {node.op_type for node in fused.model.graph} & {"Mul", "Add"} == set()
    assert error(model, fused.model) < BOUND
    assert not any(site.gamma is not None for site in find_norms(infer(fused.model)))


@pytest.mark.parametrize("case", STAYS)
def test_what_is_not_its_gamma_stays(case: str) -> None:
    model = _model(STAYS[case])
    sites = find_norms(prepare(model).info)
    if case == "not linear":
        assert [site.form for site in sites] == [NormForm.DECOMPOSED]
    else:
        assert not any(site.gamma is not None for site in sites)
    made = onnxfold.optimize(ir.to_proto(_model(STAYS[case], "float")), check=0)
    assert "Mul" in {node.op_type for node in made.model.graph.node}


def test_a_weight_that_did_not_take_it_fails_the_proof() -> None:
    model = _model(MOVES["a vector"])
    fused = fuse(model)
    kept = model.graph.initializers["W"].const_value
    assert kept is not None
    change_constant(fused.model.graph.initializers["W"], ir.tensor(kept.numpy(), name="W"))
    proof = prove_affine(infer(prepare(model).model), infer(fused.model), fused.decision.fusions)
    assert not proof.passed


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("case", ["a vector", "variance", "another axis"])
def test_a_second_run_changes_nothing(case: str, target: str) -> None:
    model: onnx.ModelProto = ir.to_proto(_model(MOVES[case], "float"))
    once = onnxfold.optimize(model, target=target)
    assert once.changed
    assert not onnxfold.optimize(once.model, target=target).changed
    x = RNG.standard_normal((4, D)).astype(np.float32)
    x[0], x[1], x[2] = 0, 7, x[2] + 1e3
    first, second = (
        run(ir.from_proto(each), {"x": x}, precision=Precision.FLOAT64)["y"]
        for each in (model, once.model)
    )
    assert np.abs(first - second).max() <= 1e-6 * np.abs(first).max()
