"""Fused operators of the domain com.microsoft that ONNX Runtime writes around norms."""

# ruff: noqa: PLR0913, PLR0917  (the inputs of an operator are the arguments of its kernel)

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.kernels.activation import (
    expit,
    gelu_erf,
    gelu_tanh,
    quick_gelu,
    softmax,
)
from onnxfold.check.reference.kernels.convolution import conv
from onnxfold.check.reference.kernels.linear import gemm
from onnxfold.check.reference.kernels.normalization import layer_norm, rms_norm
from onnxfold.check.reference.precision import Array

_DOMAIN = "com.microsoft"


def _sum(*terms: Array | None) -> Array:
    first, *others = (t for t in terms if t is not None)
    for term in others:
        first = np.asarray(first + term)
    return first


@kernel("SkipLayerNormalization", domain=_DOMAIN, result_like=(0, None, None, 0))
def skip_layer_normalization(
    call: Call,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """LN(x + skip + bias) with mean, 1/std and the sum as further outputs."""
    total = _sum(x, skip, bias)
    normal, mean, inverse = layer_norm(total, (-1,), call.real("epsilon", 1e-12))
    return _sum(normal * gamma, beta), mean, inverse, total


@kernel("SkipSimplifiedLayerNormalization", domain=_DOMAIN, result_like=(0, None, None, 0))
def skip_simplified_layer_normalization(
    call: Call, x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """RMSNorm(x + skip + bias); the second output is not defined for it, so it is zero."""
    total = _sum(x, skip, bias)
    normal, inverse = rms_norm(total, (-1,), call.real("epsilon", 1e-12))
    return normal * gamma, np.zeros_like(inverse), inverse, total


@kernel("EmbedLayerNormalization", domain=_DOMAIN, result_like=(2, None, 2))
def embed_layer_normalization(
    call: Call,
    ids: Array,
    segments: Array | None,
    words: Array,
    positions: Array,
    segment_table: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
) -> tuple[Array, Array, Array]:
    """LN(words[ids] + positions[position] + segment_table[segments])."""
    place = np.arange(ids.shape[1]) if position_ids is None else position_ids
    total = words[ids] + positions[place]
    if segments is not None and segment_table is not None:
        total = total + segment_table[segments]
    normal, _, _ = layer_norm(total, (-1,), call.real("epsilon", 1e-12))
    count = np.zeros(ids.shape[0]) if mask is None else np.sum(mask != 0, axis=1)
    return normal * gamma + beta, count.astype(np.int32), total


@kernel("BiasGelu", domain=_DOMAIN)
def bias_gelu(call: Call, x: Array, bias: Array) -> Array:
    return gelu_erf(_sum(x, bias))


@kernel("Gelu", domain=_DOMAIN)
def gelu(call: Call, x: Array) -> Array:
    return gelu_erf(x)


@kernel("FastGelu", domain=_DOMAIN)
def fast_gelu(call: Call, x: Array, bias: Array | None = None) -> Array:
    return gelu_tanh(_sum(x, bias))


@kernel("QuickGelu", domain=_DOMAIN)
def quick_gelu_kernel(call: Call, x: Array) -> Array:
    return quick_gelu(x, call.real("alpha", 1.702))


@kernel("BiasAdd", domain=_DOMAIN)
def bias_add(call: Call, x: Array, bias: Array, skip: Array) -> Array:
    return _sum(x, bias, skip)


@kernel("BiasSplitGelu", domain=_DOMAIN)
def bias_split_gelu(call: Call, x: Array, bias: Array) -> Array:
    left, right = np.split(_sum(x, bias), 2, axis=-1)
    return np.asarray(left * gelu_erf(right))


@kernel("BiasSoftmax", domain=_DOMAIN)
def bias_softmax(call: Call, x: Array, bias: Array) -> Array:
    axis = call.integer("axis", 1) % x.ndim
    inner = call.integer("is_inner_broadcast", 1)
    total = x + bias if inner else x.reshape(-1, *bias.shape) + bias
    rows = np.asarray(total).reshape(int(np.prod(x.shape[:axis])), -1)
    return softmax(rows, 1).reshape(x.shape)


def _swapped(x: Array, inner: int, batch: int) -> Array:
    """Return an operand of FusedMatMul; transBatch rotates the axis before the matrix into it."""
    if batch:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if inner and x.ndim > 1 else x


@kernel("FusedMatMul", "TransposeMatMul", domain=_DOMAIN)
def fused_matmul(call: Call, a: Array, b: Array) -> Array:
    left = _swapped(a, call.integer("transA", 0), call.integer("transBatchA", 0))
    right = _swapped(b, call.integer("transB", 0), call.integer("transBatchB", 0))
    return np.asarray(np.matmul(left, right) * np.asarray(call.real("alpha", 1.0), a.dtype))


def _activated(call: Call, y: Array, parameters: tuple[float, ...]) -> Array:
    """The activation that a fused node names, applied to its result."""
    name = call.text("activation", "")
    if not name:
        return y
    first, second = (*parameters, 0.0, 0.0)[:2]
    match name:
        case "Relu":
            return np.asarray(np.maximum(y, np.zeros((), y.dtype)))
        case "Tanh":
            return np.asarray(np.tanh(y))
        case "Sigmoid":
            return np.asarray(expit(y))
        case "LeakyRelu":
            return np.where(y < 0, y * np.asarray(first, y.dtype), y)
        case "Clip":
            return np.asarray(np.clip(y, np.asarray(first, y.dtype), np.asarray(second, y.dtype)))
    raise call.unsupported(f"the activation {name!r}")


@kernel("FusedGemm", domain=_DOMAIN)
def fused_gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    parameters = (call.real("activation_alpha", 0.0), call.real("activation_beta", 0.0))
    return _activated(call, gemm(call, a, b, c), parameters)


@kernel("FusedConv", domain=_DOMAIN)
def fused_conv(
    call: Call, x: Array, w: Array, b: Array | None = None, z: Array | None = None
) -> Array:
    """Activation of conv(x, w) + b + z."""
    given = call.attributes.get("activation_params")
    parameters = () if given is None else tuple(given.as_floats())
    return _activated(call, _sum(conv(call, x, w, b), z), parameters)


@kernel("GroupNorm", "SkipGroupNorm", domain=_DOMAIN)
def group_norm(
    call: Call,
    x: Array,
    gamma: Array,
    beta: Array,
    skip: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, Array]:
    """GroupNorm on channels last (or first), with an optional residual and an optional Swish."""
    total = _sum(x, skip if skip is None or skip.ndim > 2 else skip[:, None, None, :], bias)
    last = total if call.integer("channels_last", 1) else np.moveaxis(total, 1, -1)
    groups = call.integer("groups", 1)
    grouped = last.reshape(last.shape[0], -1, groups, last.shape[-1] // groups)
    normal, _, _ = layer_norm(grouped, (1, 3), call.real("epsilon", 1e-5))
    y = normal.reshape(last.shape) * gamma + beta
    y = quick_gelu(y, 1.0) if call.integer("activation", 0) else np.asarray(y)
    return (y if call.integer("channels_last", 1) else np.moveaxis(y, -1, 1)), total
