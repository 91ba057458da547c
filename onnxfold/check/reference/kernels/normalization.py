"""Normalizations, and the operators that ONNX Runtime fuses around norms.

y = (x - mean)/sqrt(var + epsilon) gamma + beta, two-pass. `stash_type`, which requests float32
inside, is not read: under NATIVE no kernel computes in less, and under FLOAT64 all compute in
float64.
"""

# ruff: noqa: PLR0913, PLR0917  (the inputs of an operator are the arguments of its kernel)

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel
from onnxfold.check.reference.kernels.convolution import conv
from onnxfold.check.reference.kernels.elementwise import (
    expit,
    gelu_erf,
    gelu_tanh,
    quick_gelu,
    softmax,
)
from onnxfold.check.reference.kernels.reduction import gemm


def layer_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean)/sqrt(var + epsilon) with its mean and 1/sqrt(var + epsilon), axes kept."""
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * inverse, mean, inverse


def rms_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """x/sqrt(mean(x^2) + epsilon) and 1/sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""
    inverse = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + np.asarray(epsilon, x.dtype))
    return x * inverse, inverse


def _affine(x: Array, gamma: Array | None, beta: Array | None) -> Array:
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


def _trailing(call: Call, rank: int) -> tuple[int, ...]:
    return tuple(range(call.integer("axis", -1) % rank, rank))


@kernel("LayerNormalization", result_like=(0, None, None))
def layer_normalization(
    call: Call, x: Array, gamma: Array | None = None, beta: Array | None = None
) -> tuple[Array, Array, Array]:
    normal, mean, inverse = layer_norm(x, _trailing(call, x.ndim), call.real("epsilon", 1e-5))
    return _affine(normal, gamma, beta), mean, inverse


@kernel("RMSNormalization", result_like=(1,))
def rms_normalization(call: Call, x: Array, gamma: Array) -> Array:
    normal, _ = rms_norm(x, _trailing(call, x.ndim), call.real("epsilon", 1e-5))
    return normal * gamma


@kernel("SimplifiedLayerNormalization", result_like=(1, None))
@kernel("SimplifiedLayerNormalization", domain="com.microsoft", result_like=(1, None))
def simplified_layer_normalization(call: Call, x: Array, gamma: Array) -> tuple[Array, Array]:
    """The name under which ONNX Runtime 1.x keeps RMSNorm, in the default domain too."""
    normal, inverse = rms_norm(x, _trailing(call, x.ndim), call.real("epsilon", 1e-5))
    return normal * gamma, inverse


def _channels(v: Array, rank: int) -> Array:
    return v.reshape(1, -1, *(1 for _ in range(rank - 2)))


@kernel("InstanceNormalization")
def instance_normalization(call: Call, x: Array, gamma: Array, beta: Array) -> Array:
    normal, _, _ = layer_norm(x, tuple(range(2, x.ndim)), call.real("epsilon", 1e-5))
    return _affine(normal, _channels(gamma, x.ndim), _channels(beta, x.ndim))


@kernel("GroupNormalization")
def group_normalization(call: Call, x: Array, gamma: Array, beta: Array) -> Array:
    groups = call.integer("num_groups", 1)
    n, channels = x.shape[:2]
    grouped = x.reshape(n, groups, channels // groups, *x.shape[2:])
    axes = tuple(range(2, grouped.ndim))
    normal, _, _ = layer_norm(grouped, axes, call.real("epsilon", 1e-5))
    if call.version < 21:
        # Opset 18 has one gamma and beta per group; 21 corrected it to one per channel.
        return _affine(
            normal, _channels(gamma, grouped.ndim), _channels(beta, grouped.ndim)
        ).reshape(x.shape)
    return _affine(normal.reshape(x.shape), _channels(gamma, x.ndim), _channels(beta, x.ndim))


@kernel("BatchNormalization")
def batch_normalization(
    call: Call, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array
) -> Array | tuple[Array, ...]:
    training = bool(call.integer("training_mode", 0))
    used_mean, used_variance = mean, variance
    if training:
        axes = (0, *range(2, x.ndim))
        used_mean, used_variance = np.mean(x, axis=axes), np.var(x, axis=axes)
    epsilon = np.asarray(call.real("epsilon", 1e-5), used_variance.dtype)
    scale = gamma / np.sqrt(used_variance + epsilon)
    y = (x - _channels(used_mean, x.ndim)) * _channels(scale, x.ndim) + _channels(beta, x.ndim)
    y = np.asarray(y, dtype=x.dtype)
    if not training:
        return y
    keep = np.asarray(call.real("momentum", 0.9), x.dtype)
    running = [a * keep + b * (1 - keep) for a, b in ((mean, used_mean), (variance, used_variance))]
    return (y, *running)


@kernel("LpNormalization")
def lp_normalization(call: Call, x: Array) -> Array:
    axis, p = call.integer("axis", -1), call.integer("p", 2)
    size = np.sum(np.abs(x) ** p, axis=axis, keepdims=True)
    size = np.sqrt(size) if p == 2 else size
    return np.where(size == 0, np.zeros_like(x), x / np.where(size == 0, np.ones_like(size), size))


@kernel("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Array) -> Array:
    """(x - mean)/(std + 1e-9): the epsilon is outside the root."""
    axes = call.integers("axes") or (0, 2, 3)
    centred = x - np.mean(x, axis=axes, keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True))
    return np.asarray(centred / (deviation + np.asarray(1e-9, x.dtype)))


@kernel("LRN")
def lrn(call: Call, x: Array) -> Array:
    size = call.integer("size", 1)
    alpha, beta = call.real("alpha", 1e-4), call.real("beta", 0.75)
    channels = x.shape[1]
    total = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
        total[:, c] = np.sum(x[:, low:high] ** 2, axis=1)
    base = np.asarray(call.real("bias", 1.0), x.dtype) + np.asarray(alpha / size, x.dtype) * total
    return np.asarray(x / base ** np.asarray(beta, x.dtype))


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
