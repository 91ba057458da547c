"""Samplers of elementwise operators, of those that do not see a shift, and of averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed

__all__ = ["ELEMENTWISE"]

Key = tuple[str, str]


def _done(
    draw: Draw, op_type: str, opset: int, operands: Sequence[Operand | None], **rest: Any
) -> Sample:
    return draw.sample(op_type, opset, operands, rest.pop("attributes", {}), **rest)


def _pair(draw: Draw) -> tuple[Dims, Dims]:
    """Two shapes that broadcast, in either order."""
    full = draw.dims(1, 4)
    pair = (full, draw.narrower(full))
    return pair if draw.chance(0.5) else pair[::-1]


def _binary(op_type: str) -> Any:
    def sample(draw: Draw) -> Sample:
        a, b = _pair(draw)
        operands: list[Operand | None] = [draw.floats(a), draw.floats(b)]
        if op_type == "Div":
            operands[1] = _away_from_zero(draw, b)
        return _done(draw, op_type, draw.pick((9, 13, 14, 21)), operands)

    return sample


def _away_from_zero(draw: Draw, dims: Dims) -> Operand:
    """A divisor that stays away from 0 when it is shifted or centered a little."""
    operand = draw.floats(dims)
    return Operand(np.abs(operand.array) + 50.0, operand.dims, operand.constant, moves=True)


def _bias_add(draw: Draw) -> Sample:
    """[N, S, C] + [C] + [N, S, C]."""
    full = draw.dims(3, 3)
    operands = [draw.floats(full), draw.floats(full[2:]), draw.floats(full)]
    return _done(
        draw,
        "BiasAdd",
        17,
        operands,
        domain="com.microsoft",
        function=lambda arrays, _: [np.asarray(arrays[0] + arrays[1] + arrays[2])],
        output_dims=draw.static(full),
    )


def _many(op_type: str) -> Any:
    def sample(draw: Draw) -> Sample:
        full = draw.dims(1, 3)
        shapes = [draw.narrower(full) for _ in range(draw.number(0, 2))]
        operands = draw.shuffled([draw.floats(dims) for dims in (full, *shapes)])
        # onnx's evaluator of Mean adds in place, so it cannot broadcast its first operand.
        function = _mean if op_type == "Mean" else None
        return _done(draw, op_type, draw.pick((9, 13)), operands, function=function)

    return sample


def _mean(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    present = [array for array in arrays if array is not None]
    return [np.asarray(sum(present[1:], start=present[0]) / len(present))]


def _unary(op_type: str, *opsets: int) -> Any:
    def sample(draw: Draw) -> Sample:
        return _done(draw, op_type, draw.pick(opsets), [draw.floats(draw.dims(0, 4))])

    return sample


_CASTS = {
    TensorProto.DOUBLE: 1e-10,
    TensorProto.FLOAT: 1e-6,
    TensorProto.FLOAT16: 1e-2,
    TensorProto.INT64: 1e-10,
    TensorProto.INT8: 1e-10,
    TensorProto.BOOL: 1e-10,
}


def _cast(draw: Draw) -> Sample:
    operand = draw.floats(draw.dims(1, 3))
    if draw.chance(0.2):
        whole = np.round(10 * operand.array).astype(draw.pick((np.int64, np.int32)))
        operand = Operand(whole, operand.dims, operand.constant, moves=True)
    to = draw.pick(list(_CASTS))
    opset = draw.pick((9, 13, 19, 21))
    return _done(draw, "Cast", opset, [operand], attributes={"to": to}, tolerance=_CASTS[to])


def _cast_like(draw: Draw) -> Sample:
    dtype, tolerance = draw.pick(
        ((np.float64, 1e-10), (np.float32, 1e-6), (np.float16, 1e-2), (np.int64, 1e-10))
    )
    like = draw.floats(draw.dims(1, 2))
    like = Operand(like.array.astype(dtype), like.dims, like.constant, moves=True)
    operands: list[Operand | None] = [draw.floats(draw.dims(1, 3)), like]
    return _done(draw, "CastLike", draw.pick((15, 19, 21)), operands, tolerance=tolerance)


def _dropout(draw: Draw) -> Sample:
    opset = draw.pick((9, 10, 12, 13, 22))
    x = draw.floats(draw.dims(1, 3))
    outputs = draw.number(1, 2)
    if opset < 12:
        return _done(
            draw, "Dropout", opset, [x], attributes={"ratio": 0.3}, outputs=outputs, function=_kept
        )
    ratio = fixed(np.array(0.4))
    training = draw.pick((None, False, True))
    operands = [x, ratio] if training is None else [x, ratio, fixed(np.array(training))]
    function = _dropped if training else _kept
    return _done(draw, "Dropout", opset, operands, outputs=outputs, function=function)


def _kept(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    return [_first(arrays), np.ones(_first(arrays).shape, dtype=bool)]


def _dropped(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x = _first(arrays)
    mask = (np.arange(x.size) % 3 != 0).reshape(x.shape)
    return [x * mask / 0.6, mask]


def _first(arrays: list[Array | None]) -> Array:
    if arrays[0] is None:
        raise AssertionError("the first operand is required")
    return arrays[0]


def _batch_norm(draw: Draw) -> Sample:
    """s x + t per channel; at times of numbers of the batch, in training."""
    dims = draw.dims(2, 4)
    channels = draw.static(dims)[1]
    vectors = [draw.floats((channels,)) for _ in range(3)]
    operands = [draw.floats(dims), *vectors, fixed(draw.normal((channels,)) ** 2)]
    trains = draw.chance(0.1)
    return _done(
        draw,
        "BatchNormalization",
        draw.pick((14, 15)) if trains else draw.pick((9, 14, 15)),
        operands,
        attributes={"training_mode": 1} if trains else {},
        outputs=3 if trains else 1,
        function=_normalized,
    )


def _normalized(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x, *parts = (array for array in arrays if array is not None)
    scale, bias, mean, variance = (part.reshape(-1, *[1] * (x.ndim - 2)) for part in parts)
    running = [part.copy() for part in parts[2:]]
    if attributes.get("training_mode"):
        axes = (0, *range(2, x.ndim))
        mean, variance = (f(x, axis=axes, keepdims=True) for f in (np.mean, np.var))
    y = (x - mean) / np.sqrt(variance + attributes.get("epsilon", 1e-5)) * scale + bias
    return [np.asarray(y), *(running if attributes.get("training_mode") else ())]


def _where(draw: Draw) -> Sample:
    full = draw.dims(1, 3)
    narrow = [draw.narrower(full) for _ in range(2)]
    mask_dims, a, b = draw.shuffled([full, *narrow])
    mask = draw.normal(draw.static(mask_dims)) > 0.5
    constant = draw.chance(0.5)
    dims = draw.static(mask_dims) if constant else mask_dims
    operands = [Operand(mask, dims, constant, moves=False), draw.floats(a), draw.floats(b)]
    return _done(draw, "Where", draw.pick((9, 16)), operands)


def _softmax(logarithm: bool) -> Any:
    def function(opset: int) -> Any:
        def evaluate(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
            x = _first(arrays)
            axis = attributes.get("axis", 1 if opset < 13 else -1) % x.ndim
            axes = tuple(range(axis, x.ndim)) if opset < 13 else (axis,)
            e = np.exp(x - x.max(axis=axes, keepdims=True))
            y = e / e.sum(axis=axes, keepdims=True)
            return [np.log(y) if logarithm else y]

        return evaluate

    def sample(draw: Draw) -> Sample:
        opset = draw.pick((9, 11, 13, 21))
        dims = draw.dims(1 if opset >= 13 else 2, 3)
        attributes = {"axis": draw.axis(len(dims))} if draw.chance(0.8) else {}
        if opset < 11 and attributes:
            attributes["axis"] %= len(dims)
        name = "LogSoftmax" if logarithm else "Softmax"
        operands: list[Operand | None] = [draw.floats(dims)]
        return _done(draw, name, opset, operands, attributes=attributes, function=function(opset))

    return sample


def _blind(op_type: str) -> Any:
    def sample(draw: Draw) -> Sample:
        opset = draw.pick((9, 13, 15, 21))
        attributes = {}
        if op_type == "Shape" and opset >= 15 and draw.chance(0.5):
            attributes = {"start": draw.number(0, 1)}
        return _done(draw, op_type, opset, [draw.floats(draw.dims(1, 3))], attributes=attributes)

    return sample


def _reduce(op_type: str, axes_as_input: int) -> Any:
    def sample(draw: Draw) -> Sample:
        opset = draw.pick((9, 11, 13, 18, 21))
        dims = draw.dims(1, 4)
        chosen = draw.shuffled(range(len(dims)))[: draw.number(0, len(dims))]
        axes = [axis - len(dims) if opset >= 11 and draw.chance(0.4) else axis for axis in chosen]
        attributes: dict[str, Any] = {}
        if draw.chance(0.7):
            attributes["keepdims"] = draw.number(0, 1)
        operands: list[Operand | None] = [draw.floats(dims)]
        if opset < axes_as_input:
            attributes |= {"axes": axes} if axes else {}
        else:
            if axes or draw.chance(0.5):
                operands.append(fixed(np.array(axes, dtype=np.int64)))
            if draw.chance(0.5):
                attributes["noop_with_empty_axes"] = draw.number(0, 1)
        return _done(draw, op_type, opset, operands, attributes=attributes)

    return sample


def _average_pool(draw: Draw) -> Sample:
    spatial = draw.number(1, 2)
    dims = (*(draw.dim() for _ in range(2)), *(draw.dim(0.0, (3, 4, 5)) for _ in range(spatial)))
    attributes: dict[str, Any] = {"kernel_shape": [draw.number(1, 2) for _ in range(spatial)]}
    if draw.chance(0.5):
        attributes["strides"] = [draw.number(1, 2) for _ in range(spatial)]
    if draw.chance(0.4) and min(attributes["kernel_shape"]) > 1:
        attributes["pads"] = [draw.number(0, 1) for _ in range(2 * spatial)]
        attributes["count_include_pad"] = draw.number(0, 1)
    return _done(
        draw, "AveragePool", draw.pick((9, 10, 11, 19)), [draw.floats(dims)], attributes=attributes
    )


def _global_average_pool(draw: Draw) -> Sample:
    return _done(draw, "GlobalAveragePool", draw.pick((9, 22)), [draw.floats(draw.dims(3, 4))])


def _center(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    axis = -draw.number(1, len(dims))

    def function(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
        x = _first(arrays)
        axes = tuple(range(attributes["axis"], 0))
        return [x - x.mean(axis=axes, keepdims=True)]

    return _done(
        draw,
        "Center",
        17,
        [draw.floats(dims)],
        attributes={"axis": axis},
        domain="onnxfold",
        function=function,
        output_dims=dims,
    )


ELEMENTWISE: dict[Key, Any] = {
    **{("", op_type): _binary(op_type) for op_type in ("Add", "Sub", "Mul", "Div")},
    **{("", op_type): _many(op_type) for op_type in ("Sum", "Mean")},
    ("com.microsoft", "BiasAdd"): _bias_add,
    ("", "Neg"): _unary("Neg", 9, 13),
    ("", "Identity"): _unary("Identity", 9, 13, 14, 16, 19, 21),
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast_like,
    ("", "Dropout"): _dropout,
    ("", "BatchNormalization"): _batch_norm,
    ("", "Where"): _where,
    ("", "Softmax"): _softmax(logarithm=False),
    ("", "LogSoftmax"): _softmax(logarithm=True),
    ("", "Shape"): _blind("Shape"),
    ("", "Size"): _blind("Size"),
    ("", "ReduceMean"): _reduce("ReduceMean", 18),
    ("", "ReduceSum"): _reduce("ReduceSum", 13),
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global_average_pool,
    ("onnxfold", "Center"): _center,
}
