"""Reductions over axes, cumulative sums, and the positions of extremes."""

from collections.abc import Callable

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array

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
