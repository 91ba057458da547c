"""Operators that onnx's evaluator lacks: ONNX Runtime's, in the types of their inputs.

Source: ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from tests.operators.sample import Array
from tests.operators.sampled_experts import moe, q_moe

__all__ = ["OPERATORS", "group_norm", "group_normalization", "mean_variance", "operator"]

_MICROSOFT = "com.microsoft"
Arrays = Sequence[Array | None]


def operator(
    domain: str, op_type: str, compute: Callable[[list[Array | None], dict[str, Any]], list[Array]]
) -> type:
    """An evaluator of one operator from a function of its inputs and attributes."""

    def _run(self: OpRun, *arrays: Array | None, **attributes: Any) -> tuple[Array, ...]:
        return tuple(compute(list(arrays), attributes))

    return type(op_type, (OpRun,), {"op_domain": domain, "_run": _run})


def _normalised(x: Array, epsilon: float, axes: tuple[int, ...], *, mean: bool) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True) if mean else x
    return centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)


def _given(arrays: Arrays, index: int) -> Array | float:
    operand = arrays[index] if index < len(arrays) else None
    return 0.0 if operand is None else operand


def _required(arrays: Arrays, index: int) -> Array:
    operand = arrays[index]
    if operand is None:
        raise AssertionError(f"input {index} is missing")
    return operand


def _simplified(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x, scale = _required(arrays, 0), _required(arrays, 1)
    axes = tuple(range((attributes.get("axis") or -1) % x.ndim, x.ndim))
    return [_normalised(x, attributes["epsilon"], axes, mean=False) * scale]


def _skip(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """y, mean, inverse deviation, sum of SkipLayerNormalization(x, skip, gamma, beta, bias)."""
    total = _required(arrays, 0) + _required(arrays, 1) + _given(arrays, 4)
    y = _normalised(total, attributes["epsilon"], (-1,), mean=True) * _required(arrays, 2)
    mean = total.mean(axis=-1, keepdims=True)
    return [y + _given(arrays, 3), mean, mean, total]


def _skip_simplified(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    total = _required(arrays, 0) + _required(arrays, 1) + _given(arrays, 3)
    y = _normalised(total, attributes["epsilon"], (-1,), mean=False) * _required(arrays, 2)
    mean = total.mean(axis=-1, keepdims=True)
    return [y, mean, mean, total]


def _embedding(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """y, mask index, sum of EmbedLayerNormalization without a mask."""
    ids = _required(arrays, 0)
    total = _required(arrays, 2)[ids] + _required(arrays, 3)[: ids.shape[1]]
    if arrays[1] is not None:
        total = total + _required(arrays, 4)[arrays[1]]
    y = _normalised(total, attributes["epsilon"], (-1,), mean=True)
    y = y * _required(arrays, 5) + _given(arrays, 6)
    return [y, np.zeros(ids.shape[0], np.int32), total]


def group_norm(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """y of GroupNorm(x, gamma, beta), channels last."""
    x, groups = _required(arrays, 0), attributes["groups"]
    apart = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    y = _normalised(apart, attributes["epsilon"], (1, 3), mean=True).reshape(x.shape)
    return [y * _required(arrays, 1) + _required(arrays, 2)]


def _skip_group_norm(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    total = _required(arrays, 0) + _required(arrays, 3)
    return [*group_norm([total, *arrays[1:3]], attributes), total]


def _fused_matmul(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    a, b = _required(arrays, 0), _required(arrays, 1)
    a = np.swapaxes(a, -1, -2) if attributes.get("transA") else a
    b = np.swapaxes(b, -1, -2) if attributes.get("transB") else b
    return [np.asarray(attributes.get("alpha", 1.0) * (a @ b))]


def _batch_norm(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """BatchNormalization at inference; onnx's own is wrong below opset 14."""
    x, *parts = (_required(arrays, index) for index in range(5))
    aligned = [part.reshape(-1, *[1] * (x.ndim - 2)) for part in parts]
    scale, bias, mean, variance = aligned
    epsilon = attributes.get("epsilon") or 1e-5
    return [(x - mean) / np.sqrt(variance + epsilon) * scale + bias]


def mean_variance(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """MeanVarianceNormalization; onnx's body of it adds a float32 epsilon."""
    x = _required(arrays, 0)
    axes = tuple(attributes.get("axes") or (0, 2, 3))
    centred = x - x.mean(axis=axes, keepdims=True)
    return [centred / (np.sqrt((centred * centred).mean(axis=axes, keepdims=True)) + 1e-9)]


def group_normalization(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """GroupNormalization: scale and bias per channel, or per group below opset 21."""
    x, scale, bias = (_required(arrays, index) for index in range(3))
    apart = x.reshape(x.shape[0], attributes["num_groups"], -1)
    y = _normalised(apart, attributes["epsilon"], (2,), mean=True).reshape(x.shape)
    parts = (np.repeat(part, x.shape[1] // part.size) for part in (scale, bias))
    gamma, beta = (part.reshape(-1, *[1] * (x.ndim - 2)) for part in parts)
    return [y * gamma + beta]


def _summed(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Mean; onnx's own adds in place."""
    present = [array for array in arrays if array is not None]
    return [np.asarray(sum(present[1:], start=present[0]) / len(present))]


OPERATORS: tuple[type, ...] = (
    operator("", "SimplifiedLayerNormalization", _simplified),
    operator("", "BatchNormalization", _batch_norm),
    operator("", "GroupNormalization", group_normalization),
    operator("", "Mean", _summed),
    operator("", "MeanVarianceNormalization", mean_variance),
    operator(_MICROSOFT, "SkipLayerNormalization", _skip),
    operator(_MICROSOFT, "SkipSimplifiedLayerNormalization", _skip_simplified),
    operator(_MICROSOFT, "EmbedLayerNormalization", _embedding),
    operator(_MICROSOFT, "GroupNorm", group_norm),
    operator(_MICROSOFT, "SkipGroupNorm", _skip_group_norm),
    operator(_MICROSOFT, "FusedMatMul", _fused_matmul),
    operator(_MICROSOFT, "MoE", moe),
    operator(_MICROSOFT, "QMoE", q_moe),
)
