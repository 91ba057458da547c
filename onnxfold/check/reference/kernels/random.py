"""Operators that draw random numbers, made repeatable.

Runtimes draw different numbers. The stream depends on the name of the node's output and its seed
alone, so that two models with the same names draw the same numbers and can be compared.
"""

from hashlib import sha256

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import Array, Call, kernel


def _generator(call: Call) -> np.random.Generator:
    seed = call.attributes["seed"].value if call.has("seed") else 0
    text = f"{call.node.outputs[0].name}:{seed}"
    return np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:8], "little"))


def _draw(call: Call, shape: tuple[int, ...], default: np.dtype[np.generic]) -> Array:
    generator = _generator(call)
    number = call.integer("dtype", 0)
    dtype = ir.DataType(number).numpy() if number else default
    if "Normal" in call.node.op_type:
        x = call.real("mean", 0.0) + call.real("scale", 1.0) * generator.standard_normal(shape)
    else:
        x = generator.uniform(call.real("low", 0.0), call.real("high", 1.0), shape)
    return np.asarray(x).astype(dtype)


@kernel("RandomNormal", "RandomUniform", raw=True)
def random_of_shape(call: Call) -> Array:
    return _draw(call, call.integers("shape") or (), np.dtype(np.float32))


@kernel("RandomNormalLike", "RandomUniformLike", raw=True)
def random_like(call: Call, x: Array) -> Array:
    return _draw(call, x.shape, x.dtype)


@kernel("Bernoulli", raw=True)
def bernoulli(call: Call, x: Array) -> Array:
    number = call.integer("dtype", 0)
    dtype = ir.DataType(number).numpy() if number else x.dtype
    return (_generator(call).uniform(size=x.shape) < x.astype(np.float64)).astype(dtype)


@kernel("Multinomial", raw=True)
def multinomial(call: Call, logits: Array) -> Array:
    number = call.integer("dtype", int(ir.DataType.INT32))
    count = call.integer("sample_size", 1)
    weights = np.exp(logits.astype(np.float64))
    edges = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    draws = _generator(call).uniform(size=(logits.shape[0], count))
    chosen = [np.searchsorted(row, draw) for row, draw in zip(edges, draws, strict=True)]
    return np.asarray(chosen).astype(ir.DataType(number).numpy())


@kernel("Dropout", result_like=(0, None))
def dropout(
    call: Call, x: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """The identity in inference; with training_mode it drops a repeatable choice."""
    rate = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not bool(training.reshape(-1)[0]) or rate == 0:
        return x, np.ones(x.shape, dtype=np.bool_)
    mask = _generator(call).uniform(size=x.shape) >= rate
    return np.where(mask, x / np.asarray(1 - rate, x.dtype), np.zeros_like(x)), mask
