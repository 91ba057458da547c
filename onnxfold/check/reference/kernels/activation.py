"""Activations and the softmax family."""

import numpy as np

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import Array


def erf(x: Array) -> Array:
    """Return the error function of every element, in the type of x."""
    from scipy import special  # late: it takes as long as a small proof

    return np.asarray(special.erf(x))


def expit(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of every element, in the type of x."""
    from scipy import special  # late: it takes as long as a small proof

    return np.asarray(special.expit(x))


def _of(x: Array, value: float) -> Array:
    """The number in the type of x, so that float32 stays float32."""
    return np.asarray(value, dtype=x.dtype)


def gelu_erf(x: Array) -> Array:
    """X Phi(x), with Phi the normal distribution function (Hendrycks and Gimpel 2016)."""
    return np.asarray(_of(x, 0.5) * x * (_of(x, 1) + erf(x * _of(x, np.sqrt(0.5)))))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = _of(x, np.sqrt(2 / np.pi)) * (x + _of(x, 0.044715) * x * x * x)
    return np.asarray(_of(x, 0.5) * x * (_of(x, 1) + np.tanh(inner)))


def quick_gelu(x: Array, alpha: float) -> Array:
    return np.asarray(x * expit(_of(x, alpha) * x))


def softmax(x: Array, axis: int) -> Array:
    """exp(x)/sum(exp(x)) along an axis, shifted by the maximum."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / np.sum(e, axis=axis, keepdims=True))


@kernel("Relu")
def relu(call: Call, x: Array) -> Array:
    return np.asarray(np.maximum(x, _of(x, 0)))


@kernel("LeakyRelu")
def leaky_relu(call: Call, x: Array) -> Array:
    return np.where(x < 0, _of(x, call.real("alpha", 0.01)) * x, x)


@kernel("PRelu")
def p_relu(call: Call, x: Array, slope: Array) -> Array:
    return np.where(x < 0, slope * x, x)


@kernel("ThresholdedRelu")
def thresholded_relu(call: Call, x: Array) -> Array:
    return np.where(x > _of(x, call.real("alpha", 1.0)), x, _of(x, 0))


@kernel("Elu")
def elu(call: Call, x: Array) -> Array:
    return np.where(x < 0, _of(x, call.real("alpha", 1.0)) * np.expm1(x), x)


@kernel("Selu")
def selu(call: Call, x: Array) -> Array:
    alpha = call.real("alpha", 1.67326319217681884765625)
    gamma = call.real("gamma", 1.05070102214813232421875)
    return np.asarray(_of(x, gamma) * np.where(x < 0, _of(x, alpha) * np.expm1(x), x))


@kernel("Celu")
def celu(call: Call, x: Array) -> Array:
    alpha = _of(x, call.real("alpha", 1.0))
    return np.asarray(np.maximum(x, _of(x, 0)) + np.minimum(_of(x, 0), alpha * np.expm1(x / alpha)))


@kernel("Sigmoid")
def sigmoid(call: Call, x: Array) -> Array:
    return np.asarray(expit(x))


@kernel("HardSigmoid")
def hard_sigmoid(call: Call, x: Array) -> Array:
    line = _of(x, call.real("alpha", 0.2)) * x + _of(x, call.real("beta", 0.5))
    return np.asarray(np.clip(line, _of(x, 0), _of(x, 1)))


@kernel("HardSwish")
def hard_swish(call: Call, x: Array) -> Array:
    return np.asarray(x * np.clip(x / _of(x, 6) + _of(x, 0.5), _of(x, 0), _of(x, 1)))


@kernel("Swish")
def swish(call: Call, x: Array) -> Array:
    return quick_gelu(x, call.real("alpha", 1.0))


@kernel("Softplus")
def softplus(call: Call, x: Array) -> Array:
    return np.asarray(np.logaddexp(x, _of(x, 0)))


@kernel("Softsign")
def softsign(call: Call, x: Array) -> Array:
    return np.asarray(x / (_of(x, 1) + np.abs(x)))


@kernel("Mish")
def mish(call: Call, x: Array) -> Array:
    return np.asarray(x * np.tanh(np.logaddexp(x, _of(x, 0))))


@kernel("Shrink")
def shrink(call: Call, x: Array) -> Array:
    bias, edge = call.real("bias", 0.0), call.real("lambd", 0.5)
    low, high = x + np.asarray(bias, x.dtype), x - np.asarray(bias, x.dtype)
    return np.where(x < -edge, low, np.where(x > edge, high, _of(x, 0)))


@kernel("Gelu")
def gelu(call: Call, x: Array) -> Array:
    return gelu_tanh(x) if call.text("approximate", "none") == "tanh" else gelu_erf(x)


def _rows(call: Call, x: Array) -> tuple[Array, int]:
    """Return the array and the axis to normalize; below opset 13 all from `axis` on are one.

    below opset 13 all axes from `axis` on are one.
    """
    if call.version >= 13:
        return x, call.integer("axis", -1)
    axis = call.integer("axis", 1) % max(x.ndim, 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1), 1


@kernel("Softmax")
def softmax_kernel(call: Call, x: Array) -> Array:
    rows, axis = _rows(call, x)
    return softmax(rows, axis).reshape(x.shape)


@kernel("LogSoftmax")
def log_softmax(call: Call, x: Array) -> Array:
    rows, axis = _rows(call, x)
    shifted = rows - np.max(rows, axis=axis, keepdims=True, initial=-np.inf)
    total = np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return np.asarray(shifted - total).reshape(x.shape)


@kernel("Hardmax")
def hardmax(call: Call, x: Array) -> Array:
    rows, axis = _rows(call, x)
    out = np.zeros_like(rows)
    index = np.expand_dims(np.argmax(rows, axis=axis), axis)
    np.put_along_axis(out, index, _of(x, 1), axis=axis)
    return out.reshape(x.shape)
