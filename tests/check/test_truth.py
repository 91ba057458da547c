"""A truth that is computed once, and models that are judged against it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check import float64_runs
from onnxfold.check.budget import Budget
from onnxfold.check.compare import verify
from onnxfold.check.runners import suited
from onnxfold.check.truth import judged, truth_of, within
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.inputs import make_inputs
from onnxfold.inputs.spec import InputSpec
from onnxfold.model_io.load import Source
from onnxfold.options import Metric
from tests.check.verified import one_gamma, single
from tests.folded import model, weights
from tests.graphs import graph
from tests.graphs import weights as tensors


def source(w=None, **options) -> Source:
    return Source(model(weights() if w is None else w, **options))


def test_many_candidates_are_judged_against_one_float64_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, right = source(), source(weights().centred(), rms=True)
    wrong = source(one_gamma(weights().centred()), rms=True)
    truth = truth_of(original, samples=3, seed=5)
    monkeypatch.setattr(float64_runs, "run", pytest.fail)
    assert (truth.method, truth.reason, truth.drawn, len(truth.outputs)) == ("float64", None, 3, 3)
    assert truth.outputs[0]["y"].dtype == np.float64
    found = [judged(original, changed, truth) for changed in (right, wrong)]
    assert [one.passed for one in found] == [True, False]
    monkeypatch.undo()
    assert found == [verify(original, changed, samples=3, seed=5) for changed in (right, wrong)]


@pytest.mark.parametrize(
    ("body", "types", "reason"),
    [
        ("y = org.x.Foo (x)", "float[M, 8] y", "onnxruntime cannot load it: "),
        ("y = SequenceConstruct (x)", "seq(float[M, 8]) y", "output 'y' is not a tensor"),
    ],
)
def test_a_model_that_no_inputs_suit_is_told_the_proof_alone(
    body: str, types: str, reason: str
) -> None:
    original = Source(graph(body, "float[M, 8] x", types, {}))
    with pytest.raises(ModelError, match=reason) as caught:
        truth_of(original)
    assert "optimized with check=0, which only proves the result" in str(caught.value)
    assert "inputs=" not in str(caught.value)


def test_further_runs_of_the_original_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original, wrong = source(), source(one_gamma(weights()))
    truth = truth_of(original)
    calls = []
    from onnxfold.check import truth as module

    real = module.with_more_noise
    monkeypatch.setattr(module, "with_more_noise", lambda *a: calls.append(a) or real(*a))
    for _ in range(3):
        assert not judged(original, wrong, truth).passed
    assert len(calls) == 1


def test_data_comes_after_what_is_drawn_and_may_come_alone() -> None:
    original = source()
    data = make_inputs(original.model, InputSpec(), count=2, seed=9)
    truth = truth_of(original, samples=1, data=data)
    assert (len(truth.feeds), truth.drawn) == (3, 1)
    alone = truth_of(original, samples=0, data=data)
    assert alone.drawn == 0
    np.testing.assert_array_equal(alone.outputs[0]["y"], truth.outputs[1]["y"])
    assert judged(original, source(weights().centred(), rms=True), alone).samples == 2
    with pytest.raises(UsageError, match="at least 1 sample, not 0"):
        truth_of(original, samples=0)


def test_without_a_float64_run_onnxruntime_is_the_truth_of_all_samples() -> None:
    body = "n = LayerNormalization (x, g)  y = com.microsoft.BiasGelu (n, g)"
    graph = single(body, "float[4, 8] x")
    graph.graph.initializers.add(
        ir.Value(name="g", const_value=ir.tensor(np.ones(8, np.float32), name="g"))
    )
    for node in graph.graph:
        for i, value in enumerate(node.inputs):
            if value is not None and value.name == "g":
                node.replace_input_with(i, graph.graph.initializers["g"])
    data = [{"x": np.ones((4, 8), np.float32)}]
    original = Source(graph)
    truth = truth_of(original, samples=1, data=data, float64_limit_bytes=8)
    assert truth.method == "onnxruntime"
    assert "too large for a float64 run" in str(truth.reason)
    assert len(truth.outputs) == 2
    assert judged(original, original, truth).passed
    assert within(original, truth, Budget({Metric.RELATIVE: 1e-6})).passed


def test_a_budget_is_held_against_the_truth() -> None:
    w = weights()
    original = source(w)
    near = source(replace(w, W=(w.W * np.float32(1.001)).astype(w.W.dtype)))
    truth = truth_of(original)
    assert not judged(original, near, truth).passed
    assert within(near, truth, Budget({Metric.RELATIVE: 0.01})).passed
    refused = within(near, truth, Budget({Metric.RELATIVE: 1e-5}))
    assert "output 'y': its relative error is" in str(refused.sentence)
    hopeless = within(near, truth, Budget({Metric.RELATIVE: 1e-12}))
    assert str(hopeless.sentence).endswith("; the original itself is not within it")


def test_a_model_that_does_not_load_is_not_within_any_budget() -> None:
    truth = truth_of(source())
    broken = source()
    next(iter(broken.model.graph)).op_type = "Gather" + "Nothing"
    with pytest.raises(VerificationError, match="does not run"):
        within(broken, truth, Budget({Metric.RELATIVE: 1.0}))


def test_the_inputs_on_which_a_model_does_not_run_are_named() -> None:
    """The first sample is a batch of 2, as the model's inside has; one of the others is not."""
    fixed = single("s = Constant <value_ints = [2, 8]> ()  y = Reshape (x, s)", "float[B, 8] x")
    given = Source(fixed)
    assert verify(given, given, samples=1).passed
    with pytest.raises(ModelError, match=r"does not run on the inputs x:[13],8"):
        verify(given, given, samples=4)


@pytest.mark.parametrize("stored", ["initializer", "Constant"])
def test_half_weights_are_seen_wherever_they_are_stored(stored: str) -> None:
    """A session computes the layer in float32, with fewer roundings than the model specifies."""
    made = tensors(W=(8, 8), gamma=(8,), beta=(8,))
    halves = {name: array.astype(np.float32) for name, array in made.items()}
    halves["W"] = made["W"].astype(np.float16)
    body = (
        "c = Cast<to=10>(x) h = MatMul(c, W) f = Cast<to=1>(h) "
        "n = LayerNormalization(f, gamma, beta) y = Identity(n)"
    )
    given = graph(body, "float[8,8,8] x", "float[8,8,8] y", halves, opset=17)
    if stored == "Constant":
        weight = given.graph.initializers.pop("W")
        node = ir.node("Constant", [], {"value": weight.const_value})
        node.outputs[0].name = "W"
        weight.replace_all_uses_with(node.outputs[0])
        given.graph.insert_before(given.graph[0], node)
    result = onnxfold.optimize(given, fold="always")
    assert [weight.value for weight in result.plan.weights] == ["W"]
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize(
    ("given", "wanted"), [(np.float16, np.float32), (np.int64, np.int64), (np.float32, np.float32)]
)
def test_feeds_take_the_width_of_an_input_and_keep_their_kind(
    given: type[np.generic], wanted: type[np.generic]
) -> None:
    floats = graph("y = Relu(x)", "float[M] x", "float[M] y")
    assert suited({"x": np.ones(2, given)}, floats)["x"].dtype == wanted
