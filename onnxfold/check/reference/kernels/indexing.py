"""Gather and scatter."""

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array

_COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _write(call: Call, out: Array, where: tuple[Array, ...], updates: Array) -> Array:
    how = call.text("reduction", "none")
    if how == "none":
        out[where] = updates
    else:
        _COMBINE[how].at(out, where, updates)
    return out


def _along_axis(indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Index arrays that address, for each element of `indices`, the place along `axis`."""
    where: list[Array] = list(np.indices(indices.shape, sparse=True))
    where[axis] = np.where(indices < 0, indices + shape[axis], indices)
    return tuple(where)


@kernel("Gather", raw=True)
def gather(call: Call, x: Array, indices: Array) -> Array:
    axis = call.integer("axis", 0)
    size = x.shape[axis]
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        raise IndexError(f"index {int(indices.max())} is out of range for {size} rows")
    call.check_size([indices.size, x.size / max(size, 1)])
    return np.take(x, indices, axis=axis)


@kernel("GatherElements", raw=True)
def gather_elements(call: Call, x: Array, indices: Array) -> Array:
    axis = call.integer("axis", 0) % x.ndim
    return np.asarray(x[_along_axis(indices, x.shape, axis)])


@kernel("GatherND", raw=True)
def gather_nd(call: Call, x: Array, indices: Array) -> Array:
    batch = call.integer("batch_dims", 0)
    depth = indices.shape[-1]
    call.check_size([*indices.shape[:-1], *x.shape[batch + depth :]])
    flat = x.reshape(-1, *x.shape[batch:])
    places = indices.reshape(flat.shape[0], -1, depth)
    rows = np.arange(flat.shape[0]).reshape(-1, 1)
    picked = np.asarray(flat[(rows, *(places[..., i] for i in range(depth)))])
    return picked.reshape(*indices.shape[:-1], *x.shape[batch + depth :])


@kernel("Scatter", "ScatterElements")
def scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    axis = call.integer("axis", 0) % x.ndim
    return _write(call, x.copy(), _along_axis(indices, x.shape, axis), updates)


@kernel("ScatterND")
def scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    where = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _write(call, x.copy(), where, updates)


@kernel("OneHot")
def one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    count = int(depth.reshape(-1)[0])
    call.check_size([indices.size, count])
    rank = indices.ndim + 1
    axis = call.integer("axis", -1) % rank
    places = indices.astype(np.int64)
    places = np.expand_dims(np.where(places < 0, places + count, places), axis)
    classes = np.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)])
    return np.asarray(np.where(places == classes, values[1], values[0]))
