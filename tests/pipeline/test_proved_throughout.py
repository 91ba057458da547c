"""The proof begins at the model as it came and ends at what is written: ``check=0`` is no weaker.

Each test breaks a step that belongs to no pass, and nothing but the proof is left to object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.operators import facets
from onnxfold.passes import split_skip_norms
from onnxfold.passes.prepare import direct_reads, joined_layers, working_copy
from onnxfold.pipeline import finalize
from onnxfold.proof import Certificate, prove
from onnxfold.proof.states import as_given
from tests import graphs
from tests.graphs import LOOP_OF_STATES
from tests.soundness.float64 import evaluate, relative_error
from tests.soundness.random_graphs import random_graph

_SIZES = {
    "W": (8, 8),
    "V": (8, 8),
    "H": (8, 4),
    "K": (8, 4),
    "c": (8,),
    "gamma": (8,),
    "beta": (8,),
}
_NORM = "n = LayerNormalization<epsilon=0.01>(h, gamma, beta) y = MatMul(n, V)"
_PLAIN = "h = MatMul(x, W) " + _NORM
_JOINED = "p = MatMul(x, H) q = MatMul(x, K) h = Concat<axis=-1>(p, q) " + _NORM
_SKIP = (
    "p = MatMul(x, W) q = MatMul(x, V) n = com.microsoft.SkipLayerNormalization<epsilon=0.01>"
    "(p, q, gamma, beta, c) y = MatMul(n, V)"
)
# The original in float64 against roundings of float32 weights, a few times enlarged.
BOUND = 1e-5
_HALF = 0.1  # of float16 numbers


def _model(body: str) -> onnx.ModelProto:
    made = graphs.weights(**_SIZES) | {"steps": np.array(2), "yes": np.array(True)}
    return graphs.model(body, "float[2,3,8] x", "float[A,B,C] y", made, 17, dtype=np.float32)


def _error(model: onnx.ModelProto, other: onnx.ModelProto) -> float:
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    return relative_error(*(evaluate(each, {"x": x}) for each in (model, other)))


def _without_a_bias(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *values: real(call, *values[:1], *values[2:])


def _in_another_order(real: Callable[..., Any]) -> Callable[..., Any]:
    def stored(builder: Any, name: str, parts: Sequence[Any], axis: int) -> ir.Value:
        return real(builder, name, parts[::-1], axis)

    return stored


def _moving_a_weight(real: Callable[..., Any]) -> Callable[..., Any]:
    def changing(model: ir.Model) -> None:
        real(model)
        value = next(v for v in model.graph.initializers.values() if len(v.shape or ()) > 1)
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() + np.float32(0.5), name=value.name)

    return changing


# What is broken, for which model, and which part of the report says so.
BROKEN: dict[str, tuple[str, Any, str, Callable[..., Any], str]] = {
    "states": (
        LOOP_OF_STATES.format("l", "k"),
        direct_reads,
        "_stays",
        lambda _: lambda *_: True,
        "prepare",
    ),
    "a bias": (_SKIP, split_skip_norms.SkipNormCall, "add", _without_a_bias, "prepare"),
    "an order": (_JOINED, joined_layers, "_stored", _in_another_order, "prepare"),
    "a weight": (_PLAIN, finalize, "list_initializers", _moving_a_weight, "lower"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_outside_the_passes_is_refused_by_the_proof_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, owner, what, broken, part = BROKEN[name]
    model = _model(body)
    right = onnxfold.optimize(model, check=0)
    assert "left_out" not in right.report
    assert right.changed
    monkeypatch.setattr(owner, what, broken(getattr(owner, what)))
    # Without a proof it is written, and wrong.
    assert _error(model, onnxfold.optimize(model, check=None).model) > BOUND
    result = onnxfold.optimize(model, check=0)
    assert part in [left["name"] for left in result.report["left_out"]]
    assert not result.changed
    assert _error(model, result.model) == 0


def test_nothing_is_said_to_fold_where_the_working_copy_is_not_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joined_layers, "_stored", _in_another_order(joined_layers._stored))
    report = onnxfold.optimize(_model(_JOINED), check=0).report
    assert [norm["foldable"] for norm in report["inspect"]["norms"]] == [False]
    assert "proof" not in report


def test_constants_that_are_stored_wrongly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed of constants is taken for sizes, as of Shape."""
    graph = random_graph(31)
    options = {"fold": "always", "fuse_affine": "always"}
    assert "left_out" not in onnxfold.optimize(graph.model, check=0, **options).report
    with monkeypatch.context() as broken:
        broken.setattr(facets, "reads_elements", lambda _: False)
        wrong = onnxfold.optimize(graph.model, check=None, **options).model
        result = onnxfold.optimize(graph.model, check=0, **options)
    assert [left["name"] for left in result.report["left_out"]] == ["prepare"]
    expected, *others = (
        evaluate(model, graph.feeds, graph.operators)
        for model in (graph.model, wrong, result.model)
    )
    errors = [relative_error(expected, other) for other in others]
    assert errors[0] > _HALF
    assert errors[1] == 0


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("positions", [3, 5, 40])
def test_norms_of_lookups_are_proved_where_parts_of_their_tables_are_stored(
    positions: int, target: str
) -> None:
    """BERT as onnxruntime optimizes it, of a fixed length: its copy stores the rows it reads."""
    result = onnxfold.optimize(_of_lookups(positions), check=0, target=target, fold="always")
    assert result.changed
    assert "left_out" not in result.report


def test_another_order_of_tables_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _of_lookups(5)
    taken = split_skip_norms.SPLITTERS["com.microsoft", "EmbedLayerNormalization"]

    def in_turn(call: Any) -> Any:
        segments, words = call.node.inputs[1], call.node.inputs[0]
        call.node.replace_input_with(0, segments)
        call.node.replace_input_with(1, words)
        return taken(call)

    broken = {**split_skip_norms.SPLITTERS, ("com.microsoft", "EmbedLayerNormalization"): in_turn}
    monkeypatch.setattr(working_copy, "SPLITTERS", broken)
    left = onnxfold.optimize(made, check=0, fold="always").report["left_out"]
    assert [each["name"] for each in left] == ["prepare"]


def _of_lookups(positions: int) -> onnx.ModelProto:
    body = (
        "n, m = com.microsoft.EmbedLayerNormalization<epsilon=0.01>"
        "(ids, kinds, words, places, types, gamma, beta) p = MatMul(n, W) q = Add(p, n) "
        "o = LayerNormalization<epsilon=0.01>(q, gamma, beta) y = MatMul(o, V)"
    )
    made = graphs.weights(**_SIZES, words=(20, 8), places=(positions, 8), types=(20, 8))
    inputs = "int32[B,3] ids, int32[B,3] kinds"
    return graphs.model(body, inputs, "float[A,B,C] y", made, 17, dtype=np.float32)


def test_a_state_that_stays_is_the_weight_and_others_are_not() -> None:
    for states, same in ((("k", "l"), True), (("l", "k"), False), (("k", "k"), False)):
        model = ir.from_proto(_model(LOOP_OF_STATES.format(*states)))
        other = ir.from_proto(_model(LOOP_OF_STATES.format("k", "l")))
        shown = prove(as_given(model), as_given(other), Certificate())
        assert shown.passed is same, states


def test_bodies_whose_inputs_change_places_are_not_the_same() -> None:
    made = _model(LOOP_OF_STATES.format("l", "k"))
    turned = onnx.ModelProto()
    turned.CopyFrom(made)
    (loop,) = (node for node in turned.graph.node if node.op_type == "Loop")
    inputs = loop.attribute[0].g.input
    inputs[3].name, inputs[4].name = inputs[4].name, inputs[3].name
    assert _error(made, turned) > BOUND
    shown = prove(as_given(ir.from_proto(made)), as_given(ir.from_proto(turned)), Certificate())
    assert not shown.passed


def test_an_output_of_another_type_is_not_the_same() -> None:
    made = _model("h = MatMul(x, W) y = Identity(h)")
    narrow = graphs.model(
        "h = MatMul(x, W) y = Cast<to=10>(h)",
        "float[2,3,8] x",
        "float16[A,B,C] y",
        graphs.weights(**_SIZES),
        17,
        dtype=np.float32,
    )
    shown = prove(as_given(ir.from_proto(made)), as_given(ir.from_proto(narrow)), Certificate())
    assert any("another type" in failure for failure in shown.failures)


def test_parts_of_large_weights_are_proved_too() -> None:
    """More elements than a test of a region draws: a Split, and two layers joined."""
    made = graphs.weights(
        W=(300, 600), V=(300, 300), H=(300, 150), K=(300, 150), gamma=(300,), beta=(300,)
    )
    made |= {"halves": np.array([300, 300])}
    split = (
        "h0 = MatMul(x, V) n = LayerNormalization(h0, gamma, beta) "
        "v, w = Split<axis=1>(W, halves) p = MatMul(n, v) q = MatMul(n, w) y = Add(p, q)"
    )
    for body in (split, _JOINED):
        model = graphs.model(body, "float[2,3,300] x", "float[A,B,C] y", made, 17, dtype=np.float32)
        result = onnxfold.optimize(model, check=0, fuse_affine="always", fold="always")
        assert result.changed
        assert "left_out" not in result.report
        assert result.report["inspect"]["summary"]["foldable"] == 1
