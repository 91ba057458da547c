"""What is known of a part of the sets of a value shows nothing of the other sets."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.proof import Certificate, Proof
from onnxfold.proof import prove as prove_models
from onnxfold.shapes import infer
from onnxfold.weights.edited import centred
from tests.graphs import Array, graph, weights

_SETS, _SIZE, _FIRST = 50, 6, 4  # random indices are below 3
_NORM = "y = LayerNormalization<axis=-1>(one, gamma)"
_ONE = "h = MatMul(x, W) r = Reshape(h, sets) one = Gather<axis=1>(r, {index}) "
_RMS = (
    "square = Mul(one, one) mean = ReduceMean<keepdims=1>(square, last) "
    "moved = Add(mean, epsilon) root = Sqrt(moved) norm = Div(one, root) y = Mul(norm, gamma)"
)


def _model(body: str, W: Array, index: str = "which") -> ir.Model:
    made = {name: a.astype(np.float32) for name, a in weights(gamma=(_SIZE,)).items()}
    made |= {"W": W, "sets": np.array([0, _SETS, _SIZE]), "first": np.array(1)}
    made |= {"last": np.array([-1]), "epsilon": np.array(1e-5, np.float32)}
    text = _ONE.format(index=index) + body
    inputs = "float[B,3] x" + (", int64 which" if index == "which" else "")
    return graph(text, inputs, f"float[B,{_SIZE}] y", made)


def _fiber(chosen: range) -> Fiber:
    """Of the columns of W, by set."""
    digit = AxisBlock(1, _SIZE, _SETS, 1)
    return Fiber((AxisBlock(1, 1, _SIZE, _SETS),)).within(
        (digit,), (number in chosen for number in range(_SETS))
    )


def _proof(before: str, after: str, chosen: range, index: str = "which") -> Proof:
    W = weights(W=(3, _SETS * _SIZE))["W"].astype(np.float32) + np.float32(0.5)
    fiber = _fiber(chosen)
    blocks = (AxisBlock(2, 1, _SIZE, 1),)
    chosen_sets = (number in chosen for number in range(_SETS))
    stacked = Fiber(blocks).within((AxisBlock(1, 1, _SETS, 1),), chosen_sets)
    changed = centred(W, fiber)
    assert not np.array_equal(W, changed)
    models = (_model(before, W, index), _model(after, changed, index))
    views = [infer(prepare(ir.from_proto(ir.to_proto(model))).model) for model in models]
    hints = (("W", fiber), ("h", fiber), ("r", stacked))
    return prove_models(*views, Certificate(hints, ("y",)))


def test_a_set_that_a_drawn_index_never_picks_may_have_moved() -> None:
    read = "y = Relu(one)"
    assert not _proof(read, read, range(_FIRST, _SETS)).passed
    assert _proof(read, read, range(_FIRST, _SETS), index="first").passed


def test_a_norm_of_a_set_that_an_input_picks_needs_all_of_mean_0() -> None:
    assert not _proof(_NORM, _RMS, range(_FIRST)).passed
    assert _proof(_NORM, _RMS, range(_FIRST), index="first").passed
    assert _proof(_NORM, _RMS, range(_SETS)).passed
