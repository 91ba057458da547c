"""Operators that move, split and join numbers without computing on them."""

from typing import Literal

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array


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
