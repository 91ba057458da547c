"""Gamma and beta of a norm with a new spelling: read as they are stored, or repeated."""

from __future__ import annotations

import onnx
import pytest

import onnxfold
from tests.builders import pre_norm_model
from tests.recognition.replay import model, with_constants


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_gamma_and_beta_that_fit_are_not_stored_again(target: str) -> None:
    proto = pre_norm_model()
    result = onnxfold.optimize(proto, target=target, check=None)
    assert isinstance(result.model, onnx.ModelProto)
    assert len(result.plan.folds) == 3 - (target == "onnx")  # where the norm of the table stays
    before, after = ({t.name for t in each.graph.initializer} for each in (proto, result.model))
    assert before == after


@pytest.mark.parametrize("target", ["kernels", "ort"])
def test_gamma_and_beta_of_groups_are_repeated_for_their_channels(target: str) -> None:
    body = "h = MatMul(x, w)\nn = GroupNormalization<num_groups=2>(h, g, b)\ny = Relu(n)"
    inputs = "float[3,8] x, float[8,8] w, float[2] g, float[2] b"
    proto = with_constants(model(body, inputs, "float[3,8] y", opset=18))
    result = onnxfold.optimize(proto, target=target)
    assert len(result.plan.folds) == 1
    assert result.verification is not None
    assert result.verification.passed
