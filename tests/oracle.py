"""The onnxfold ops in float64 NumPy, on inputs already rounded to their element type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.operators.functions import SIGNATURES, Activation, Output, Statistics

__all__ = ["Array", "Float64", "normalised", "rounded_sum", "statistics"]

Array = npt.NDArray[Any]  # of one of three element types
Float64 = npt.NDArray[np.float64]


def rounded_sum(inputs: Mapping[str, Array]) -> Array:
    """(X [* row_scale] [+ linear_bias]) [+ residual] in float32 or wider, rounded once."""
    x = inputs["X"]
    terms = [inputs[key] for key in ("linear_bias", "residual") if key in inputs]
    with np.errstate(over="ignore"):
        wide = np.promote_types(np.float32, x.dtype)
        total = x.astype(wide)
        if "row_scale" in inputs:
            total = total * inputs["row_scale"].astype(wide)
        for term in terms:
            total = total + term.astype(wide)
        rounded: Array = total.astype(x.dtype)
        return rounded


def statistics(kind: Statistics, x: Float64, axes: int, epsilon: float | Float64) -> Float64:
    """What these ops give before scale and bias; x: [.., n], over its last `axes` axes."""
    over = tuple(range(-axes, 0))
    if kind is Statistics.RMS:
        rms: Float64 = np.sqrt(np.mean(x * x, axis=over, keepdims=True) + epsilon)
        return x / rms
    if kind in (Statistics.CRMS, Statistics.CRMS_FULL):
        full = np.concatenate([x, -x.sum(axis=-1, keepdims=True)], axis=-1)
        y = statistics(Statistics.RMS, full, 1, epsilon)
        return y if kind is Statistics.CRMS_FULL else y[..., :-1]
    # Twice, since one float64 mean of a large constant row is not exactly that constant.
    centred: Float64 = x - np.mean(x, axis=over, keepdims=True)
    centred = centred - np.mean(centred, axis=over, keepdims=True)
    if kind is Statistics.CENTER:
        return centred
    return statistics(Statistics.RMS, centred, axes, epsilon)


def activated(kind: Activation, v: Float64) -> Float64:
    """What these activations give, in float64."""
    if kind is Activation.NONE:
        return v
    if kind is Activation.RELU:
        return np.maximum(v, 0)
    if kind is Activation.GELU:
        return 0.5 * v * np.vectorize(math.erfc, otypes=[float])(-v / math.sqrt(2))
    steep = 1.0 if kind is Activation.SILU else 2 * math.sqrt(2 / math.pi)
    inner = v if kind is Activation.SILU else v + 0.044715 * v**3
    result: Float64 = v / (1 + np.exp(-steep * inner))
    return result


def normalised(
    name: str,
    inputs: Mapping[str, Array],
    *,
    axes: int,
    epsilon: float,
    total: Array | None = None,
) -> tuple[Float64, Float64]:
    """The float64 output Y of op `name`, not quantized, and its value before scale and bias.

    ``total`` is the Sum from a kernel, if it may differ from `rounded_sum`.
    """
    signature = SIGNATURES[name]
    with np.errstate(all="ignore"):
        if signature.statistics is Statistics.ROW:
            norm = inputs["X"].astype(np.float64) * inputs["row_scale"].astype(np.float64)
            bias = inputs["bias"].astype(np.float64) if "bias" in inputs else 0.0
            return activated(signature.activation, norm + bias), norm
        before = (rounded_sum(inputs) if total is None else total).astype(np.float64)
        added = np.asarray(inputs.get("row_epsilon", epsilon), np.float64)
        if signature.output is Output.SCALE:
            over = tuple(range(-axes, 0))
            scale: Float64 = 1 / np.sqrt(np.mean(before**2, axis=over, keepdims=True) + added)
            return scale, scale
        norm = statistics(signature.statistics, before, axes, added)
        y = norm
        if "scale" in inputs:
            y = y * inputs["scale"].astype(np.float64)
        if "bias" in inputs:
            y = y + inputs["bias"].astype(np.float64)
    return y, norm
