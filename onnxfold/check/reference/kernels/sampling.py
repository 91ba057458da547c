"""GridSample and DeformConv: values of a tensor at real positions."""

from itertools import product
from math import prod

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.kernels.resize import cubic_weight
from onnxfold.check.reference.kernels.windows import Windows, windows_of
from onnxfold.check.reference.precision import Array

_CUBIC = -0.75


def _reflected(x: Array, low: float, high: float) -> Array:
    """Positions reflected at two borders until they lie between them."""
    span = high - low
    if span <= 0:
        return np.zeros_like(x)
    folded = np.abs(np.mod(x - low + span, 2 * span) - span)
    return np.where((x < low) | (x > high), low + folded, x)


def _inside(call: Call, x: Array, size: int) -> Array:
    """Return positions moved inside an axis according to padding_mode.

    Zeros leaves them outside.
    """
    corners = bool(call.integer("align_corners", 0))
    match call.text("padding_mode", "zeros"):
        case "border":
            return np.clip(x, 0, size - 1)
        case "reflection":
            return _reflected(x, 0.0, size - 1.0) if corners else _reflected(x, -0.5, size - 0.5)
        case _:
            return x


def _pixels(call: Call, x: Array, places: list[Array]) -> Array:
    """Elements of x: [N, C, *spatial] at whole positions [N, *out] per axis; outside is zero."""
    sizes = x.shape[2:]
    known = np.ones(places[0].shape, dtype=np.bool_)
    number = np.zeros(places[0].shape, dtype=np.int64)
    for place, size in zip(places, sizes, strict=True):
        index = np.trunc(_inside(call, place, size)).astype(np.int64)
        known &= (index >= 0) & (index < size)
        number = number * size + np.clip(index, 0, size - 1)
    flat = x.reshape(*x.shape[:2], prod(sizes))
    picked = np.take_along_axis(flat, number.reshape(x.shape[0], 1, -1), axis=2)
    picked = picked.reshape(*x.shape[:2], *places[0].shape[1:])
    return np.where(known[:, None], picked, np.zeros((), dtype=x.dtype))


def _weight(kind: str, distance: Array) -> Array:
    if kind == "cubic":
        return cubic_weight(distance, _CUBIC)
    return 1 - np.abs(distance)


@kernel("GridSample")
def grid_sample(call: Call, x: Array, grid: Array) -> Array:
    """Sample x: [N, C, *spatial] at grid: [N, *out, rank] in [-1, 1], last axis first."""
    kind = call.text("mode", "linear").removeprefix("bi")
    positions = []
    for axis, size in enumerate(x.shape[2:]):
        unit = (grid[..., x.ndim - 3 - axis] + 1) / 2
        position = unit * (size - 1) if call.integer("align_corners", 0) else unit * size - 0.5
        position = np.rint(position) if kind == "nearest" else position
        # The position of a cubic is between pixels, which are clamped one by one, as in PyTorch and
        # ONNX Runtime 1.31; onnx 1.23's reference clamps the position.
        positions.append(position if kind == "cubic" else _inside(call, position, size))
    if kind == "nearest":
        return _pixels(call, x, positions)
    return _between(call, x, positions, kind)


def _between(call: Call, x: Array, positions: list[Array], kind: str) -> Array:
    """Values of x: [N, C, *spatial] at positions [N, *out] per axis, interpolated."""
    bases = [np.floor(position) for position in positions]
    steps = range(-1, 3) if kind == "cubic" else range(2)
    total = np.zeros((*x.shape[:2], *positions[0].shape[1:]), dtype=x.dtype)
    for shift in product(steps, repeat=len(bases)):
        places = [base + step for base, step in zip(bases, shift, strict=True)]
        weight = np.ones(positions[0].shape, dtype=x.dtype)
        for position, place in zip(positions, places, strict=True):
            weight = weight * _weight(kind, position - place)
        total += weight[:, None] * _pixels(call, x, places)
    return total


@kernel("DeformConv")
def deform_conv(
    call: Call,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Convolution whose windows are moved, by offset: [N, groups * taps * rank, *out]."""
    windows, group = windows_of(call, x.shape[2:], w.shape[2:]), call.integer("group", 1)
    moved, taps, rank = call.integer("offset_group", 1), prod(w.shape[2:]), x.ndim - 2
    out = offset.shape[2:]
    shifts = offset.reshape(x.shape[0] * moved, taps, rank, *out)
    parts = x.reshape(x.shape[0] * moved, -1, *x.shape[2:])
    amounts = None if mask is None else mask.reshape(x.shape[0] * moved, taps, 1, *out)
    weights = w.reshape(group, w.shape[0] // group, w.shape[1], taps)
    y = np.zeros((x.shape[0], group, w.shape[0] // group, prod(out)), dtype=np.result_type(x, w))
    for tap, place in enumerate(windows.offsets()):
        positions = [
            start + shifts[:, tap, axis] for axis, start in enumerate(_starts(windows, place, out))
        ]
        sampled = _between(call, parts, positions, "linear")
        sampled = sampled if amounts is None else sampled * amounts[:, tap]
        y += weights[..., tap] @ sampled.reshape(x.shape[0], group, w.shape[1], -1)
    y = y.reshape(x.shape[0], w.shape[0], *out)
    return y if b is None else np.asarray(y + b.reshape(1, -1, *(1 for _ in out)))


def _starts(windows: Windows, place: tuple[int, ...], out: tuple[int, ...]) -> list[Array]:
    """Where an element of all windows is, along each axis."""
    steps = zip(place, windows.dilations, windows.strides, windows.begins, out, strict=True)
    along = [at * d - begin + s * np.arange(size) for at, d, s, begin, size in steps]
    return [each.astype(np.float64) for each in np.meshgrid(*along, indexing="ij")]
