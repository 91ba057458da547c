"""Mixtures of experts of com.microsoft: each row goes through the k experts of its router.

y = sum_e p_e (W2_e act(W1_e x + b1_e) + b2_e)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel
from onnxfold.check.reference.kernels.elementwise import gelu_tanh, quick_gelu, softmax
from onnxfold.check.reference.kernels.quantization import unpacked

_DOMAIN = "com.microsoft"
_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu_tanh,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "relu2": lambda x: np.square(np.maximum(x, np.zeros((), x.dtype))),
    "silu": lambda x: quick_gelu(x, 1.0),
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """W [E, N, K], or how to get one expert's, and a bias [E, N]."""

    weight: Callable[[int], Array]
    bias: Array | None

    def of(self, expert: int, x: Array) -> Array:
        y = x @ self.weight(expert).T
        return np.asarray(y if self.bias is None else y + self.bias[expert])


def _swiglu(call: Call, gate: Array, up: Array) -> Array:
    if call.has("swiglu_limit"):
        limit = np.asarray(call.real("swiglu_limit", 0.0), gate.dtype)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    shift = np.asarray(call.real("activation_beta", 0.0), up.dtype)
    return np.asarray(quick_gelu(gate, call.real("activation_alpha", 1.0)) * (up + shift))


def _activated(call: Call, y: Array, third: Callable[[], Array] | None) -> Array:
    """The activation of a layer's result, gated by a part of it or by another layer's."""
    name, fused = call.text("activation_type", "relu"), call.integer("swiglu_fusion", 0)
    if name not in ("swiglu", "geglu"):
        if name not in _ACTIVATIONS:
            raise call.unsupported(f"the activation {name!r}")
        y = _ACTIVATIONS[name](y)
        return y if third is None else np.asarray(y * third())
    if fused:
        gate, up = (y[:, ::2], y[:, 1::2]) if fused == 1 else np.split(y, 2, axis=1)
    elif third is None:
        raise call.unsupported("a gate without a layer")
    else:
        gate, up = y, third()
    return _swiglu(call, gate, up) if name == "swiglu" else np.asarray(gelu_tanh(gate) * up)


def _mixed(call: Call, x: Array, router: Array, layers: tuple[_Layer | None, ...]) -> Array:
    first, second, third = layers
    odd = ("use_sparse_mixer", "swiglu_limit_after_activation")
    if first is None or second is None or any(call.integer(name, 0) for name in odd):
        raise call.unsupported("another way to mix experts")
    rows = x.reshape(-1, x.shape[-1])
    weights = softmax(router, 1)
    chosen = np.argsort(-router, axis=1, kind="stable")[:, : call.integer("k", 1)]
    y = np.zeros(rows.shape, rows.dtype)
    taken = np.take_along_axis(weights, chosen, axis=1)
    # ONNX Runtime's QMoE for CPUs does so whatever the attribute says.
    if call.integer("normalize_routing_weights", 0) or call.node.op_type == "QMoE":
        taken = taken / taken.sum(axis=1, keepdims=True)
    for expert in np.unique(chosen):
        at, place = np.nonzero(chosen == expert)
        read = rows[at]
        beside = None if third is None else (lambda e=expert, r=read: third.of(e, r))
        inner = _activated(call, first.of(expert, read), beside)
        y[at] += taken[at, place][:, np.newaxis] * second.of(expert, inner)
    return y.reshape(x.shape)


@kernel("MoE", domain=_DOMAIN, result_like=(0,))
def moe(call: Call, x: Array, router: Array, *given: Array | None) -> Array:
    padded = [*given, *(None for _ in range(6 - len(given)))]

    def layer(at: int) -> _Layer | None:
        weight = padded[at]
        return None if weight is None else _Layer(lambda expert: weight[expert], padded[at + 1])

    return _mixed(call, x, router, (layer(0), layer(2), layer(4)))


@kernel("QMoE", domain=_DOMAIN, result_like=(0,))
def q_moe(call: Call, x: Array, router: Array, *given: Array | None) -> Array:
    """Mixture of experts with integer weights that are not packed for a device."""
    padded = [*given, *(None for _ in range(18 - len(given)))]
    raw = call.integer("weights_prepacked", -1) < 1 and call.text("quant_type", "int") == "int"
    if not raw or any(array is not None for array in padded[12:]):
        raise call.unsupported("another layout of codes")

    def layer(number: int) -> _Layer | None:
        codes, scale, bias = padded[3 * number : 3 * number + 3]
        every = call.integer("expert_weight_bits", 4)
        bits = call.integer(f"fc{number + 1}_expert_weight_bits", every)
        if codes is None or scale is None or bits not in (2, 4, 8):
            return None
        zero = padded[9 + number]
        return _Layer(lambda expert: _numbers(codes, scale, zero, expert, bits, x.dtype), bias)

    return _mixed(call, x, router, (layer(0), layer(1), layer(2)))


def _numbers(
    codes: Array,
    scale: Array,
    zero: Array | None,
    expert: int,
    bits: int,
    dtype: np.dtype[np.generic],
) -> Array:
    """One expert's weight; a scale and a zero point for each row or each block of a row."""
    numbers = unpacked(codes[expert], bits).astype(dtype)
    factor = scale[expert].astype(dtype).reshape(len(numbers), -1)
    offset = np.full(factor.shape, 2 ** (bits - 1), dtype)
    if zero is not None:
        known = unpacked(zero[expert], bits).astype(dtype)
        of_rows = known[: len(numbers), np.newaxis] if known.ndim == 1 else known
        offset = of_rows[:, : factor.shape[1]]
    block = numbers.shape[1] // factor.shape[1]
    return np.asarray(
        (numbers - np.repeat(offset, block, axis=1)) * np.repeat(factor, block, axis=1)
    )
