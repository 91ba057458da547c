"""ONNX models of many nodes of few kinds, from lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from onnxfold.operators.functions import DOMAIN, VERSION

__all__ = ["MICROSOFT", "Shape", "model", "node", "node_of_norm"]

MICROSOFT = "com.microsoft"
EPSILON = 1e-5
Shape = Sequence[int | str]


def node(text: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return the node of "Operator input input -> output"; "-" is no input or output."""
    call, outputs = text.split(" -> ")
    op, *inputs = (name.strip("-") for name in call.split())
    made = [name.strip("-") for name in outputs.split()]
    return helper.make_node(op, inputs, made, name=made[0], domain=domain, **attributes)


def node_of_norm(text: str) -> onnx.NodeProto:
    """Return a node of a norm or what is near one, ONNX's, ONNX Runtime's or ours."""
    op = text.partition(" ")[0]
    if op in ("Add", "Identity", "Mul", "ReduceMean", "Sub", "Sum"):
        return node(text)
    epsilon = {} if op in ("Center", "ScaleRows") else {"epsilon": EPSILON}
    if op.startswith("Skip"):
        return node(text, MICROSOFT, **epsilon)
    axis = {} if op.startswith("CRMS") else {"axis": -1}
    standard = op.endswith(("LayerNormalization", "RMSNormalization"))
    return node(text, "" if standard else DOMAIN, **axis, **epsilon)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape | None],
    weights: Mapping[str, npt.ArrayLike],
    *,
    opset: int,
    dtype: npt.DTypeLike = np.float32,
) -> onnx.ModelProto:
    """Return a model; of the weights and inputs those that a node reads."""
    made = list(nodes)
    read = {name for one in made for name in one.input}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def infos(shapes: Mapping[str, Shape | None]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kind, shapes[name]) for name in shapes]

    graph = helper.make_graph(
        made,
        "benchmark",
        infos({name: shape for name, shape in inputs.items() if name in read}),
        infos(outputs),
        [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items() if n in read],
    )
    versions = {"": opset, DOMAIN: VERSION, MICROSOFT: 1}
    used = {"", *(one.domain for one in made)}
    imports = [helper.make_opsetid(name, versions[name]) for name in versions if name in used]
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if opset > 18 else 8)
