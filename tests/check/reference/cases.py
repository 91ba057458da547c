"""One node with its inputs, for the interpreter and ONNX Runtime: what a case is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfold.check.reference import Array

__all__ = ["BOOL", "F16", "F32", "I8", "I32", "I64", "U8", "Case", "f", "i"]

F32, F16, I64, I32, U8, I8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.BOOL,
)


def f(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def i(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class Case:
    op: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    outputs: tuple[int, ...] = (F32,)
    domain: str = ""

    def __str__(self) -> str:
        told = "-".join(f"{k}={v}" for k, v in self.attributes.items() if not hasattr(v, "dims"))
        return f"{self.op}-{self.opset}-{told}"
