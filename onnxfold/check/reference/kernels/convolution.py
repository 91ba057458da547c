"""Convolutions and poolings over any number of spatial axes, and their windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, is_floating, kernel


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a kernel slides over spatial axes; each tuple has one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    sizes: tuple[int, ...]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Positions inside the kernel, in row-major order."""
        return product(*(range(k) for k in self.kernel))

    def view(self, x: Array, offset: tuple[int, ...]) -> Array:
        """Return x at kernel position `offset`, padded x: [..., *spatial] -> [..., *sizes]."""
        index = [
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, s, n in zip(offset, self.dilations, self.strides, self.sizes, strict=True)
        ]
        return x[tuple([slice(None)] * (x.ndim - len(index)) + index)]


def windows_of(call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Windows:
    """Read strides, dilations, pads, auto_pad and ceil_mode of a convolution or pooling."""
    rank = len(kernel)
    strides = call.integers("strides") or (1,) * rank
    dilations = call.integers("dilations") or (1,) * rank
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    auto = call.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = tuple(-(-n // s) for n, s in zip(spatial, strides, strict=True))
        total = tuple(
            max((o - 1) * s + e - n, 0)
            for o, s, e, n in zip(sizes, strides, extent, spatial, strict=True)
        )
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begins, ends = (less, more) if auto == "SAME_UPPER" else (more, less)
        return Windows(kernel, strides, dilations, begins, ends, sizes)
    pads = (0,) * (2 * rank) if auto == "VALID" else call.integers("pads") or (0,) * (2 * rank)
    begins, ends = pads[:rank], pads[rank:]
    sizes = tuple(
        _size(n + b + e, x, s, n + b, ceil=bool(call.integer("ceil_mode", 0)))
        for n, b, e, x, s in zip(spatial, begins, ends, extent, strides, strict=True)
    )
    # In ceil mode the last window may reach beyond the padding.
    ends = tuple(
        max(e, (o - 1) * s + x - n - b)
        for e, o, s, x, n, b in zip(ends, sizes, strides, extent, spatial, begins, strict=True)
    )
    return Windows(kernel, strides, dilations, begins, ends, sizes)


def _size(padded_size: int, extent: int, stride: int, start_limit: int, *, ceil: bool) -> int:
    if not ceil:
        return (padded_size - extent) // stride + 1
    size = -(-(padded_size - extent) // stride) + 1
    # A window that starts in the padding at the end does not count.
    return size - 1 if (size - 1) * stride >= start_limit else size


def padded(x: Array, windows: Windows, value: float | int) -> Array:
    """x: [N, C, *spatial] with the windows' padding filled with `value`."""
    if not any(windows.begins) and not any(windows.ends):
        return x
    widths = [(0, 0), (0, 0), *zip(windows.begins, windows.ends, strict=True)]
    return np.pad(x, widths, constant_values=np.asarray(value, dtype=x.dtype))


# From this many input channels per group on, one matrix product per kernel position is as fast as
# one product over gathered patches, and needs no copy of the patches.
_CHANNELS_FOR_SHIFTS = 16
_PATCHES_BYTES = 1 << 26


def convolve(x: Array, w: Array, windows: Windows, group: int) -> Array:
    """Cross-correlation of the padded x: [N, C, *spatial] with w: [M, C/group, *kernel]."""
    n, channels = x.shape[:2]
    out, per_group = w.shape[:2]
    if channels != per_group * group:
        raise ValueError(f"{channels} channels, but {group} groups of {per_group}")
    shape = (n, out, *windows.sizes)
    if per_group == 1 and out == group:
        return _depthwise(x, w, windows, shape)
    y = np.zeros((n, out, prod(windows.sizes)), dtype=np.result_type(x, w))
    for g in range(group):
        xs = x[:, g * per_group : (g + 1) * per_group]
        rows = slice(g * (out // group), (g + 1) * (out // group))
        if per_group >= _CHANNELS_FOR_SHIFTS:
            _by_shifts(xs, w[rows], windows, y[:, rows])
        else:
            _by_patches(xs, w[rows], windows, y[:, rows])
    return y.reshape(shape)


def _at(w: Array, offset: tuple[int, ...]) -> Array:
    """The matrix of w: [A, B, *kernel] at one kernel position."""
    index: tuple[slice | int, ...] = (slice(None), slice(None), *offset)
    return np.asarray(w[index])


def _depthwise(x: Array, w: Array, windows: Windows, shape: tuple[int, ...]) -> Array:
    y = np.zeros(shape, dtype=np.result_type(x, w))
    for offset in windows.offsets():
        factor = _at(w, offset)[:, 0].reshape(-1, *(1 for _ in windows.sizes))
        y += windows.view(x, offset) * factor
    return y


def _by_shifts(x: Array, w: Array, windows: Windows, y: Array) -> None:
    """y: [N, M, positions] += w[:, :, offset] x shifted by offset, over all offsets."""
    for offset in windows.offsets():
        shifted = windows.view(x, offset).reshape(x.shape[0], x.shape[1], -1)
        y += np.matmul(_at(w, offset), shifted)


def _by_patches(x: Array, w: Array, windows: Windows, y: Array) -> None:
    """Multiply gathered patches [N, C * kernel, positions], some MiB of them at a time."""
    flat = w.reshape(w.shape[0], -1)
    across = prod(windows.sizes[1:])
    row_bytes = max(1, flat.shape[1] * across * y.itemsize)
    rows = max(1, _PATCHES_BYTES // row_bytes)
    samples = max(1, rows // max(1, windows.sizes[0]))
    for start in range(0, x.shape[0], samples):
        some = slice(start, start + samples)
        shifts = [windows.view(x[some], offset) for offset in windows.offsets()]
        for row in range(0, windows.sizes[0], rows):
            parts = [shift[:, :, row : row + rows] for shift in shifts]
            patches = np.stack(parts, axis=2).reshape(shifts[0].shape[0], flat.shape[1], -1)
            y[some, :, row * across : row * across + patches.shape[2]] = flat @ patches


def _per_channel(b: Array, rank: int) -> Array:
    return b.reshape(1, -1, *(1 for _ in range(rank)))


@kernel("Conv")
def conv(call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
    windows = windows_of(call, x.shape[2:], w.shape[2:])
    y = convolve(padded(x, windows, 0), w, windows, call.integer("group", 1))
    return y if b is None else np.asarray(y + _per_channel(b, x.ndim - 2))


@kernel("ConvInteger")
def conv_integer(
    call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    """Products and sums in float64, exact for 8-bit inputs."""
    xs = x.astype(np.float64) - (0 if x_zero is None else float(x_zero.reshape(-1)[0]))
    ws = w.astype(np.float64)
    if w_zero is not None:
        ws = ws - w_zero.astype(np.float64).reshape(-1, *(1 for _ in range(w.ndim - 1)))
    windows = windows_of(call, x.shape[2:], w.shape[2:])
    y = convolve(padded(xs, windows, 0), ws, windows, call.integer("group", 1))
    return y.astype(np.int32)


def _transposed_pads(
    call: Call, spatial: tuple[int, ...], strides: tuple[int, ...], extent: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin padding and output size of a ConvTranspose, per spatial axis."""
    rank = len(spatial)
    extra = call.integers("output_padding") or (0,) * rank
    full = tuple(
        s * (n - 1) + p + e for s, n, p, e in zip(strides, spatial, extra, extent, strict=True)
    )
    auto = call.text("auto_pad", "NOTSET")
    wanted = call.integers("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(spatial, strides, strict=True))
    if wanted is None:
        pads = (0,) * (2 * rank) if auto == "VALID" else call.integers("pads") or (0,) * (2 * rank)
        size = tuple(f - b - e for f, b, e in zip(full, pads[:rank], pads[rank:], strict=True))
        return pads[:rank], size
    total = tuple(max(f - w, 0) for f, w in zip(full, wanted, strict=True))
    less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (less if auto == "SAME_UPPER" else more), wanted


@kernel("ConvTranspose")
def conv_transpose(call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
    """Scatters x: [N, C, *spatial] through w: [C, M/group, *kernel]; the transpose of Conv."""
    group = call.integer("group", 1)
    rank = x.ndim - 2
    shape = w.shape[2:]
    strides = call.integers("strides") or (1,) * rank
    dilations = call.integers("dilations") or (1,) * rank
    extent = tuple((k - 1) * d + 1 for k, d in zip(shape, dilations, strict=True))
    begins, size = _transposed_pads(call, x.shape[2:], strides, extent)
    reach = tuple(
        max(s * (n - 1) + e, b + z)
        for s, n, e, b, z in zip(strides, x.shape[2:], extent, begins, size, strict=True)
    )
    windows = Windows(shape, strides, dilations, begins, begins, x.shape[2:])
    y = np.zeros((x.shape[0], w.shape[1] * group, *reach), dtype=np.result_type(x, w))
    inner, outer = x.shape[1] // group, w.shape[1]
    for g in range(group):
        xs = x[:, g * inner : (g + 1) * inner].reshape(x.shape[0], inner, -1)
        ws = w[g * inner : (g + 1) * inner]
        target = y[:, g * outer : (g + 1) * outer]
        for offset in windows.offsets():
            part = np.matmul(_at(ws, offset).T, xs)
            windows.view(target, offset)[...] += part.reshape(x.shape[0], outer, *x.shape[2:])
    inside = [slice(None)] * 2 + [slice(o, o + z) for o, z in zip(begins, size, strict=True)]
    y = y[tuple(inside)]
    return y if b is None else np.asarray(y + _per_channel(b, rank))


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
