"""Poolings over spatial axes."""

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.kernels.windows import Windows, padded, windows_of
from onnxfold.check.reference.precision import Array, is_floating


def _windows(call: Call, x: Array) -> Windows:
    shape = call.integers("kernel_shape")
    if shape is None:
        raise call.unsupported("pooling without kernel_shape")
    return windows_of(call, x.shape[2:], shape)


def _flat_positions(shape: tuple[int, ...], *, column_major: bool) -> Array:
    """For x: [N, C, *spatial] the number of each element in memory order, as MaxPool counts."""
    spatial = shape[2:]
    inner = np.arange(int(np.prod(spatial))).reshape(spatial, order="F" if column_major else "C")
    rows = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *(1 for _ in spatial))
    return np.asarray(rows * int(np.prod(spatial)) + inner)


@kernel("MaxPool", result_like=(0, None))
def max_pool(call: Call, x: Array) -> Array | tuple[Array, Array]:
    windows = _windows(call, x)
    lowest = -np.inf if is_floating(x.dtype) else np.iinfo(x.dtype).min
    values = padded(x, windows, lowest)
    best = np.full((*x.shape[:2], *windows.sizes), lowest, dtype=x.dtype)
    if not call.wants(1):
        for offset in windows.offsets():
            best = np.maximum(best, windows.view(values, offset))
        return best
    order = _flat_positions(x.shape, column_major=bool(call.integer("storage_order", 0)))
    numbers = padded(order, windows, -1)
    where = np.full(best.shape, -1, dtype=np.int64)
    for offset in windows.offsets():
        value, number = windows.view(values, offset), windows.view(numbers, offset)
        better = (number >= 0) & ((value > best) | (where < 0))
        best, where = np.where(better, value, best), np.where(better, number, where)
    return best, where


@kernel("AveragePool")
def average_pool(call: Call, x: Array) -> Array:
    windows = _windows(call, x)
    values = padded(x, windows, 0)
    # Padding that ceil mode adds at the end never counts, not even with count_include_pad.
    ones = np.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if call.integer("count_include_pad", 0):
        pads = call.integers("pads") or (0,) * (2 * len(windows.kernel))
        half = len(pads) // 2
        widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
        if call.text("auto_pad", "NOTSET").startswith("SAME"):
            widths = [(0, 0), (0, 0), *zip(windows.begins, windows.ends, strict=True)]
        ones = np.pad(ones, widths, constant_values=np.ones((), dtype=x.dtype))
    missing = [
        (0, 0) if i < 2 else _missing(ones.shape[i], values.shape[i], windows.begins[i - 2], call)
        for i in range(x.ndim)
    ]
    ones = np.pad(ones, missing)
    total = np.zeros((*x.shape[:2], *windows.sizes), dtype=x.dtype)
    count = np.zeros((1, 1, *windows.sizes), dtype=x.dtype)
    for offset in windows.offsets():
        total += windows.view(values, offset)
        count += windows.view(ones, offset)
    return np.asarray(total / count)


def _missing(have: int, want: int, begin: int, call: Call) -> tuple[int, int]:
    before = 0 if call.integer("count_include_pad", 0) else begin
    return before, want - have - before


@kernel("LpPool")
def lp_pool(call: Call, x: Array) -> Array:
    windows = _windows(call, x)
    p = call.integer("p", 2)
    values = padded(np.abs(x) ** p, windows, 0)
    total = np.zeros((*x.shape[:2], *windows.sizes), dtype=x.dtype)
    for offset in windows.offsets():
        total += windows.view(values, offset)
    return np.asarray(total ** np.asarray(1 / p, dtype=x.dtype))


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@kernel("GlobalAveragePool")
def global_average_pool(call: Call, x: Array) -> Array:
    return np.asarray(np.mean(x, axis=_spatial(x), keepdims=True))


@kernel("GlobalMaxPool")
def global_max_pool(call: Call, x: Array) -> Array:
    return np.asarray(np.max(x, axis=_spatial(x), keepdims=True))


@kernel("GlobalLpPool")
def global_lp_pool(call: Call, x: Array) -> Array:
    p = call.integer("p", 2)
    total = np.sum(np.abs(x) ** p, axis=_spatial(x), keepdims=True)
    return np.asarray(total ** np.asarray(1 / p, dtype=x.dtype))
