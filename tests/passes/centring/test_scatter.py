"""Norms behind message passing: what edges carry is added up at nodes, by rows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.graphs import graph, weights
from tests.soundness.folding import evaluate, fold, relative_error

N, E, C = 4, 6, 8  # nodes, edges, channels
_EDGES = "h = MatMul(x, W) s = Gather(h, src) m = Mul(s, w) "
_NORM = " k = Add(a, b) y = LayerNormalization<axis=-1>(k, gamma, beta)"
_ROWS = "i = Unsqueeze(dst, one) "
_EVERYWHERE = _ROWS + "j = Expand(i, wide) "
_FOLDING = {
    "index_add by dynamo": _ROWS + 'a = ScatterND<reduction="add">(zeros, i, m)',
    "rows replaced": _ROWS + "a = ScatterND(zeros, i, m)",
    "scatter_add": _EVERYWHERE + 'a = ScatterElements<axis=0, reduction="add">(zeros, j, m)',
    "edges of the model": 'a = ScatterElements<axis=-2, reduction="add">(zeros, alike, m)',
    "added to the stream": _EVERYWHERE + 'a = ScatterElements<reduction="add">(h, j, m)',
}
_STAYING = {
    "another place for every channel": 'a = ScatterElements<reduction="add">(zeros, apart, m)',
    "places that are an input": 'a = ScatterElements<reduction="add">(zeros, places, m)',
    "some channels": _EVERYWHERE
    + "p = Slice(j, begin, few, one) q = Slice(m, begin, few, one) "
    + 'a = ScatterElements<reduction="add">(zeros, p, q)',
    "along the channels": 'a = ScatterElements<axis=1, reduction="add">(zeros, alike, m)',
    "numbers on their own": 'a = ScatterND<reduction="add">(zeros, pairs, c)',
    "the largest": _ROWS + 'a = ScatterND<reduction="max">(zeros, i, m)',
}


def _model(text: str) -> ir.Model:
    rows = np.array([0, 2, 1, 2, 0, 3])
    constants = {
        **weights(W=(5, C), b=(C,), gamma=(C,), beta=(C,), w=(E, 1), c=(2,)),
        "zeros": np.zeros((N, C)),
        "alike": np.repeat(rows[:, None], C, axis=1),
        "apart": (rows[:, None] + np.arange(C)) % N,
        "pairs": np.array([[0, 1], [2, 5]]),
        "one": np.array([1]),
        "begin": np.array([0]),
        "few": np.array([C // 2]),
        "wide": np.array([1, C]),
    }
    inputs = "double[4,5] x, int64[6] src, int64[6] dst, int64[6,8] places"
    return graph(text, inputs, "double y", constants, opset=18)


def _words(text: str) -> set[str]:
    for mark in "(),":
        text = text.replace(mark, " ")
    return set(text.split())


def _error(before: onnx.ModelProto, after: onnx.ModelProto) -> float:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((N, 5)),
        "src": rng.integers(0, N, E),
        "dst": np.array([3, 0, 2, 1, 0, 0]),
        "places": rng.integers(0, N, (E, C)),
    }
    return relative_error(evaluate(before, feeds), evaluate(after, feeds))


@pytest.mark.parametrize("name", _FOLDING)
def test_norms_behind_rows_that_are_added_up_fold(name: str) -> None:
    model = ir.to_proto(_model(_EDGES + _FOLDING[name] + _NORM))
    folded = fold(model)
    assert folded.proof.passed, folded.proof.failures
    assert len(folded.plan.folds) == folded.proof.folded_norms == 1
    assert not folded.plan.insertions
    # Float64 on both sides; sums of 5 terms, of at most E edges, and means of C channels.
    assert _error(model, folded.model) <= 64 * 2.0**-52


@pytest.mark.parametrize("name", _STAYING)
def test_what_does_not_move_whole_rows_stays(name: str) -> None:
    folded = fold(ir.to_proto(_model(_EDGES + _STAYING[name] + _NORM)))
    assert not folded.plan.folds
