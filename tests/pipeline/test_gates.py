"""Layer-normalised RNN, GRU and LSTM: the norms of gates, in bodies of Scan, fold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from tests.soundness.float64 import evaluate, relative_error

_TIME, _BATCH, _IN, _H = 4, 2, 5, 6
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_ROUNDING = 1e-12  # of float64
_RNG = np.random.default_rng
_FEEDS = {"x": _RNG(1).standard_normal((_TIME, _BATCH, _IN))}
Array = npt.NDArray[Any]


class _Recurrent:
    """Cells of [x, h] K + b, as TensorFlow spells them, each gate with a norm of its own."""

    def __init__(self, kind: str, *, weights_inside: bool = False):
        self.kind, self._inside = kind, weights_inside
        rng, gates = _RNG(0), _GATES[kind]
        self.kernel: dict[str, Array] = {
            "K": rng.standard_normal((_IN + _H, gates * _H)),
            "b": rng.standard_normal(gates * _H),
        }
        self.norms = {f"gamma{i}": 1 + rng.random(_H) for i in range(gates)}
        self.norms |= {f"beta{i}": rng.standard_normal(_H) for i in range(gates)}

    def body(self, name: str) -> onnx.GraphProto:
        def node(op_type: str, *inputs: str, **attributes: Any) -> str:
            output = f"{name}_{op_type}_{len(nodes)}"
            nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
            return output

        nodes: list[onnx.NodeProto] = []
        joined = node("Concat", f"{name}_x", f"{name}_h", axis=-1)
        sums = node("Add", node("MatMul", joined, "K"), "b")
        gates = [f"{name}_gate{i}" for i in range(_GATES[self.kind])]
        nodes.append(helper.make_node("Split", [sums], gates, axis=1, num_outputs=len(gates)))
        normal = [
            node("LayerNormalization", gate, f"gamma{i}", f"beta{i}", axis=-1)
            for i, gate in enumerate(gates)
        ]
        # What the gates are used for does not matter here: each is bounded, and they are mixed.
        state = node("Tanh", normal[0])
        for gate in normal[1:]:
            kept = node("Mul", node("Sigmoid", gate), f"{name}_h")
            state = node("Tanh", node("Add", state, kept))
        nodes.append(helper.make_node("Identity", [state], [f"{name}_next"]))
        nodes.append(helper.make_node("Identity", [state], [f"{name}_y"]))
        inside = self._tensors() if self._inside else []
        return helper.make_graph(
            nodes,
            name,
            [_info(f"{name}_h", [_BATCH, _H]), _info(f"{name}_x", [_BATCH, _IN])],
            [_info(f"{name}_next", [_BATCH, _H]), _info(f"{name}_y", [_BATCH, _H])],
            inside,
        )

    def _tensors(self) -> list[onnx.TensorProto]:
        known = self.kernel | self.norms
        return [numpy_helper.from_array(array, name) for name, array in known.items()]

    def model(self, *bodies: str) -> onnx.ModelProto:
        """Return the model that runs the cell once for each name over the same inputs."""
        zero = numpy_helper.from_array(np.zeros((_BATCH, _H)), "zero")
        nodes = [
            helper.make_node(
                "Scan",
                ["zero", "x"],
                [f"{name}_last", f"{name}_all"],
                name=name,
                body=self.body(name),
                num_scan_inputs=1,
            )
            for name in bodies
        ]
        graph = helper.make_graph(
            nodes,
            self.kind,
            [_info("x", [_TIME, _BATCH, _IN])],
            [_info(f"{name}_all", [_TIME, _BATCH, _H]) for name in bodies],
            [zero, *([] if self._inside else self._tensors())],
        )
        opset = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def _info(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)


def _folds(model: onnx.ModelProto, norms: int, weights: int) -> None:
    result = onnxfold.convert(model, to="rms", check=0)
    assert result.report["inspect"]["summary"]["foldable"] == norms
    assert result.proof is not None
    assert (result.proof.folded_norms, result.proof.centred_weights) == (norms, weights)
    onnx.checker.check_model(result.model)
    expected = evaluate(model, _FEEDS)
    assert relative_error(expected, evaluate(result.model, _FEEDS)) < _ROUNDING


@pytest.mark.parametrize("kind", _GATES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_the_norms_of_gates_fold(kind: str, *, inside: bool) -> None:
    _folds(_Recurrent(kind, weights_inside=inside).model("forth"), _GATES[kind], 2)


def test_weights_that_two_bodies_share_are_centred_once_for_both() -> None:
    _folds(_Recurrent("lstm").model("one", "other"), 8, 2)


def test_a_gate_beside_a_larger_part_folds() -> None:
    """Its columns are a run of sets of the weights, whatever comes next to them."""
    model = _Recurrent("lstm").model("forth")
    body = next(part.g for part in model.graph.node[0].attribute if part.name == "body")
    split = next(node for node in body.node if node.op_type == "Split")
    del split.attribute[:], split.output[2:]
    split.attribute.append(helper.make_attribute("axis", 1))
    split.input.append("sizes")
    sizes = numpy_helper.from_array(np.array([_H, 3 * _H]), "sizes")
    model.graph.initializer.append(sizes)
    before = "forth_gate0"
    for node in body.node:
        if node.op_type == "LayerNormalization":
            node.input[0], before = before, node.output[0]
    result = onnxfold.convert(model, to="rms", check=0)
    assert result.report["inspect"]["norms"][0]["reason"] is None
    assert result.proof is not None
    assert result.proof.passed
