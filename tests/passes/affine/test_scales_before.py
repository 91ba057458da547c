"""A norm that folds once a scale before it has moved gives its gamma and beta away, too."""

from __future__ import annotations

import numpy as np

import onnxfold
from tests.graphs import graph, weights


def test_gamma_behind_a_layer_scale_moves_out_of_a_norm_that_is_spelled_out() -> None:
    """As in DINOv2 and CaiT, exported before opset 17."""
    body = (
        "p = MatMul(x, W) b = Add(p, bias) h = Mul(b, layerscale) u = ReduceMean<axes=[-1]>(h) "
        "d = Sub(h, u) c = Pow(d, two) v = ReduceMean<axes=[-1]>(c) e = Add(v, eps) r = Sqrt(e) "
        "q = Div(d, r) g = Mul(q, gamma) n = Add(g, beta) k = MatMul(n, V) y = Add(k, last)"
    )
    shapes = {"W": (6, 6), "gamma": (6,), "beta": (6,), "V": (6, 4), "last": (4,)}
    made = weights(**shapes, bias=(6,), layerscale=(6,)) | {"eps": 1e-5, "two": 2.0}
    constants = {name: np.asarray(array, np.float32) for name, array in made.items()}
    model = graph(body, "float[B,4,6] x", "float[B,4,4] y", constants, opset=13)
    result = onnxfold.optimize(model)
    assert [(each.gamma, each.beta) for each in result.plan.fusions] == [(True, True)]
    assert len(result.plan.folds) == len(result.plan.scales) == 1


def test_a_gamma_that_a_scale_went_into_is_rounded_once() -> None:
    """A weight of half floats becomes the product of all three, rounded once."""
    body = (
        "n = LayerNormalization(x, gamma) t = Transpose(n) s = Mul(t, scale) z = Transpose(s) "
        "y = MatMul(z, W)"
    )
    made = weights(gamma=(16,), W=(16, 16), scale=(16, 1))
    half = {name: np.asarray(array, np.float16) for name, array in made.items()}
    result = onnxfold.optimize(graph(body, "float16[5,16] x", "float16[5,16] y", half))
    assert len(result.plan.scales) == 1
    assert [each.gamma for each in result.plan.fusions] == [True]
    gamma, W, scale = (array.astype(np.float64) for array in half.values())
    stored = result.model.graph.initializers["W"].const_value.numpy()
    kept = 0.5  # what the norm still multiplies by
    assert np.array_equal(stored, (gamma[:, None] * scale * W / kept).astype(np.float16))
