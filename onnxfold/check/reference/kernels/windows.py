"""The windows of convolutions and poolings: padding, output sizes, strided views."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from onnxfold.check.reference.kernel import Call
from onnxfold.check.reference.precision import Array


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
