"""Models of one node, and runs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnxfold.check.reference import Array, Precision, run
from tests.sessions import outputs

__all__ = ["float64", "native", "one_node", "onnxruntime_outputs", "parsed"]


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def one_node(
    op: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    domain: str = "",
    outputs: Sequence[int] = (TensorProto.FLOAT,),
) -> onnx.ModelProto:
    """A model of one node whose inputs are all graph inputs x0, x1, ...; None leaves one out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" if kind else "" for i, kind in enumerate(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **(attributes or {}))
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape)
            )
            for name, x in zip(names, inputs, strict=True)
            if x is not None
        ],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(results, outputs, strict=True)
            if kind
        ],
    )
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=min(10, 3 + opset // 2))


def _feeds(inputs: Sequence[Array | None]) -> dict[str, Array]:
    return {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}


def float64(proto: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    """Outputs of the truth; float64 inputs keep all their digits, whatever the model's types."""
    outputs = run(ir.from_proto(proto), _feeds(inputs), precision=Precision.FLOAT64)
    return list(outputs.values())


def native(proto: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    return list(run(ir.from_proto(proto), _feeds(inputs), precision=Precision.NATIVE).values())


def onnxruntime_outputs(proto: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    return outputs(proto, _feeds(inputs), level="none")
