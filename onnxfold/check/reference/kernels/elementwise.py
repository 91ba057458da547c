"""Operators that work element by element, with numpy's broadcasting."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from onnxfold.check.reference.kernel import Call, ResourceLimitError, kernel
from onnxfold.check.reference.kernels.activation import erf
from onnxfold.check.reference.precision import Array, is_floating
from onnxfold.graph import node_label

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
        if call.version < 7 and call.has("axis"):
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
            "(--inputs), or leave out the check (--no-check)"
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
