"""Layer-normalized RNN, GRU and LSTM as torch exports them, and Keras 3's by tf2onnx.

Torch: scripted, traced and by dynamo.  tf2onnx gives a Loop its weights as states.

The first paper, appendix C.2.1: a norm after W x_t + U h_(t-1) + b is foldable; a cell state's norm
is not, because c_t is not a linear layer's output and the next step multiplies it by a gate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.graph.sequences import is_unbind
from tests.sessions import outputs
from tests.soundness.float64 import relative_error

FIXTURES = Path(__file__).parent / "fixtures"
_STEPS = 4  # of the unrolled exports
# Foldable and all norms of a step; the codes of those that stay.
_COUNTS = {
    "rnn": (1, 1, set()),
    "gru": (2, 2, set()),
    "lstm": (2, 3, {"varies_along_fiber"}),
    "grouped_lstm": (4, 5, {"graph_output", "exact_reader", "varies_along_fiber"}),
    "twice": (3, 3, set()),
}
_EXPORTS = sorted(
    path.stem for path in FIXTURES.glob("*_*.onnx") if path.stem.rpartition("_")[0] in _COUNTS
)


@pytest.mark.parametrize("name", _EXPORTS)
def test_the_norms_of_gates_fold(name: str) -> None:
    cell, how = name.rsplit("_", 1)
    folds, norms, codes = _COUNTS[cell]
    times = 1 if how == "script" else _STEPS
    result = onnxfold.optimize(onnx.load(FIXTURES / f"{name}.onnx"), check=2)
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["norms"]) == (folds * times, norms * times)
    left = [norm["reason"]["code"] for norm in result.report["inspect"]["norms"]
            if not norm["foldable"]]  # fmt: skip
    assert set(left) <= codes
    assert result.report["proof"]["passed"]
    assert result.report["verification"]["passed"]
    assert "left_out" not in result.report


@pytest.mark.parametrize("name", [name for name in _EXPORTS if name.endswith("_script")])
def test_another_number_of_steps_gives_the_same_in_onnx_runtime(name: str) -> None:
    model = onnx.load(FIXTURES / f"{name}.onnx")
    rng = np.random.default_rng(0)
    shapes = {"x": (7, 3, 5), "h": (3, 8), "c": (3, 8)}
    feeds = {i.name: rng.standard_normal(shapes[i.name]).astype("f") for i in model.graph.input}
    changed = onnxfold.optimize(model, check=0).model
    results = [outputs(each, feeds) for each in (model, changed)]
    # 7 steps, each of which amplifies roundings by less than 10, and 40 additions.
    assert relative_error(*results) < 7 * 10 * 40 * 2.0**-24


@pytest.mark.parametrize(
    ("name", "norms"),
    [("rnn", 1), ("gru", 1), ("gru_by_gate", 3), ("lstm", 1), ("lstm_by_gate", 4)],
)
def test_the_norms_of_gates_fold_as_tf2onnx_writes_keras(name: str, norms: int) -> None:
    model = onnx.load(FIXTURES / "tf" / f"{name}.onnx")
    result = onnxfold.optimize(model, check=2)
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["norms"]) == (norms, norms)
    assert result.report["proof"]["passed"]
    assert result.report["verification"]["passed"]
    assert "left_out" not in result.report


def _unbound(keepdims: int, split: int | None, *, reads: str) -> onnx.ModelProto:
    """LayerNorm(SequenceAt(SplitToSequence(x), 0) W), or of the first of its halves."""
    given = "x" if split is None else "x, one"
    body = "n = LayerNormalization<axis = -1>(p, g)" if reads == "whole" else (
        "a, b = Split<axis = 1, num_outputs = 2>(p)"
        "m = LayerNormalization<axis = -1>(a, g) n = Add(m, b)"
    )  # fmt: skip
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3,6,4] x) => (float[a,b] y) {{
      one = Constant<value = int64 {{{split or 1}}}>()  first = Constant<value = int64 {{0}}>()
      q = SplitToSequence<axis = 0, keepdims = {keepdims}>({given})  s = SequenceAt(q, first)
      p = MatMul(s, W)
      {body}
      y = Identity(n)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    size = 8 if reads == "whole" else 4
    arrays = {"W": rng.standard_normal((4, 8)), "g": rng.standard_normal(size)}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype("f"), name))
    if keepdims:
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_param="c")
    return model


# ONNX Runtime 1.32 fails where keepdims 0 is to take away an axis of 2.
@pytest.mark.parametrize(("keepdims", "split"), [(0, None), (0, 1), (1, None), (1, 1), (1, 2)])
def test_what_a_sequence_holds_is_read_as_onnx_runtime_reads_it(
    keepdims: int, split: int | None
) -> None:
    model = _unbound(keepdims, split, reads="whole")
    result = onnxfold.optimize(model, check=1)
    unbinds = [node.op_type for node in result.model.graph.node if "Sequence" in node.op_type]
    assert (not unbinds) == (keepdims == 0 and split in (None, 1))
    x = np.random.default_rng(1).standard_normal((3, 6, 4)).astype("f")
    results = [outputs(each, {"x": x}) for each in (model, result.model)]
    # A product of 4 terms and a norm of 8 elements.
    assert relative_error(*results) < 32 * 2.0**-24


def test_an_axis_behind_unbind_is_counted_without_the_one_that_is_gone() -> None:
    """Halves on axis 1 are halves of the channels: one is centered, and the sum reads the other."""
    model = _unbound(0, 1, reads="half")
    result = onnxfold.optimize(model, check=1)
    (norm,) = result.report["inspect"]["norms"]
    assert norm["size"] == 4
    assert norm["foldable"]
    before, after = (
        onnx.numpy_helper.to_array(next(t for t in m.graph.initializer if t.name.startswith("W")))
        for m in (model, result.model)
    )
    changed = [
        not np.array_equal(before[:, half], after[:, half]) for half in (np.s_[:4], np.s_[4:])
    ]
    assert sorted(changed) == [False, True]
    x = np.random.default_rng(1).standard_normal((3, 6, 4)).astype("f")
    results = [outputs(each, {"x": x}) for each in (model, result.model)]
    # A product of 4 terms and a norm of 4 elements.
    assert relative_error(*results) < 32 * 2.0**-24


def test_unbind_is_what_takes_the_axis_away() -> None:
    import onnx_ir as ir

    def first(model: onnx.ModelProto) -> ir.Node:
        graph = ir.from_proto(model).graph
        return next(node for node in graph if node.op_type == "SplitToSequence")

    assert is_unbind(first(_unbound(0, 1, reads="whole")))
    assert is_unbind(first(_unbound(0, None, reads="whole")))
    assert not is_unbind(first(_unbound(1, None, reads="whole")))
    assert not is_unbind(first(_unbound(0, 2, reads="whole")))
