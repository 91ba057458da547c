"""Normalizations of the standard and of ONNX Runtime's domain.

y = (x - mean)/sqrt(var + epsilon) gamma + beta, two-pass. `stash_type`, which requests float32
inside, is not read: under NATIVE no kernel computes in less, and under FLOAT64 all compute in
float64.
"""

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array


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
