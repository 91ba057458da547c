"""Matrix products, in floats and in integers."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array

_PART_ELEMENTS = 1 << 22  # 32 MiB of float64, reused by the next part


@kernel("MatMul", narrow=1)
def matmul(call: Call, a: Array, b: Array) -> Array:
    if a.ndim > 1 and b.ndim > 1:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        call.check_size([*batch, a.shape[-2], b.shape[-1]])
    if a.dtype.kind in "iu":
        return integer_matmul(a, b).astype(a.dtype)
    return product(a, b)


@kernel("Gemm", narrow=1)
def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    """Y = alpha A' B' + beta C, with A' and B' transposed on request."""
    a = a.T if call.integer("transA", 0) else a
    b = b.T if call.integer("transB", 0) else b
    call.check_size([a.shape[0], b.shape[-1]])
    y = np.asarray(integer_matmul(a, b) if a.dtype.kind in "iu" else product(a, b))
    alpha, beta = call.real("alpha", 1.0), call.real("beta", 1.0)
    y = y if alpha == 1.0 else y * np.asarray(alpha, a.dtype)
    if c is not None:
        y = y + (c if beta == 1.0 else c * np.asarray(beta, c.dtype))
    return np.asarray(y, dtype=a.dtype)


@kernel("Einsum")
def einsum(call: Call, *inputs: Array) -> Array:
    equation = call.text("equation", "").replace(" ", "")
    call.check_size(_einsum_shape(equation, inputs))
    return np.asarray(np.einsum(equation, *inputs, optimize=True))


def _einsum_shape(equation: str, inputs: Sequence[Array]) -> tuple[int, ...]:
    """Return the output shape of an equation, axes of an ellipsis first."""
    left, arrow, right = equation.partition("->")
    letters = left.replace("...", "").replace(",", "")
    if not arrow:
        right = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    sizes: dict[str, int] = {}
    hidden: list[tuple[int, ...]] = [()]
    for term, x in zip(left.split(","), inputs, strict=True):
        before, _, after = term.partition("...")
        end = x.ndim - len(after)
        hidden.append(x.shape[len(before) : end])
        shown = (*x.shape[: len(before)], *x.shape[end:])
        for letter, size in zip(before + after, shown, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return (*np.broadcast_shapes(*hidden), *(sizes[letter] for letter in right.replace("...", "")))


def product(a: Array, b: Array) -> Array:
    """Return A B in the type of A; a narrower matrix B is widened some columns at a time.

    Widening all of it would need several times the memory of the model, and longer than its
    product.
    """
    if b.dtype == a.dtype or b.ndim != 2 or a.ndim < 2 or b.size <= _PART_ELEMENTS:
        return np.asarray(np.matmul(a, b.astype(a.dtype, copy=False)))
    rows = a.reshape(-1, a.shape[-1])
    y = np.empty((len(rows), b.shape[1]), a.dtype)
    step = max(1, _PART_ELEMENTS // b.shape[0])
    order: Literal["C", "F"] = "F" if b.flags.f_contiguous else "C"  # copied in memory order
    wide = np.empty((b.shape[0], min(step, b.shape[1])), a.dtype, order)
    for start in range(0, b.shape[1], step):
        part = b[:, start : start + step]
        wide[:, : part.shape[1]] = part
        y[:, start : start + step] = rows @ wide[:, : part.shape[1]]
    return y.reshape(*a.shape[:-1], b.shape[1])


def integer_matmul(a: Array, b: Array) -> Array:
    """The int64 product of integer matrices, by float64 BLAS.

    Exact while K |a| |b| < 2**53, which 8-bit entries keep for K < 2**38; wider integers use
    numpy's own loops.
    """
    if a.dtype.itemsize * b.dtype.itemsize <= 2 or (a.dtype.itemsize, b.dtype.itemsize) == (2, 2):
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64)))


def _centred(x: Array, zero: Array | None, *, rows: bool) -> Array:
    """Subtract zero points in int16; a vector of them belongs to the rows or the columns."""
    if zero is None:
        return x.astype(np.int16)
    z = zero.astype(np.int16)
    z = z[:, None] if rows and z.ndim == 1 and z.size > 1 else z
    return np.asarray(x.astype(np.int16) - z)


@kernel("MatMulInteger")
def matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    product = integer_matmul(_centred(a, a_zero, rows=True), _centred(b, b_zero, rows=False))
    return product.astype(np.int32)
