"""Layer-normalised recurrent layers as exporters write them: a Scan, or a Loop, over the steps.

The cells are from "Layer Normalization" (arXiv 1607.06450), section 3.1 and its supplement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["GATES", "HIDDEN", "Layer", "recurrent_model"]

STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 5, 8
GATES = {"rnn": 1, "gru": 3, "lstm": 4}


@dataclass(frozen=True)
class Layer:
    """How a layer is written.

    ``inside``: its weights belong to the body, otherwise to the graph around it. ``grouped``: a
    norm for each gate, otherwise one over all. ``separate``: one norm for the input's part and one
    for the state's. ``sequences``: how many the same weights run over. ``keras``: norms spelled
    out, as tf2onnx 1.17 writes Keras 3's for tensors of two axes.
    """

    cell: str = "lstm"
    loop: str = "Scan"
    inside: bool = False
    grouped: bool = False
    separate: bool = False
    sequences: int = 1
    keras: bool = False


@dataclass
class _Body:
    layer: Layer
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, op: str, inputs: str, outputs: str, **attributes: object) -> None:
        self.nodes.append(helper.make_node(op, inputs.split(), outputs.split(), **attributes))

    def drawn(self, *shape: int, mean: float = 0.3) -> np.ndarray:
        return (self.rng.standard_normal(shape) * 0.5 + mean).astype(np.float32)

    def norm(self, x: str, y: str, gates: int) -> None:
        size = HIDDEN if self.layer.grouped else gates * HIDDEN
        self.constants |= {f"{y}_g": self.drawn(size, mean=1.0), f"{y}_b": self.drawn(size)}
        if not self.layer.grouped:
            self.one_norm(x, y)
            return
        self.constants["by_gate"] = np.array([0, gates, HIDDEN], np.int64)
        self.constants["together"] = np.array([0, gates * HIDDEN], np.int64)
        self.add("Reshape", f"{x} by_gate", f"{x}_gates")
        self.add("LayerNormalization", f"{x}_gates {y}_g {y}_b", f"{y}_gates", axis=-1)
        self.add("Reshape", f"{y}_gates together", y)

    def one_norm(self, x: str, y: str) -> None:
        if not self.layer.keras:
            self.add("LayerNormalization", f"{x} {y}_g {y}_b", y, axis=-1)
            return
        self.constants |= {"last": np.array([-1], np.int64), "tiny": np.array(1e-3, np.float32)}
        for op, inputs, result in (
            ("ReduceMean", f"{x} last", "mean"),
            ("Sub", f"{x} {y}_mean", "off"),
            ("Mul", f"{y}_off {y}_off", "square"),
            ("ReduceMean", f"{y}_square last", "variance"),
            ("Add", f"{y}_variance tiny", "more"),
            ("Sqrt", f"{y}_more", "root"),
            ("Reciprocal", f"{y}_root", "scale"),
            ("Mul", f"{y}_scale {y}_g", "factor"),
            ("Mul", f"{x} {y}_factor", "scaled"),
            ("Neg", f"{y}_mean", "minus"),
            ("Mul", f"{y}_minus {y}_factor", "moved"),
            ("Add", f"{y}_moved {y}_b", "shift"),
        ):
            self.add(op, inputs, f"{y}_{result}")
        self.add("Add", f"{y}_scaled {y}_shift", y)

    def pre_activations(self, gates: int) -> None:
        size = gates * HIDDEN
        self.weights = {
            "W": self.drawn(WIDTH, size),
            "U": self.drawn(HIDDEN, size),
            "b": self.drawn(size),
        }
        self.add("MatMul", "x W", "xW")
        self.add("Add", "xW b", "of_x")
        self.add("MatMul", "h U", "of_h")
        if self.layer.separate or self.layer.cell == "gru":  # its reset gate needs them apart
            self.norm("of_x", "x_part", gates)
            self.norm("of_h", "h_part", gates)
            self.add("Add", "x_part h_part", "a")
        else:
            self.add("Add", "of_x of_h", "pre")
            self.norm("pre", "a", gates)

    def rnn(self) -> None:
        self.add("Tanh", "a", "h_next")

    def lstm(self) -> None:
        self.add("Split", "a", "i f g o", axis=-1, num_outputs=4)
        for gate in "ifo":
            self.add("Sigmoid", gate, f"open_{gate}")
        self.add("Tanh", "g", "new")
        self.add("Mul", "open_f c", "kept")
        self.add("Mul", "open_i new", "taken")
        self.add("Add", "kept taken", "c_next")
        self.constants |= {"c_norm_g": self.drawn(HIDDEN, mean=1.0), "c_norm_b": self.drawn(HIDDEN)}
        self.one_norm("c_next", "c_norm")
        self.add("Tanh", "c_norm", "shown")
        self.add("Mul", "open_o shown", "h_next")

    def gru(self) -> None:
        self.add("Split", "x_part", "x_r x_z x_n", axis=-1, num_outputs=3)
        self.add("Split", "h_part", "h_r h_z h_n", axis=-1, num_outputs=3)
        for gate in "rz":
            self.add("Add", f"x_{gate} h_{gate}", gate)
            self.add("Sigmoid", gate, f"open_{gate}")
        self.add("Mul", "open_r h_n", "reset")
        self.add("Add", "x_n reset", "n")
        self.add("Tanh", "n", "new")
        self.add("Sub", "h new", "old")
        self.add("Mul", "open_z old", "kept")
        self.add("Add", "new kept", "h_next")


def recurrent_model(layer: Layer) -> onnx.ModelProto:
    """Sequences X, X1, ... [steps, batch, width] to the states Y, Y1, ... of every step."""
    body = _Body(layer)
    body.pre_activations(GATES[layer.cell])
    getattr(body, layer.cell)()
    body.add("Identity", "h_next", "y")
    outer = {} if layer.inside else body.weights
    inner = body.constants | (body.weights if layer.inside else {})
    states = ["h", "c"] if layer.cell == "lstm" else ["h"]
    nodes, inputs, outputs = [], [_value(f"{s}0", [BATCH, HIDDEN]) for s in states], []
    if layer.loop == "Loop":
        outer = outer | {"steps": np.array(STEPS, np.int64)}
    for number in range(layer.sequences):
        tag = str(number or "")
        nodes.append(_loop(layer, body, inner, states, tag))
        inputs.append(_value(f"X{tag}", [STEPS, BATCH, WIDTH]))
        outputs.append(_value(f"Y{tag}", [STEPS, BATCH, HIDDEN]))
    graph = helper.make_graph(nodes, "layer", inputs, outputs, _tensors(outer))
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _loop(
    layer: Layer, body: _Body, inner: dict[str, np.ndarray], states: list[str], tag: str
) -> onnx.NodeProto:
    before = [_value(state, [BATCH, HIDDEN]) for state in states]
    after = [_value(f"{state}_next", [BATCH, HIDDEN]) for state in states]
    after.append(_value("y", [BATCH, HIDDEN]))
    starts = [f"{state}0" for state in states]
    results = [*(f"{state}_end{tag}" for state in states), f"Y{tag}"]
    if layer.loop == "Scan":
        inputs = [*before, _value("x", [BATCH, WIDTH])]
        graph = helper.make_graph(body.nodes, "step", inputs, after, _tensors(inner))
        given = [*starts, f"X{tag}"]
        return helper.make_node("Scan", given, results, body=graph, num_scan_inputs=1)
    nodes = [
        helper.make_node("Gather", [f"X{tag}", "step"], ["x"], axis=0),
        helper.make_node("Identity", ["go"], ["go_on"]),
    ]
    number, go = _value("step", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL)
    after = [_value("go_on", [], TensorProto.BOOL), *after]
    inputs = [number, go, *before]
    graph = helper.make_graph([*nodes, *body.nodes], "step", inputs, after, _tensors(inner))
    return helper.make_node("Loop", ["steps", "", *starts], results, body=graph)


def _value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _tensors(arrays: dict[str, np.ndarray]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]
