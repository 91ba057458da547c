"""A Triton kernel for the same norms, written for comparison: one row for each program."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["triton_norm"]


@triton.jit
def _norm(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as kernels are
    x_ptr,
    residual_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    sum_ptr,
    n,
    epsilon,
    LAYER: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * n
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    v = tl.load(x_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        v += tl.load(residual_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = v.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + start + columns, rounded, mask=inside)
        v = rounded.to(tl.float32)
    if LAYER:
        mean = tl.sum(v, axis=0) / n
        v = tl.where(inside, v - mean, 0.0)
    y = v * tl.rsqrt(tl.sum(v * v, axis=0) / n + epsilon)
    if SCALE:
        y *= tl.load(scale_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


def triton_norm(
    x: Any, y: Any, *, residual: Any, total: Any, scale: Any, bias: Any, layer: bool, epsilon: float
) -> None:
    """Y = norm(x [+ residual]) over the last axis, total = x + residual; tensors of torch."""
    rows, n = x.shape
    block = triton.next_power_of_2(n)
    warps = 1 if block <= 512 else 4 if block <= 2048 else 8 if block <= 8192 else 16
    _norm[(rows,)](
        x,
        x if residual is None else residual,
        x if scale is None else scale,
        x if bias is None else bias,
        y,
        y if total is None else total,
        n,
        epsilon,
        LAYER=layer,
        RESIDUAL=residual is not None,
        SCALE=scale is not None,
        BIAS=bias is not None,
        BLOCK=block,
        num_warps=warps,
    )
