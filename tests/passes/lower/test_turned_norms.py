"""Norms between Transposes, as of ConvNeXt: ONNX Runtime takes the written RMS form apart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.report.sentences import totals

WIDTH = 8
TURN, BACK = "Transpose<perm=[0,2,3,1]>", "Transpose<perm=[0,3,1,2]>"
BEHIND = f"u = {BACK}(n)  y = Conv<pads=[1,1,1,1]>(u, W1, B1)"


def channels_first(opset: int = 17, behind: str = BEHIND) -> onnx.ModelProto:
    """A norm over the channels of an image between two convolutions."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
        f"graph (float[B,3,6,6] x) => (float[B,K,N,M] y) {{"
        f"h = Conv(x, W0, B0)  t = {TURN}(h)  n = LayerNormalization<axis=-1>(t, G, B)\n"
        f"{behind}}}"
    )
    rng = np.random.default_rng(0)
    shapes = {"W0": (WIDTH, 3, 2, 2), "W1": (WIDTH, WIDTH, 3, 3)}
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & {"W0", "W1", "B0", "B1", "G", "B"}):
        array = rng.standard_normal(shapes.get(name, (WIDTH,))).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def folds(model: onnx.ModelProto, **options: str) -> int:
    norms = onnxfold.optimize(model, **options).report["inspect"]["norms"]  # type: ignore[arg-type]
    return sum(norm["action"] == "rms" for norm in norms)


def executed(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators that a session executes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    made = onnx.load(folder / "optimized.onnx")
    return Counter(node.op_type for node in made.graph.node)


def test_a_session_executes_no_more_than_for_the_original(tmp_path: Path) -> None:
    result = onnxfold.optimize(channels_first())
    assert executed(result.model, tmp_path) == executed(channels_first(), tmp_path)
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "no_cheaper_form"
    assert "Transposes" in row["reason"]["sentence"]
    assert row["foldable"]
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["left_foldable"]) == (1, 1)
    assert totals(summary).startswith("0 of 1 LayerNorm folds to RMSNorm, 1 could and is left")


def test_a_norm_that_could_not_fold_has_the_reason_for_that() -> None:
    model = channels_first(behind=f"{BEHIND.replace('y =', 'c =')}  y = Add(c, h)")
    (row,) = onnxfold.inspect(model)["norms"]
    assert (row["foldable"], row["reason"]["code"]) == (False, "graph_output")


@pytest.mark.parametrize("target", ["ort", "kernels"])
def test_one_operator_is_not_taken_apart(target: str) -> None:
    assert folds(channels_first(), target=target) == 1
    assert folds(channels_first(opset=23), norm_form="op") == 1
    assert folds(channels_first(opset=23)) == 0


def test_a_norm_behind_which_nothing_turns_back_folds() -> None:
    assert folds(channels_first(behind="y = Relu(n)")) == 1


def test_a_conversion_is_of_every_norm() -> None:
    result = onnxfold.convert(channels_first(), to="rms")
    assert result.report["inspect"]["summary"]["foldable"] == 1
