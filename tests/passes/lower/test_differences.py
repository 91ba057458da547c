"""Norms without an operator that subtract two means: of x, and in torch.std."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error

_MEANS = "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
_SUMMED = (
    "m2 = ReduceMean<axes=[-1]>(h) d2 = Sub(h, m2) c = Mul(d2, d2) v = ReduceMean<axes=[-1]>(c) "
)
_ROOT = "s = Sqrt(v) e = Add(s, eps) "
_UNBIASED = "f = Mul(v, ratio) s = Sqrt(f) e = Add(s, eps) "
_AFFINE = "q = Div(d, e) g = Mul(q, gamma) n = Add(g, beta) y = MatMul(n, V)"


@pytest.mark.parametrize("root", [_ROOT, _UNBIASED], ids=["std", "unbiased std"])
def test_a_norm_by_its_standard_deviation_folds_and_its_affine_part_moves(root: str) -> None:
    """(x - mean(x)) / (std(x) + e) * g + b, as in The Annotated Transformer."""
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), V=(6, 4))
    made |= {"eps": np.array(1e-6), "ratio": np.array(6 / 5)}
    if root is _ROOT:
        del made["ratio"]
    body = _MEANS + _SUMMED + root + _AFFINE
    model = graph(body, "double[B,4,6] x", "double[B,4,4] y", made, opset=17)
    result = onnxfold.optimize(model, check=0)
    assert "left_out" not in result.report
    assert len(result.plan.folds) == 1
    operators = Counter(node.op_type for node in result.model.graph)
    assert operators["Sub"] == 0
    assert operators["ReduceMean"] == 1
    assert [(each.gamma, each.beta) for each in result.plan.fusions] == [(True, True)]
    assert operators["Add"] == 2  # epsilon, and beta after the layer
    # Both run in float64: some twenty roundings of numbers near 1.
    assert error(model, result.model) < 2.0**-45
    assert not onnxfold.optimize(result.model, check=None).changed


def test_a_difference_that_something_else_reads_keeps_the_norm() -> None:
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), V=(6, 4)) | {"eps": np.array(1e-6)}
    body = _MEANS + _SUMMED + _ROOT + _AFFINE
    outputs = "double[B,4,4] y, double[B,4,6] d2"
    result = onnxfold.optimize(graph(body, "double[B,4,6] x", outputs, made, opset=17), check=0)
    assert not result.plan.folds
