"""A small float64 model whose stream has mean 0 by its weights, before one RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import model

__all__ = ["FEEDS", "B", "C", "CentredStream", "T", "activation", "between", "halved"]

Array = npt.NDArray[Any]
B, T, C, V = 2, 3, 8, 19
FEEDS: dict[str, Array] = {
    "ids": np.random.default_rng(1).integers(0, V, (B, T)),
    "x": np.random.default_rng(2).standard_normal((B, T, 5)),
}
_INPUTS = {"ids": (TensorProto.INT64, ["batch", T]), "x": (TensorProto.DOUBLE, ["batch", T, 5])}


class CentredStream:
    """h = table[ids] + x W + b, n = RMSNorm(h), y = n head; all but ``with_mean`` are centered."""

    def __init__(self, *with_mean: str):
        rng = np.random.default_rng(0)
        self.outputs = ["y"]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        for name, shape in (("table", (V, C)), ("W", (5, C)), ("b", (C,))):
            array = rng.standard_normal(shape) + 0.5
            centred = array - array.mean(axis=-1, keepdims=True)
            self.weights[name] = array if name in with_mean else centred
        self.weights["gamma"] = 1 + rng.random(C)
        self.weights["head"] = rng.standard_normal((C, 4))

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node, which is named as its output is; return that."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def model(self, between: Callable[[CentredStream], str] | None = None) -> onnx.ModelProto:
        """Return the model; ``between`` adds nodes behind h and says what the norm reads."""
        self.node("Gather", ["table", "ids"], "e")
        self.node("MatMul", ["x", "W"], "m")
        self.node("Add", ["m", "b"], "a")
        self.node("Add", ["e", "a"], "h")
        stream = "h" if between is None else between(self)
        self.node("RMSNormalization", [stream, "gamma"], "n", axis=-1)
        self.node("MatMul", ["n", "head"], "y")
        kind = (TensorProto.DOUBLE, None)
        graph = helper.make_graph(
            self.nodes,
            "stream",
            [helper.make_tensor_value_info(name, *known) for name, known in _INPUTS.items()],
            [helper.make_tensor_value_info(name, *kind) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        imports = [helper.make_opsetid("", 23)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def between(
    body: str, outputs: str = "", *, reads: str = "", **constants: Any
) -> Callable[[CentredStream], str]:
    """Return what adds the nodes of a text, of which the norm reads the last or ``reads``."""

    def add(graph: CentredStream) -> str:
        graph.weights |= {name: np.asarray(number) for name, number in constants.items()}
        for node in model(body, "", "", opset=23).graph.node:
            node.name = node.output[0]
            graph.nodes.append(node)
        graph.outputs += outputs.split()
        return reads or str(graph.nodes[-1].output[0])

    return add


# Let the norm read relu(h), which has a mean, and h / 2, which has none.
activation = between("relu = Relu(h)")
halved = between("halved = Mul(h, half)", half=0.5)
