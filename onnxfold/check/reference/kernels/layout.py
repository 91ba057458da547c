"""Operators that move, pick and create numbers without computing on them."""

from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import (
    Array,
    Call,
    Precision,
    is_floating,
    is_quantized_float,
    kernel,
)


def _axes(call: Call, axes: Array | None) -> tuple[int, ...] | None:
    return call.integers("axes") if axes is None else tuple(int(a) for a in axes.reshape(-1))


@kernel("Identity", raw=True)
def identity(call: Call, x: Array) -> Array:
    return x


@kernel("Reshape", raw=True)
def reshape(call: Call, x: Array, shape: Array | None = None) -> Array:
    wanted = call.integers("shape") if shape is None else tuple(int(d) for d in shape)
    if wanted is None:
        raise call.unsupported("Reshape without a shape")
    if not call.integer("allowzero", 0):
        wanted = tuple(x.shape[i] if d == 0 else d for i, d in enumerate(wanted))
    if -1 in wanted and x.size == 0 and 0 in wanted:
        wanted = tuple(0 if d == -1 else d for d in wanted)
    return x.reshape(wanted)


@kernel("Flatten", raw=True)
def flatten(call: Call, x: Array) -> Array:
    axis = call.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


@kernel("Transpose", raw=True)
def transpose(call: Call, x: Array) -> Array:
    return np.transpose(x, call.integers("perm"))


@kernel("Squeeze", raw=True)
def squeeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, axis=_axes(call, axes))


@kernel("Unsqueeze", raw=True)
def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, _axes(call, axes) or ())


@kernel("Concat")
def concat(call: Call, *inputs: Array) -> Array:
    call.check_size([sum(x.size for x in inputs)])
    return np.concatenate(inputs, axis=call.integer("axis", 1))


@kernel("Split", raw=True)
def split(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = call.integer("axis", 0)
    listed = call.integers("split") if sizes is None else tuple(int(s) for s in sizes)
    if listed is None:
        parts = call.integer("num_outputs", len(call.node.outputs))
        each = -(-x.shape[axis] // parts)
        listed = (*(each for _ in range(parts - 1)), x.shape[axis] - each * (parts - 1))
    return tuple(np.split(x, np.cumsum(listed)[:-1], axis=axis))


def _slice(size: int, start: int, end: int, step: int) -> slice:
    """The Python slice for ONNX bounds, which are clamped and may be INT_MIN or INT_MAX."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


@kernel("Slice", raw=True)
def slice_kernel(
    call: Call,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first = call.integers("starts") if starts is None else tuple(int(v) for v in starts)
    last = call.integers("ends") if ends is None else tuple(int(v) for v in ends)
    if first is None or last is None:
        raise call.unsupported("Slice without starts and ends")
    where = _axes(call, axes) or tuple(range(len(first)))
    by = (1,) * len(first) if steps is None else tuple(int(v) for v in steps)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(where, first, last, by, strict=True):
        index[axis] = _slice(x.shape[axis], start, end, step)
    return x[tuple(index)]


@kernel("Expand", raw=True)
def expand(call: Call, x: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    call.check_size(wanted)
    return np.broadcast_to(x, wanted)


@kernel("Tile", raw=True)
def tile(call: Call, x: Array, repeats: Array) -> Array:
    call.check_size([x.size, *repeats])
    return np.tile(x, tuple(int(r) for r in repeats))


_PAD_MODES: dict[str, Literal["constant", "reflect", "edge", "wrap"]] = {
    "constant": "constant",
    "reflect": "reflect",
    "edge": "edge",
    "wrap": "wrap",
}


@kernel("Pad")
def pad(
    call: Call,
    x: Array,
    pads: Array | None = None,
    value: Array | None = None,
    axes: Array | None = None,
) -> Array:
    amounts = call.integers("pads") if pads is None else tuple(int(p) for p in pads)
    if amounts is None:
        raise call.unsupported("Pad without pads")
    where = tuple(range(x.ndim)) if axes is None else tuple(int(a) % x.ndim for a in axes)
    widths = [(0, 0)] * x.ndim
    for position, axis in enumerate(where):
        widths[axis] = (amounts[position], amounts[position + len(where)])
    # Negative amounts cut.
    x = x[tuple(slice(max(-a, 0), x.shape[i] - max(-b, 0)) for i, (a, b) in enumerate(widths))]
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    call.check_size(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True))
    mode = _PAD_MODES[call.text("mode", "constant")]
    if mode != "constant":
        return np.pad(x, widths, mode=mode)
    fill = call.real("value", 0.0) if value is None else value.reshape(-1)[0]
    return np.pad(x, widths, mode="constant", constant_values=np.asarray(fill, dtype=x.dtype))


@kernel("Trilu", raw=True)
def trilu(call: Call, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    mask = np.tri(x.shape[-2], x.shape[-1], diagonal - call.integer("upper", 1), dtype=bool)
    keep = ~mask if call.integer("upper", 1) else mask
    return np.where(keep, x, np.zeros((), dtype=x.dtype))


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


def cast_to(x: Array, dtype: np.dtype[Any], precision: Precision, *, saturate: bool) -> Array:
    """The array in `dtype`.

    Under FLOAT64 a cast among the wide floats does not round; a cast to eight bits or fewer does,
    because it is quantization.
    """
    if is_quantized_float(dtype):
        wide = x.astype(np.float32)
        if saturate:
            # finfo does not know the types of ml_dtypes.
            limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # no types
            wide = np.clip(wide, -limit, limit)
        return wide.astype(dtype)
    if precision is Precision.FLOAT64 and is_floating(dtype):
        return x.astype(np.float64, copy=False)
    return x.astype(dtype, copy=False)


def _numpy_dtype(call: Call, number: int) -> np.dtype[Any]:
    kind = ir.DataType(number)
    if kind in (ir.DataType.STRING, ir.DataType.FLOAT8E8M0):
        raise call.unsupported(f"{kind.name} as a type to cast to")
    return kind.numpy()


@kernel("Cast", raw=True)
def cast_kernel(call: Call, x: Array) -> Array:
    if x.dtype.kind in "OUS":
        x = x.astype(np.float64)
    dtype = _numpy_dtype(call, call.integer("to", 0))
    return cast_to(x, dtype, call.precision, saturate=bool(call.integer("saturate", 1)))


@kernel("CastLike", raw=True)
def cast_like(call: Call, x: Array, target: Array) -> Array:
    saturate = bool(call.integer("saturate", 1))
    return cast_to(x, target.dtype, call.precision, saturate=saturate)


@kernel("Constant", raw=True)
def constant(call: Call) -> Array:
    tensor = call.tensor("value")
    if tensor is not None:
        return tensor.numpy()
    for name, kind in (("value_float", np.float32), ("value_int", np.int64)):
        if call.has(name):
            return np.asarray(call.attributes[name].value, dtype=kind)
        if call.has(f"{name}s"):
            return np.asarray(call.attributes[f"{name}s"].value, dtype=kind)
    for name in ("value_string", "value_strings"):
        if call.has(name):
            return np.asarray(call.attributes[name].value, dtype=object)
    raise call.unsupported("a sparse constant")


@kernel("ConstantOfShape", raw=True)
def constant_of_shape(call: Call, shape: Array) -> Array:
    call.check_size(shape)
    tensor = call.tensor("value")
    value = np.zeros(1, np.float32) if tensor is None else tensor.numpy()
    return np.full(tuple(int(d) for d in shape), value.reshape(-1)[0], dtype=value.dtype)


@kernel("Shape", raw=True)
def shape_kernel(call: Call, x: Array) -> Array:
    end = call.integer("end", x.ndim)
    return np.asarray(x.shape[call.integer("start", 0) : end], dtype=np.int64)


@kernel("Size", raw=True)
def size(call: Call, x: Array) -> Array:
    return np.asarray(x.size, dtype=np.int64)


@kernel("Range")
def range_kernel(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    call.check_size([float(abs((last - first) / step))])
    count = max(int(np.ceil((last - first) / step)), 0)
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step, dtype=start.dtype)


@kernel("EyeLike")
def eye_like(call: Call, x: Array) -> Array:
    dtype = _numpy_dtype(call, call.integer("dtype", 0)) if call.has("dtype") else x.dtype
    rows, columns = x.shape
    return np.eye(rows, columns, k=call.integer("k", 0)).astype(dtype)


@kernel("NonZero", raw=True)
def non_zero(call: Call, x: Array) -> Array:
    return np.asarray(np.nonzero(np.atleast_1d(x)), dtype=np.int64)
