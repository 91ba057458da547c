"""GridSample: values of a tensor at real positions."""

from itertools import product
from math import prod

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.kernels.resize import cubic_weight
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
    bases = [np.floor(position) for position in positions]
    steps = range(-1, 3) if kind == "cubic" else range(2)
    total = np.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype)
    for shift in product(steps, repeat=len(bases)):
        places = [base + step for base, step in zip(bases, shift, strict=True)]
        weight = np.ones(grid.shape[:-1], dtype=x.dtype)
        for position, place in zip(positions, places, strict=True):
            weight = weight * _weight(kind, position - place)
        total += weight[:, None] * _pixels(call, x, places)
    return total
