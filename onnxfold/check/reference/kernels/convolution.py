"""Conv, ConvTranspose and ConvInteger over any number of spatial axes."""

from math import prod

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.kernels.windows import Windows, padded, windows_of
from onnxfold.check.reference.precision import Array

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
