"""Matrix products, reductions over axes, and cumulative sums."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel

Reduce = Callable[[Array, "tuple[int, ...]", bool], Array]


def reduced_axes(call: Call, rank: int, axes: Array | None) -> tuple[int, ...]:
    """Axes given as attribute (before opset 18, ReduceSum 13) or as input.

    None means all of them, or no axis with noop_with_empty_axes. Raises ValueError for more axes
    than the tensor has.
    """
    if axes is not None and axes.size > max(1, rank):
        raise ValueError(f"{axes.size} axes of a tensor of {rank} dimensions")
    listed = call.integers("axes") if axes is None else tuple(int(a) for a in axes.reshape(-1))
    if listed:
        return tuple(a % rank for a in listed)
    return () if call.integer("noop_with_empty_axes", 0) else tuple(range(rank))


def _lowest(x: Array) -> float | int:
    if x.dtype.kind == "b":
        return False
    return int(np.iinfo(x.dtype).min) if x.dtype.kind in "iu" else -np.inf


def _highest(x: Array) -> float | int:
    if x.dtype.kind == "b":
        return True
    return int(np.iinfo(x.dtype).max) if x.dtype.kind in "iu" else np.inf


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, np.zeros_like(top))
    total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return np.asarray(total if keep else np.squeeze(total, axis=axes))


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: np.sum(np.abs(x), axis=axes, keepdims=keep),
    "ReduceL2": lambda x, axes, keep: np.sqrt(np.sum(x * x, axis=axes, keepdims=keep)),
    "ReduceLogSum": lambda x, axes, keep: np.log(np.sum(x, axis=axes, keepdims=keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": lambda x, axes, keep: np.max(x, axis=axes, keepdims=keep, initial=_lowest(x)),
    "ReduceMean": lambda x, axes, keep: np.mean(x, axis=axes, keepdims=keep),
    "ReduceMin": lambda x, axes, keep: np.min(x, axis=axes, keepdims=keep, initial=_highest(x)),
    "ReduceProd": lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep),
    "ReduceSum": lambda x, axes, keep: np.sum(x, axis=axes, keepdims=keep),
    "ReduceSumSquare": lambda x, axes, keep: np.sum(x * x, axis=axes, keepdims=keep),
}


def _register(name: str, function: Reduce) -> None:
    @kernel(name)
    def reduction(call: Call, x: Array, axes: Array | None = None) -> Array:
        over = reduced_axes(call, x.ndim, axes)
        y = np.asarray(function(x, over, call.integer("keepdims", 1) == 1))
        return y.astype(x.dtype, copy=False)


for _name, _function in _REDUCTIONS.items():
    _register(_name, _function)


def _position(call: Call, x: Array, find: Callable[..., Array]) -> Array:
    axis = call.integer("axis", 0) % max(x.ndim, 1)
    if call.integer("select_last_index", 0):
        found = x.shape[axis] - 1 - find(np.flip(x, axis=axis), axis=axis)
    else:
        found = find(x, axis=axis)
    found = np.asarray(found, dtype=np.int64)
    return np.expand_dims(found, axis) if call.integer("keepdims", 1) == 1 else found


@kernel("ArgMax")
def arg_max(call: Call, x: Array) -> Array:
    return _position(call, x, np.argmax)


@kernel("ArgMin")
def arg_min(call: Call, x: Array) -> Array:
    return _position(call, x, np.argmin)


@kernel("CumSum")
def cum_sum(call: Call, x: Array, axis: Array) -> Array:
    where = int(axis.reshape(-1)[0])
    flipped = np.flip(x, where) if call.integer("reverse", 0) else x
    total = np.cumsum(flipped, axis=where, dtype=x.dtype)
    if call.integer("exclusive", 0):
        total = total - flipped if x.dtype.kind in "iu" else _shifted(total, where)
    return np.flip(total, where) if call.integer("reverse", 0) else total


def _shifted(total: Array, axis: int) -> Array:
    """The sums before each element: a zero first, the last one dropped."""
    moved = np.moveaxis(total, axis, 0)
    out = np.concatenate([np.zeros_like(moved[:1]), moved[:-1]])
    return np.moveaxis(out, 0, axis)


@kernel("TopK")
def top_k(call: Call, x: Array, k: Array | None = None) -> tuple[Array, Array]:
    """The k largest (smallest) along an axis, in order; of equal ones the lower index first."""
    count = call.integer("k", 0) if k is None else int(k.reshape(-1)[0])
    axis = call.integer("axis", -1)
    if not call.integer("largest", 1):
        order = np.argsort(x, axis=axis, kind="stable")
    else:
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - backwards, axis)
    chosen = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen.astype(np.int64)


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
