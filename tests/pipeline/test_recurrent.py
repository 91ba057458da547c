"""Layer-normalised RNN, GRU and LSTM: the norms of gates fold (first paper, appendix C.2.1)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from tests.pipeline.recurrent import GATES, HIDDEN, Layer, recurrent_model

LAYERS = [
    Layer(cell, **options)
    for cell in GATES
    for options in (
        {},
        {"loop": "Loop", "inside": True},
        {"grouped": True},
        {"separate": True, "inside": True},
        {"sequences": 2},
        {"loop": "Loop", "grouped": True, "separate": True, "sequences": 2},
        {"loop": "Loop", "keras": True},
        {"keras": True, "inside": True, "separate": True},
    )
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_norms_of_gates_fold_and_that_of_the_cell_says_why_not(layer: Layer) -> None:
    result = onnxfold.optimize(recurrent_model(layer), check=1)
    norms = result.report["inspect"]["norms"]
    of_gates = layer.sequences * (2 if layer.separate or layer.cell == "gru" else 1)
    assert sum(norm["foldable"] for norm in norms) == of_gates
    left = [norm["reason"] for norm in norms if not norm["foldable"]]
    assert len(left) == (layer.sequences if layer.cell == "lstm" else 0)
    # The state passes to the next step unchanged: it is not a linear layer's output.
    assert all(
        r["code"] == "graph_output" and "'c_next' is an output" in r["sentence"] for r in left
    )
    assert result.report["verification"]["passed"]
    assert result.report["proof"]["passed"]
    assert "left_out" not in result.report


def test_a_weight_that_bodies_share_is_centred_once() -> None:
    model = recurrent_model(Layer("gru", sequences=2))
    changed = onnxfold.optimize(model, check=1).model
    weights = {t.name: numpy_helper.to_array(t) for t in changed.graph.initializer}
    wide = [w for w in weights.values() if w.ndim == 2 and w.shape[1] == 3 * HIDDEN]
    assert len(wide) == 2  # W and U, as many as before
    for weight in wide:
        # A stored mean is off by the rounding of its row.
        bound = 2.0**-24 * np.abs(weight).max()
        assert np.abs(weight.mean(1, dtype=np.float64)).max() <= bound


def test_a_linear_rnn_is_refused_since_its_state_reads_its_own_mean() -> None:
    """h_t = W x_t + R h_(t-1) + b: centered, R would read P h_(t-1) in the place of h_(t-1)."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"W": (1, 8, 5), "R": (1, 8, 8), "B": (1, 16), "g": 8, "b": 8}.items()
    }
    rnn = helper.make_node("RNN", ["X", "W", "R", "B"], ["H"], hidden_size=HIDDEN,
                           activations=["Affine"], activation_alpha=[1.0])  # fmt: skip
    norm = helper.make_node("LayerNormalization", ["H", "g", "b"], ["Y"], axis=-1)
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [4, 2, 5])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [4, 1, 2, 8])
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([rnn, norm], "linear", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    (found,) = onnxfold.inspect(model)["norms"]
    assert not found["foldable"]
    assert found["reason"]["code"] == "activation"
    assert "reads its result at the next step" in found["reason"]["sentence"]
