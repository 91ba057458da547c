"""Values of a tensor at real positions: Resize, GridSample and DeformConv."""

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel
from onnxfold.check.reference.kernels.convolution import Windows, windows_of


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized axis: sizes, the scale out/in, and the region of interest in [0, 1]."""

    size: int
    out: int
    scale: float
    begin: float
    end: float


def _source(call: Call, axis: _Axis) -> Array:
    """Coordinates in the input for each output position, by coordinate_transformation_mode."""
    default = "half_pixel" if call.version >= 11 else "asymmetric"
    mode = call.text("coordinate_transformation_mode", default)
    x: Array = np.arange(axis.out, dtype=np.float64)
    size = axis.scale * axis.size
    match mode:
        case "half_pixel":
            return (x + 0.5) / axis.scale - 0.5
        case "half_pixel_symmetric":
            adjustment = axis.out / size
            offset = axis.size / 2 * (1 - adjustment)
            return offset + (x + 0.5) / axis.scale - 0.5
        case "pytorch_half_pixel":
            return np.asarray((x + 0.5) / axis.scale - 0.5) if size > 1 else np.zeros_like(x)
        case "align_corners":
            return x * (axis.size - 1) / (size - 1) if size > 1 else np.zeros_like(x)
        case "asymmetric":
            return x / axis.scale
        case "tf_crop_and_resize":
            if axis.out == 1:
                return np.asarray([0.5 * (axis.begin + axis.end) * (axis.size - 1)])
            step = (axis.end - axis.begin) * (axis.size - 1) / (size - 1)
            return axis.begin * (axis.size - 1) + x * step
    raise call.unsupported(f"coordinate_transformation_mode {mode!r}")


def _nearest(call: Call, source: Array) -> Array:
    default = "round_prefer_floor" if call.version >= 11 else "floor"
    match call.text("nearest_mode", default):
        case "round_prefer_floor":
            return np.ceil(source - 0.5)
        case "round_prefer_ceil":
            return np.floor(source + 0.5)
        case "ceil":
            return np.ceil(source)
        case _:
            return np.floor(source)


def _hat(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0.0))


def cubic_weight(distance: Array, a: float) -> Array:
    """Keys' kernel (1981) with parameter a."""
    d = np.abs(distance)
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0.0))


def _weights(call: Call, axis: _Axis) -> Array:
    """The interpolation matrix [out, in]; positions outside are clamped to the border."""
    source = _source(call, axis)
    mode = call.text("mode", "nearest")
    matrix = np.zeros((axis.out, axis.size))
    rows = np.arange(axis.out)
    if mode == "nearest":
        where = np.clip(_nearest(call, source).astype(np.int64), 0, axis.size - 1)
        matrix[rows, where] = 1
        return matrix
    stretch = 1.0
    if call.integer("antialias", 0) and axis.scale < 1:
        stretch = 1 / axis.scale
    radius = int(np.ceil((2 if mode == "cubic" else 1) * stretch))
    base = np.floor(source).astype(np.int64)
    excluded = bool(call.integer("exclude_outside", 0))
    for shift in range(1 - radius, radius + 1):
        place = base + shift
        distance = (source - place) / stretch
        if mode == "cubic":
            weight = cubic_weight(distance, call.real("cubic_coeff_a", -0.75))
        else:
            weight = _hat(distance)
        if excluded:
            weight = np.where((place < 0) | (place >= axis.size), 0.0, weight)
        np.add.at(matrix, (rows, np.clip(place, 0, axis.size - 1)), weight)
    if excluded or stretch > 1:
        matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix


def _resize(call: Call, x: Array, axes: dict[int, _Axis]) -> Array:
    call.check_size([x.size, *(axis.out / max(axis.size, 1) for axis in axes.values())])
    outside = np.zeros((1,) * x.ndim, dtype=bool)
    crop = call.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    y = x.astype(np.float64) if x.dtype.kind in "iu" else x
    for number, axis in axes.items():
        if axis.size == axis.out and axis.scale == 1 and not crop:
            continue
        matrix = _weights(call, axis).astype(y.dtype)
        y = np.moveaxis(np.tensordot(matrix, y, axes=(1, number)), 0, number)
        if crop:
            source = _source(call, axis)
            shape = [-1 if i == number else 1 for i in range(x.ndim)]
            outside = outside | ((source < 0) | (source > axis.size - 1)).reshape(shape)
    if crop:
        y = np.where(outside, np.asarray(call.real("extrapolation_value", 0.0), y.dtype), y)
    return np.rint(y).astype(x.dtype) if x.dtype.kind in "iu" else y


def _wanted(
    call: Call, x: Array, axes: tuple[int, ...], scales: Array | None, sizes: Array | None
) -> tuple[list[float], list[int]]:
    """Scale and output size for each of `axes`."""
    if scales is not None and scales.size:
        ratios = [float(s) for s in scales]
        return ratios, [int(np.floor(x.shape[a] * s)) for a, s in zip(axes, ratios, strict=True)]
    if sizes is None:
        raise call.unsupported("Resize without scales and sizes")
    target = [int(n) for n in sizes]
    ratios = [n / x.shape[a] for a, n in zip(axes, target, strict=True)]
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [scale] * len(axes)
        target = [int(np.floor(scale * x.shape[a] + 0.5)) for a in axes]
    return ratios, target


@kernel("Resize")
def resize(
    call: Call,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Array:
    if call.version < 11:
        roi, scales = None, roi
    axes = tuple(a % x.ndim for a in call.integers("axes") or range(x.ndim))
    ratios, outs = _wanted(call, x, axes, scales, sizes)
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if roi is not None and roi.size:
        region = [float(r) for r in roi]
    plan = {
        axis: _Axis(x.shape[axis], out, ratio, region[i], region[i + len(axes)])
        for i, (axis, out, ratio) in enumerate(zip(axes, outs, ratios, strict=True))
    }
    return _resize(call, x, plan)


@kernel("Upsample")
def upsample(call: Call, x: Array, scales: Array | None = None) -> Array:
    """Upsample of opset 9, the predecessor of Resize, which maps by x/scale and rounds down."""
    ratios = scales if scales is not None else np.asarray(call.attributes["scales"].as_floats())
    plan = {
        axis: _Axis(x.shape[axis], int(np.floor(x.shape[axis] * r)), float(r), 0.0, 1.0)
        for axis, r in enumerate(ratios)
    }
    return _resize(call, x, plan)


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
