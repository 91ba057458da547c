"""Streams and heads that are rotated: the same function, and what refuses a rotation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.errors import ModelError, UsageError
from onnxfold.report import printed
from tests.builders import pre_norm_model
from tests.passes.basis.wide_streams import FEEDS, WIDTH, post_norms, tied_at_once, wide_stream
from tests.soundness.float64 import evaluate, relative_error

RECIPES = Path("tests/recipes")
ROUNDING = 2e-6  # float32 weights are rounded once more


def rotated(model: Any, **options: Any) -> onnxfold.Result:
    return onnxfold.optimize(model, **{"rotate": "hadamard", **options})


def stored(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize(
    ("model", "matrix"),
    [
        (wide_stream("layer", 1.0), "hadamard"),
        (wide_stream("layer pieces", 1.0), "random"),
        (wide_stream("rms", 1.0), "hadamard"),
        (wide_stream("rms pieces", 1.0), "random"),
        (wide_stream("gemma", 1.0), "hadamard"),
        (tied_at_once(1.0), "random"),
        (pre_norm_model(), "hadamard"),
        (pre_norm_model(), "random"),
        (pre_norm_model(tied=True), "random"),
    ],
)
def test_a_rotated_stream_computes_the_same(model: onnx.ModelProto, matrix: str) -> None:
    result = rotated(model, rotate=matrix, rotation_seed=3)
    assert "left_out" not in result.report
    assert result.proof is not None
    assert result.proof.passed
    (stream,) = result.report["rotated_streams"]["streams"]
    assert (stream["size"], stream["matrix"], stream["seed"]) == (WIDTH, matrix, 3)
    assert result.proof.rotated_weights == len(stream["weights"])
    plain = onnxfold.optimize(model, fold="always", fuse_affine="always")
    before, after = stored(plain.model), stored(result.model)
    assert not any(np.allclose(before[name], after[name]) for name in stream["weights"])
    assert relative_error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < ROUNDING


@pytest.mark.parametrize("kind", ["layer", "layer pieces", "rms", "rms pieces", "gemma"])
def test_a_stream_is_rotated_and_scaled_at_once(kind: str) -> None:
    model = wide_stream(kind, 1.0)
    result = rotated(model, scale_streams=4)
    assert "left_out" not in result.report
    found = [result.report[f"{what}_streams"]["streams"] for what in ("rotated", "scaled")]
    assert list(map(len, found)) == [1, 1]
    assert relative_error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < ROUNDING


@pytest.mark.parametrize(
    ("name", "weights", "heads"),
    [
        ("gpt2", 15, [3, 3]),
        ("llama-small", 16, [2, 2]),
        ("vit-b16", 21, [3, 3]),
        ("whisper-tiny-decoder", 25, [3, 3, 3, 3]),
        ("gemma-small", 16, [2, 2]),
    ],
)
def test_exports_are_rotated_with_their_heads(name: str, weights: int, heads: list[int]) -> None:
    """Llama's and Gemma's heads of values are fewer than those of queries."""
    result = rotated(RECIPES / f"{name}.onnx", allow_split=1 << 30)
    assert "left_out" not in result.report
    (stream,) = result.report["rotated_streams"]["streams"]
    assert len(stream["weights"]) == weights
    found = [len(head["weights"]) for head in result.report["rotated_heads"]["streams"]]
    assert found == heads
    assert result.verification is not None
    assert result.verification.passed


def test_many_norms_in_pieces_are_rotated() -> None:
    """The squares in them have no relation to what they were, however many there are."""
    model = wide_stream("rms pieces", 1.0, blocks=9)
    (stream,) = rotated(model, check=0).report["rotated_streams"]["streams"]
    assert len(stream["norms"]) == 10


def test_a_size_without_a_hadamard_matrix_is_said() -> None:
    model = wide_stream("rms pieces", 1.0, width=18)
    result = rotated(model)
    (stream,) = result.report["rotated_streams"]["streams"]
    assert (stream["size"], stream["matrix"], stream["substituted"]) == (18, "random", True)
    (line, *_) = printed.rotated(result.report)
    assert "by a random matrix of 18, for want of a Hadamard matrix, seed 0" in line


def refused(model: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as raised:
        rotated(model, **options)
    return str(raised.value)


def test_a_layer_norm_that_does_not_fold_is_named() -> None:
    said = refused(wide_stream("layer", 1.0), norm_form="layer")
    assert "norm 'norm0.node' subtracts the mean: it does not fold to RMSNorm" in said


def test_a_gamma_that_stays_is_named() -> None:
    said = refused(wide_stream("rms pieces", 1.0), fuse_affine="never")
    assert said.endswith("norm 'norm0.node' keeps a gamma or beta, which no linear layer has taken")


def test_why_a_gamma_stays_is_told_for_options_may_not_help() -> None:
    made = wide_stream("rms pieces", 1.0)
    (norm,) = (node for node in made.graph.node if node.name == "norm0.node")
    made.graph.output.append(onnx.helper.make_empty_tensor_value_info(norm.output[0]))
    said = refused(made)
    assert (
        f"keeps a gamma or beta, which no linear layer has taken: '{norm.output[0]}' is an output"
        in said
    )
    assert "--" not in said


def test_a_post_norm_is_named() -> None:
    assert "norm 'post0.node' keeps a gamma" in refused(post_norms("rms pieces", 1.0))


def test_a_tied_table_that_may_not_be_stored_twice_keeps_the_last_gamma() -> None:
    said = refused(tied_at_once(1.0), allow_split=0)
    assert "norm 'last.node' keeps a gamma" in said
    assert said.endswith("and is too large to store twice; allow_split=2048 allows it")


@pytest.mark.parametrize(
    ("op", "says"),
    [("Sigmoid", "Sigmoid 'seeing' reads 'x1' in full"), ("Relu", "Relu 'seeing' reads 'x1'")],
)
def test_a_reader_that_sees_channels_is_named(op: str, says: str) -> None:
    model = wide_stream("rms pieces", 1.0)
    model.graph.node.append(helper.make_node(op, ["x1"], ["seen"], name="seeing"))
    shape = ["batch", "time", WIDTH]
    model.graph.output.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, shape))
    assert says in refused(model)


def test_a_layer_that_reads_the_stream_takes_the_inverse() -> None:
    model = wide_stream("rms pieces", 1.0)
    probe = np.random.default_rng(5).standard_normal((WIDTH, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(probe, "probe"))
    model.graph.node.append(helper.make_node("MatMul", ["x1", "probe"], ["probed"]))
    shape = ["batch", "time", 3]
    model.graph.output.append(helper.make_tensor_value_info("probed", TensorProto.FLOAT, shape))
    result = rotated(model)
    assert "probe" in result.report["rotated_streams"]["streams"][0]["weights"]
    assert relative_error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < ROUNDING


@pytest.mark.parametrize("chosen", ["on", "", "Hadamard", "48"])
def test_what_is_no_rotation_is_refused(chosen: str) -> None:
    with pytest.raises(UsageError, match="rotate= takes hadamard, random, off"):
        rotated(wide_stream("rms", 1.0), rotate=chosen)
