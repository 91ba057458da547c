"""A linear layer, a LayerNorm and a linear layer, with any numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

__all__ = ["WIDTH", "layer_norm_model"]

WIDTH = 16
Array = npt.NDArray[np.generic]


def layer_norm_model(
    dtype: Any = np.float32, epsilon: float = 1e-5, **given: Any
) -> onnx.ModelProto:
    """y = LN(x W + b) V with gamma g and beta c; `given` replaces any of these."""
    rng = np.random.default_rng(0)
    arrays = {
        "W": rng.standard_normal((WIDTH, WIDTH)),
        "b": rng.standard_normal(WIDTH),
        "g": 1 + 0.1 * rng.standard_normal(WIDTH),
        "c": 0.1 * rng.standard_normal(WIDTH),
        "V": rng.standard_normal((WIDTH, WIDTH)),
        **given,
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "c"], ["n"], epsilon=epsilon),
        helper.make_node("MatMul", ["n", "V"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["B", WIDTH])],
        [helper.make_tensor_value_info("y", kind, ["B", WIDTH])],
        [numpy_helper.from_array(np.asarray(a, dtype), name) for name, a in arrays.items()],
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)
