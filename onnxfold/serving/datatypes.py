"""The table of element types: ONNX Runtime's names, the protocol's, numpy's and Triton's."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row: the name in the protocol and in ONNX Runtime, the arrays, the typed gRPC field.

    ``dtype`` is None if ONNX Runtime cannot accept such arrays from Python; strings are objects.
    ``contents`` is the field of InferTensorContents, or None if elements must be sent raw.
    """

    name: str
    onnx: str
    dtype: np.dtype[Any] | None
    contents: str | None

    @property
    def triton(self) -> str:
        """The name in Triton's model_config.proto."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"


DATATYPES = (
    Datatype("BOOL", "tensor(bool)", np.dtype(np.bool_), "bool_contents"),
    Datatype("INT8", "tensor(int8)", np.dtype(np.int8), "int_contents"),
    Datatype("INT16", "tensor(int16)", np.dtype(np.int16), "int_contents"),
    Datatype("INT32", "tensor(int32)", np.dtype(np.int32), "int_contents"),
    Datatype("INT64", "tensor(int64)", np.dtype(np.int64), "int64_contents"),
    Datatype("UINT8", "tensor(uint8)", np.dtype(np.uint8), "uint_contents"),
    Datatype("UINT16", "tensor(uint16)", np.dtype(np.uint16), "uint_contents"),
    Datatype("UINT32", "tensor(uint32)", np.dtype(np.uint32), "uint_contents"),
    Datatype("UINT64", "tensor(uint64)", np.dtype(np.uint64), "uint64_contents"),
    Datatype("FP16", "tensor(float16)", np.dtype(np.float16), None),
    Datatype("FP32", "tensor(float)", np.dtype(np.float32), "fp32_contents"),
    Datatype("FP64", "tensor(double)", np.dtype(np.float64), "fp64_contents"),
    Datatype("BF16", "tensor(bfloat16)", None, None),
    Datatype("BYTES", "tensor(string)", np.dtype(np.object_), "bytes_contents"),
)
BY_NAME = {row.name: row for row in DATATYPES}
BY_ONNX = {row.onnx: row for row in DATATYPES}
