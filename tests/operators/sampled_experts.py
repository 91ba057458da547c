"""Samplers of mixtures of experts, row by row and expert by expert in numpy as their oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed

__all__ = ["EXPERTS", "moe", "q_experts", "q_moe"]

_MS = "com.microsoft"
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "identity": lambda x: x,
}


def _mixed(
    x: Array,
    router: Array,
    layers: list[tuple[Array, Array | None] | None],
    attributes: dict[str, Any],
) -> Array:
    """The k best experts of each row, weighted by the softmax of all of them."""
    rows = x.reshape(-1, x.shape[-1])
    y = np.zeros(rows.shape)

    def layer(number: int, expert: int, row: Array) -> Array:
        found = layers[number]
        assert found is not None
        weight, bias = found
        product = np.einsum("nk,k->n", weight[expert], row)
        return product if bias is None else product + bias[expert]

    for at, row in enumerate(rows):
        weights = np.exp(router[at]) / np.exp(router[at]).sum()
        best = sorted(range(len(weights)), key=lambda e: -weights[e])[: attributes["k"]]
        if attributes.get("normalize_routing_weights"):
            weights = weights / weights[best].sum()
        for expert in best:
            inner = layer(0, expert, row)
            if attributes["activation_type"] == "swiglu":
                gate, up = inner[::2], inner[1::2]
                inner = gate / (1 + np.exp(-gate)) * up
            else:
                inner = _ACTIVATIONS[attributes["activation_type"]](inner)
                inner = inner if layers[2] is None else inner * layer(2, expert, row)
            y[at] += weights[expert] * layer(1, expert, inner)
    return y.reshape(x.shape)


def moe(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x, router, *rest = [*arrays, *[None] * 6][:8]
    layers = [
        None if weight is None else (weight, bias)
        for weight, bias in zip(rest[::2], rest[1::2], strict=True)
    ]
    assert x is not None
    assert router is not None
    return [_mixed(x, router, layers, attributes)]


def _experts(draw: Draw) -> Sample:
    """MoE: two or three axes, with and without biases, gated inside or by a third weight."""
    count, hidden, inner = draw.number(1, 4), draw.pick((2, 4, 6)), draw.number(1, 4)
    rows: Dims = draw.dims(1, 2)
    tokens = int(np.prod(draw.static(rows)))
    name = draw.pick((*_ACTIVATIONS, "swiglu"))
    out = 2 * inner if name == "swiglu" else inner
    shapes = [(count, out, hidden), (count, hidden, inner)]
    if name != "swiglu" and draw.chance(0.3):
        shapes.append((count, inner, hidden))
    operands: list[Operand | None] = [
        draw.floats((*rows, hidden), constant=0.0),
        draw.floats((tokens, count), constant=0.0),
    ]
    for shape in shapes:
        operands.append(draw.floats(shape, constant=0.8))
        operands.append(draw.floats(shape[:2]) if draw.chance(0.6) else None)
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Any] = {"k": draw.number(1, count), "activation_type": name}
    if name == "swiglu":
        attributes["swiglu_fusion"] = 1
    if draw.chance(0.5):
        attributes["normalize_routing_weights"] = 1
    return draw.sample(
        "MoE", 17, operands, attributes, domain=_MS, function=moe,
        output_dims=(*rows, hidden),
    )  # fmt: skip


def q_experts(draw: Draw) -> Sample:
    """QMoE: 8 bits and a scale for each row."""
    count, hidden, inner = draw.number(1, 3), draw.pick((2, 4)), draw.number(1, 4)
    rows: Dims = draw.dims(1, 2)
    tokens = int(np.prod(draw.static(rows)))
    rng = np.random.default_rng(draw.number(0, 1 << 30))
    operands: list[Operand | None] = [
        draw.floats((*rows, hidden), constant=0.0),
        draw.floats((tokens, count), constant=0.0),
    ]
    for shape in ((count, inner, hidden), (count, hidden, inner)):
        operands.append(fixed(rng.integers(0, 256, shape, np.uint8)))
        operands.append(fixed(rng.uniform(0.1, 0.5, shape[:2])))
        operands.append(draw.floats(shape[:2]))
    attributes = {
        "k": draw.number(1, count), "activation_type": "silu", "expert_weight_bits": 8,
        "weights_prepacked": 0,
    }  # fmt: skip
    return draw.sample(
        "QMoE", 17, operands, attributes, domain=_MS, function=q_moe,
        output_dims=(*rows, hidden),
    )  # fmt: skip


def q_moe(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x, router, *rest = [*arrays, *[None] * 6][:8]
    layers: list[tuple[Array, Array | None] | None] = []
    for at in (0, 3):
        codes, scales, bias = rest[at : at + 3]
        assert codes is not None
        assert scales is not None
        layers.append(((codes.astype(np.float64) - 128) * scales[..., np.newaxis], bias))
    assert x is not None
    assert router is not None
    return [_mixed(x, router, [*layers, None], attributes)]


EXPERTS: dict[tuple[str, str], Any] = {(_MS, "MoE"): _experts}
