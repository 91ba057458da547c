"""Operators that work element by element, with numpy's broadcasting, and the softmax family."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, ResourceLimitError, is_floating, kernel
from onnxfold.graph import node_label


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


_UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "BitwiseNot": np.invert,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "IsNaN": np.isnan,
    "Log": np.log,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Reciprocal": np.reciprocal,
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "And": np.logical_and,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}


def _register_unary(name: str, function: Callable[[Array], Array]) -> None:
    @kernel(name)
    def unary(call: Call, x: Array) -> Array:
        return np.asarray(function(x))


def _register_binary(name: str, function: Callable[[Array, Array], Array]) -> None:
    @kernel(name, broadcasts=True)
    def binary(call: Call, a: Array, b: Array) -> Array:
        if call.has("axis"):
            raise call.unsupported("broadcasting by the axis attribute of opsets below 7")
        return np.asarray(function(a, b))


for _name, _unary in _UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in _BINARY.items():
    _register_binary(_name, _binary)


@kernel("Div", broadcasts=True)
def div(call: Call, a: Array, b: Array) -> Array:
    if is_floating(a.dtype) or a.dtype.kind == "c":
        return np.asarray(a / b)
    _check_divisible(call, a, b)
    if a.dtype.kind == "u":
        return np.asarray(a // b)
    # Integer division truncates towards zero, as in C; numpy's // rounds towards minus infinity.
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient), dtype=a.dtype)


def _check_divisible(call: Call, a: Array, b: Array) -> None:
    """Refuse an integer division without a result, which would end a process that runs it."""
    if a.dtype.kind not in "iu":
        return
    what = None
    if not np.all(b):
        what = "an integer by 0"
    elif a.dtype.kind == "i" and np.any((a == np.iinfo(a.dtype).min) & (b == -1)):
        what = "the least integer by -1"
    if what is not None:
        raise ResourceLimitError(
            f"node {node_label(call.node)!r} divides {what}; give inputs for which it does not "
            "(--inputs), or leave out the check (--check 0)"
        )


@kernel("Mod", broadcasts=True)
def mod(call: Call, a: Array, b: Array) -> Array:
    _check_divisible(call, a, b)
    return np.asarray(np.fmod(a, b) if call.integer("fmod", 0) else np.mod(a, b))


@kernel("Pow", broadcasts=True)
def power(call: Call, base: Array, exponent: Array) -> Array:
    if is_floating(base.dtype):
        if base.dtype == np.float64 and exponent.ndim == 0 and exponent == 3:  # GELU's
            return np.asarray(base * base * base)  # a tenth of the time of a power
        return np.asarray(np.power(base, exponent), dtype=base.dtype)
    if is_floating(exponent.dtype):
        return np.power(base.astype(np.float64), exponent).astype(base.dtype)
    return np.asarray(np.power(base, exponent.astype(base.dtype)))


@kernel("BitShift", broadcasts=True)
def bit_shift(call: Call, a: Array, b: Array) -> Array:
    shift = np.left_shift if call.text("direction", "") == "LEFT" else np.right_shift
    return np.asarray(shift(a, b))


@kernel("IsInf")
def is_inf(call: Call, x: Array) -> Array:
    positive = np.isposinf(x) & bool(call.integer("detect_positive", 1))
    negative = np.isneginf(x) & bool(call.integer("detect_negative", 1))
    return np.asarray(positive | negative)


@kernel("Max", broadcasts=True)
def maximum(call: Call, *inputs: Array) -> Array:
    return np.asarray(reduce(np.maximum, inputs))


@kernel("Min", broadcasts=True)
def minimum(call: Call, *inputs: Array) -> Array:
    return np.asarray(reduce(np.minimum, inputs))


@kernel("Sum", broadcasts=True)
def add_all(call: Call, *inputs: Array) -> Array:
    return np.asarray(reduce(np.add, inputs))


@kernel("Mean", broadcasts=True)
def mean(call: Call, *inputs: Array) -> Array:
    return np.asarray(reduce(np.add, inputs) / len(inputs), dtype=inputs[0].dtype)


@kernel("Where", broadcasts=True)
def where(call: Call, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


@kernel("Clip")
def clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if call.version < 11:
        low = np.asarray(call.real("min", -np.inf), x.dtype) if call.has("min") else None
        high = np.asarray(call.real("max", np.inf), x.dtype) if call.has("max") else None
    # min(max(x, low), high): if low exceeds high, the result is high, as the standard specifies.
    x = x if low is None else np.maximum(x, low)
    return np.asarray(x if high is None else np.minimum(x, high))
