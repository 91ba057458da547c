"""The ways to compute a norm on a GPU that benchmarks/gpu_kernels.py compares.

A method maps an operation and its tensors to a call that computes set number i; it raises
UnavailableError if it lacks the operation or its package is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from torch.nn import functional

from tests.custom_ops.cuda_kernels import Arguments, HostMemory, Kernels

__all__ = [
    "EPSILON",
    "METHODS",
    "OPERATIONS",
    "OURS",
    "Call",
    "Method",
    "Operation",
    "Tensors",
    "UnavailableError",
]

EPSILON = 1e-5
OURS = "onnxfold"
# Returns y and everything else that was allocated, or None if y was written to the tensors' own.
Call: TypeAlias = Callable[[int], tuple[Any, ...] | None]


class UnavailableError(Exception):
    """The method cannot compute the operation, or is not installed."""


@dataclass(frozen=True, slots=True)
class Operation:
    """y = norm(x), or y, sum = norm(x + residual), x + residual; scale and bias after it."""

    op: str  # of domain onnxfold
    layer: bool = False
    residual: bool = False
    scale: bool = False
    bias: bool = False
    plain: bool = True  # an RMSNorm or LayerNorm, which others have as well

    @property
    def streams(self) -> int:
        """Tensors read and written."""
        return 4 if self.residual else 2


_AFFINE = {"scale": True, "bias": True}
OPERATIONS: Mapping[str, Operation] = {
    "rms": Operation("RMSNormScale", scale=True),
    "layer": Operation("LayerNormAffine", layer=True, **_AFFINE),
    "add_rms": Operation("AddRMSNormScaleWithSum", residual=True, scale=True),
    "add_layer": Operation("AddLayerNormAffineWithSum", layer=True, residual=True, **_AFFINE),
    "rms_bare": Operation("RMSNorm"),
    "center": Operation("Center", plain=False),
    "crms": Operation("CRMSNorm", plain=False),
}


class Tensors:
    """`sets` of x, residual, y and sum, [rows, n], and one scale and bias."""

    def __init__(
        self, operation: Operation, rows: int, size: int, dtype: torch.dtype, sets: int
    ) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

        self.x = [normal(rows, size) for _ in range(sets)]
        self.y = [torch.empty_like(x) for x in self.x]
        self.residual = [normal(rows, size) if operation.residual else None for _ in range(sets)]
        self.sum = [torch.empty_like(x) if operation.residual else None for x in self.x]
        self.scale = 1 + 0.1 * normal(size) if operation.scale else None
        self.bias = normal(size) if operation.bias else None


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def onnxfold(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    """Our kernel, by its driver."""
    kernels = Kernels(driver, HostMemory())  # never called: PyTorch has the tensors
    dtype = {
        torch.float32: ir.DataType.FLOAT,
        torch.float16: ir.DataType.FLOAT16,
        torch.bfloat16: ir.DataType.BFLOAT16,
    }[tensors.x[0].dtype]
    rows, size = tensors.x[0].shape
    arguments = [
        Arguments(
            x=_address(x),
            residual=_address(residual),
            scale=_address(tensors.scale),
            bias=_address(tensors.bias),
            y=_address(y),
            sum=_address(total),
            rows=rows,
            size=size,
            epsilon=EPSILON,
        )
        for x, residual, y, total in zip(
            tensors.x, tensors.residual, tensors.y, tensors.sum, strict=True
        )
    ]

    def call(i: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        kernels.call(operation.op, dtype, arguments[i], multiprocessors=0, stream=stream)

    return call


def pytorch(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    """torch.nn.functional, after an addition where there is a residual."""
    del driver
    if not operation.plain:
        raise UnavailableError
    shape = tensors.x[0].shape[-1:]

    def call(i: int) -> tuple[Any, ...]:
        x, residual = tensors.x[i], tensors.residual[i]
        if residual is not None:
            x = x + residual
        if operation.layer:
            return functional.layer_norm(x, shape, tensors.scale, tensors.bias, EPSILON), x
        return functional.rms_norm(x, shape, tensors.scale, EPSILON), x

    return call


def triton(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    """Our own Triton kernel (gpu_triton.py)."""
    del driver
    if not operation.plain:
        raise UnavailableError
    try:
        from benchmarks.gpu_triton import triton_norm
    except ImportError as error:
        raise UnavailableError from error

    def call(i: int) -> None:
        triton_norm(
            tensors.x[i],
            tensors.y[i],
            residual=tensors.residual[i],
            total=tensors.sum[i],
            scale=tensors.scale,
            bias=tensors.bias,
            layer=operation.layer,
            epsilon=EPSILON,
        )

    return call


# Of a driver, an operation and its tensors.
Method: TypeAlias = Callable[[Path, Operation, Tensors], Call]
METHODS: Mapping[str, Method] = {OURS: onnxfold, "torch": pytorch, "triton": triton}
