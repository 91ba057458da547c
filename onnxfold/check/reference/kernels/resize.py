"""Resize and Upsample: separable interpolation, one weight matrix [out, in] per axis."""

from dataclasses import dataclass

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array


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
