"""Operators of sequences and optionals: onnx's implementations, which only move tensors."""

from __future__ import annotations

from onnxfold.check.reference.kernel import kernel
from onnxfold.check.reference.kernels.delegated import delegated
from onnxfold.operators.table import op_types

__all__: list[str] = []

kernel(*op_types("sequences"), raw=True)(delegated)
