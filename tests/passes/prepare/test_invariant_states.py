"""Weights that a loop hands on unchanged are read from outside; all other states stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfold.passes.prepare import direct_reads
from onnxfold.passes.prepare.direct_reads import read_from_outside
from tests.sessions import outputs

SIZE = 3
_RNG = np.random.default_rng(0)
W, V, H = (_RNG.standard_normal((SIZE, SIZE)).astype("f") for _ in range(3))


def _typed(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE])


def _loop(
    body: str, outputs: tuple[str, ...], *, gives: str = "h_out", states: str = "h w v"
) -> onnx.ModelProto:
    """h = body(h, w, v) for three steps, from H, W and V; the body gives ``outputs``."""
    lines = [line.split() for line in body.split(";")]
    nodes = [helper.make_node(op, inputs, [y]) for y, op, *inputs in lines]
    nodes.append(helper.make_node("Identity", ["go_on"], ["goes_on"]))
    flag = helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])
    count = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    goes_on = helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [])
    graph = helper.make_graph(
        nodes, "body", [count, flag, *map(_typed, states.split())],
        [goes_on, *map(_typed, outputs)],
    )  # fmt: skip
    loop = helper.make_node(
        "Loop", ["steps", "", "x", "W", "V"], ["h_out", "w_out", "v_out"], name="loop", body=graph
    )
    last = helper.make_node("Add", [gives, "h_out"], ["y"], name="last")
    weights = [
        numpy_helper.from_array(np.array(3, np.int64), "steps"),
        numpy_helper.from_array(W, "W"),
        numpy_helper.from_array(V, "V"),
    ]
    main = helper.make_graph([loop, last], "g", [_typed("x")], [_typed("y")], weights)
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _freed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Return the model without invariant states, and how many of its loop's inputs stay."""
    graph = ir.from_proto(model)
    read_from_outside(graph)
    (loop,) = (node for node in graph.graph if node.op_type in ("Loop", "Scan"))
    return ir.to_proto(graph), len(loop.inputs)


def _run(model: onnx.ModelProto) -> np.ndarray:
    return outputs(model, {"x": H})[0]


@pytest.mark.parametrize(
    ("body", "outputs", "stay"),
    [
        ("n MatMul h w", ("n", "w", "v"), 3),
        ("n MatMul h w;i Identity w;j Identity i", ("n", "j", "v"), 3),
        ("n MatMul h w;i Neg w", ("n", "i", "v"), 4),
        ("n MatMul h w;m Add n v", ("m", "v", "w"), 5),  # changed places
        ("n MatMul h w;m Add n v;c Identity w", ("m", "w", "c"), 4),  # v becomes w
    ],
)
def test_only_what_every_step_hands_on_is_read_from_outside(
    body: str, outputs: tuple[str, ...], stay: int
) -> None:
    model = _loop(body, outputs)
    freed, inputs = _freed(model)
    onnx.checker.check_model(freed, full_check=True)
    assert inputs == stay
    assert np.array_equal(_run(model), _run(freed))


def test_a_state_that_is_read_behind_the_loop_is_the_weight() -> None:
    model = _loop("n MatMul h w", ("n", "w", "v"), gives="w_out")
    freed, inputs = _freed(model)
    assert inputs == 3
    assert next(node for node in freed.graph.node if node.name == "last").input[0] == "W"
    assert np.array_equal(_run(model), _run(freed))


def test_a_state_that_the_model_gives_stays() -> None:
    model = _loop("n MatMul h w", ("n", "w", "v"))
    model.graph.output.append(_typed("w_out"))
    freed, inputs = _freed(model)
    assert inputs == 4
    assert np.array_equal(_run(model), _run(freed))


def test_a_state_that_becomes_two_states_stays() -> None:
    graph = ir.from_proto(_loop("n MatMul h w;m Add n v", ("m", "w", "v")))
    loop = graph.graph[0]
    body = loop.attributes["body"].as_graph()
    body.outputs[3] = body.outputs[2]
    read_from_outside(graph)
    assert len(loop.inputs) == 5


def test_a_body_that_uses_the_name_of_the_weight_keeps_its_state() -> None:
    model = _loop("n MatMul h W", ("n", "W", "v"), states="h W v")
    assert _freed(model)[1] == 4


def test_no_state_that_the_caller_may_give_is_a_weight() -> None:
    model = _loop("n MatMul h w", ("n", "w", "v"))
    model.graph.input.extend([_typed("W"), _typed("V")])
    assert _freed(model)[1] == 5


def test_states_that_change_places_must_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _loop("n MatMul h w;m Add n v;a Identity v;b Identity w", ("m", "a", "b"))
    monkeypatch.setattr(direct_reads, "_stays", lambda before, after: True)
    freed, inputs = _freed(model)
    assert inputs == 3
    assert np.abs(_run(model) - _run(freed)).max() > 0.1


@pytest.mark.parametrize("opset", [9, 17])
def test_scan_hands_its_weights_on_too(opset: int) -> None:
    nodes = [helper.make_node("MatMul", ["h", "w"], ["p"]), helper.make_node("Add", "pe", ["n"])]
    step = helper.make_tensor_value_info("e", TensorProto.FLOAT, [SIZE, SIZE])
    body = helper.make_graph(
        nodes, "body", [_typed("h"), _typed("w"), step], [_typed("n"), _typed("w")]
    )
    scan = helper.make_node(
        "Scan", ["h0", "W", "xs"], ["y", "w_out"], name="scan", body=body, num_scan_inputs=1
    )
    pile = helper.make_node("Concat", ["a", "a"], ["xs"], axis=0)
    lift = helper.make_node("Reshape", ["x", "lifted"], ["a"])
    weights = [
        numpy_helper.from_array(W, "W"),
        numpy_helper.from_array(V, "h0"),
        numpy_helper.from_array(np.array([1, SIZE, SIZE], np.int64), "lifted"),
    ]
    main = helper.make_graph([lift, pile, scan], "g", [_typed("x")], [_typed("y")], weights)
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    freed, inputs = _freed(model)
    assert inputs == 2
    # ONNX Runtime 1.32 computes a different result if a body of Scan returns an input unchanged.
    results = [ReferenceEvaluator(each).run(None, {"x": H})[0] for each in (model, freed)]
    assert np.array_equal(*results)
