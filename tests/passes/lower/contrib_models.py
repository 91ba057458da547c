"""Small models with operators of ONNX Runtime, and their sessions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

WIDTH = 8


def with_weights(text: str) -> onnx.ModelProto:
    """A model of a text; what no node gives are weights: W and M matrices, others vectors."""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(model.graph.output[0].type.tensor_type.elem_type)
    made = {value.name for value in model.graph.input}
    made |= {name for node in model.graph.node for name in node.output}
    for name in sorted({name for node in model.graph.node for name in node.input} - made - {""}):
        shape = (WIDTH, WIDTH) if name.startswith(("W", "M")) else (WIDTH,)
        weight = rng.standard_normal(shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)
