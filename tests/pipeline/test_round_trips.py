"""LN -> RMS -> CRMS -> RMS -> LN on exports: the same function at every step, in float64."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.inputs import InputSpec, make_inputs
from tests.lanes import some
from tests.soundness.float64 import evaluate, relative_error, widened

_FOLDER = Path(__file__).parents[1] / "recipes"
# The RMSNorms that each becomes: all but bert-base's, which is post-LN, and the first of the
# Whisper encoder: it reads an inserted centering, and the two together are a LayerNorm.
_NORMS = {
    "gpt2": 5,
    "opt-125m": 5,
    "vit-b16": 5,
    "clip-text": 5,
    "whisper-tiny-encoder": 4,
    "bert-base": 1,
}
_BOUND = 1e-9  # of the issue; the models are float64, so rounding is a millionth of it


def _kinds(model: onnx.ModelProto) -> dict[str, int]:
    kinds = [norm["kind"] for norm in onnxfold.inspect(model)["norms"]]
    return {kind: kinds.count(kind) for kind in ("layer_norm", "rms_norm", "crms")}


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def _bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of the weights; shapes passed to operators may be stored once more."""
    tensors = model.graph.initializer
    return sum(len(t.raw_data) for t in tensors if t.data_type == onnx.TensorProto.DOUBLE)


def _step(model: onnx.ModelProto, to: str, **options: int) -> onnx.ModelProto:
    result = onnxfold.convert(model, to=to, check=0, **options)
    assert result.proof is None or result.proof.passed
    assert "left_out" not in result.report
    converted: onnx.ModelProto = result.model
    onnx.checker.check_model(converted)
    return converted


def _model(name: str) -> onnx.ModelProto:
    return widened(onnx.load(_FOLDER / f"{name}.onnx"))


@pytest.mark.campaign
@pytest.mark.parametrize("name", some(_NORMS, each=3))
def test_layer_norms_go_to_rms_norms_and_back(name: str) -> None:
    model = _model(name)
    (feeds,) = make_inputs(ir.from_proto(model), InputSpec(), count=1, seed=0, image_side=32)
    expected = evaluate(model, feeds)
    start = _kinds(model)
    rms = _step(model, "rms")
    assert _kinds(rms) == {
        "layer_norm": start["layer_norm"] - _NORMS[name],
        "rms_norm": _NORMS[name],
        "crms": 0,
    }
    assert relative_error(expected, evaluate(rms, feeds)) < _BOUND
    for options in ({}, {"shift": 7}):
        layer = _step(rms, "layer", **options)
        assert _kinds(layer) == start
        assert relative_error(expected, evaluate(layer, feeds)) < _BOUND
    crms = _step(rms, "crms")
    assert _kinds(crms) == {**_kinds(rms), "rms_norm": 0, "crms": _NORMS[name]}
    assert _bytes(crms) < _bytes(rms)
    assert relative_error(expected, evaluate(crms, feeds)) < _BOUND
    for to, kinds in (("rms", _kinds(rms)), ("layer", start)):
        back = _step(crms, to)
        assert _kinds(back) == kinds
        assert "ReduceSum" not in {node.op_type for node in back.graph.node} - _operators(model)
        assert _bytes(back) == _bytes(rms)
        assert relative_error(expected, evaluate(back, feeds)) < _BOUND
    again = _step(layer, "rms")  # whose means the shift has made
    assert _kinds(again) == _kinds(rms)
    assert relative_error(expected, evaluate(again, feeds)) < _BOUND


# How many of them write d - 1 channels. Exceptions are norms before a tied head (GPT-2, OPT) or an
# output (CLIP, Whisper), and those whose beta would need an Add after the key projection of
# Whisper.
_SHORT = {
    "gpt2": 4,
    "opt-125m": 4,
    "vit-b16": 5,
    "clip-text": 4,
    "whisper-tiny-encoder": 4,
    "bert-base": 0,
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", some(_SHORT, each=3))
def test_norms_that_give_a_channel_less_go_back_too(name: str) -> None:
    model = _model(name)
    (feeds,) = make_inputs(ir.from_proto(model), InputSpec(), count=1, seed=0, image_side=32)
    expected, start = evaluate(model, feeds), _kinds(model)
    result = onnxfold.convert(model, to="crms", check=0, change_readers=True)
    assert "left_out" not in result.report
    assert result.report["inspect"]["summary"]["without_last"] == _SHORT[name]
    less = _bytes(_step(model, "crms")) - _bytes(result.model)
    assert less > 0 if _SHORT[name] else less == 0
    assert relative_error(expected, evaluate(result.model, feeds)) < _BOUND
    rms = _step(result.model, "rms")
    layer = _step(rms, "layer")
    assert _kinds(layer) == start
    for step in (rms, layer):
        assert relative_error(expected, evaluate(step, feeds)) < _BOUND


@pytest.mark.parametrize("name", ["llama-small", "gemma-small", "t5-small"])
def test_a_model_that_was_trained_with_rms_norm_stays_and_every_norm_says_why(name: str) -> None:
    result = onnxfold.convert(onnx.load(_FOLDER / f"{name}.onnx"), to="layer")
    assert not result.changed
    norms = result.report["inspect"]["norms"]
    assert norms
    for norm in norms:
        assert norm["action"] == "keep"
        assert norm["reason"]["code"] in ("has_mean", "activation", "not_centred_norm")
        assert norm["reason"]["nodes"]
    with pytest.raises(onnxfold.UnchangedError, match="nothing to convert"):
        onnxfold.convert(onnx.load(_FOLDER / f"{name}.onnx"), to="layer", fail_if_unchanged=True)


def test_only_the_norms_and_the_weights_before_them_change() -> None:
    """Gamma, beta and the weights behind stay, which optimize would move."""
    model = onnx.load(_FOLDER / "gpt2.onnx")
    result = onnxfold.convert(model, to="rms", check=0)
    assert not result.plan.fusions
    assert not result.plan.scales
    old = {tensor.name: tensor for tensor in model.graph.initializer}
    new = {tensor.name: tensor for tensor in result.model.graph.initializer}
    changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    assert changed == {weight.value for weight in result.plan.weights}
