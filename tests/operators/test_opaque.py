"""Every line of the opaque table is opaque: P does not commute with it, and it sees a shift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfold.operators.opaque import NOT_LINEAR
from onnxfold.operators.table import ROWS
from onnxfold.refusal import RefusalCode
from tests.operators.sample import Array

Function = Callable[[Array], Array]

_rng = np.random.default_rng(5)
_X, _W = _rng.standard_normal((3, 8)), _rng.standard_normal((8, 8)) + 0.5
_STEP = 0.3  # a quantization of one step for all
_SEEN = 1e-2  # results are of size 1; rounding to float64 is 1e-15


def _rounded(x: Array) -> Array:
    return np.round(x / _STEP) * _STEP


def _product_with_rounded(w: Array) -> Array:
    return np.asarray(_X @ _rounded(w))


def _softmax(x: Array) -> Array:
    weights = np.exp(x)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _self_attention(w: Array) -> Array:
    """Of the packed weight: query, key and value are a slice of it each, here of one head."""
    q, k, v = (_X @ w, _X @ w[:, ::-1], _X @ np.roll(w, 1, axis=1))
    return np.asarray(_softmax(q @ k.T) @ v)


def _rotated(x: Array) -> Array:
    """Pairs (i, i + 4) turned by the angle of their position and pair."""
    angle = np.arange(1, len(x) + 1)[:, None] / (1.0 + np.arange(4))
    left, right = x[:, :4], x[:, 4:]
    turned = (left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle))
    return np.concatenate([turned[0], turned[1] + left * np.sin(angle)], axis=1)


def _product_then_relu(w: Array) -> Array:
    return np.asarray(np.maximum(_X @ w, 0.0))


def _oracle(op_type: str) -> Function:
    """The operator as a function of what P would have to be carried into."""
    if op_type in ("Attention", "PackedAttention"):
        return _self_attention
    if op_type.endswith("RotaryEmbedding"):
        return _rotated
    if op_type.startswith(("Fused", "Gemm")):
        return _product_then_relu
    products = ("MatMul", "Conv", "Gemm", "QAttention")
    return _product_with_rounded if any(name in op_type for name in products) else _rounded


def _centred(x: Array) -> Array:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


def _commutes(f: Function, x: Array) -> bool:
    return float(np.abs(f(_centred(x)) - _centred(f(x))).max()) < _SEEN


def _shifts(f: Function, x: Array) -> bool:
    """Whether a shift of x is no more than a shift of f(x)."""
    moved = f(x + 1.234) - f(x)
    return float(np.abs(_centred(moved)).max()) < _SEEN


def _is_opaque(f: Function) -> bool:
    return not _commutes(f, _W) and not _shifts(f, _W)


OPAQUE = [
    row.key
    for row in ROWS.values()
    if row.opaque not in (None, NOT_LINEAR) and row.opaque.code is not RefusalCode.BODY_BORDER
]


@pytest.mark.parametrize("key", OPAQUE, ids=lambda key: ".".join(filter(None, key)))
def test_an_opaque_operator_has_no_law(key: tuple[str, str]) -> None:
    assert _is_opaque(_oracle(key[1]))


@pytest.mark.parametrize(
    "lawful",
    [lambda w: w, lambda w: _X @ w, lambda w: _X @ w[::-1], lambda w: np.roll(w, 1, axis=1)],
    ids=["identity", "product", "rows", "columns"],
)
def test_an_operator_that_has_a_law_would_not_pass_for_opaque(lawful: Function) -> None:
    assert not _is_opaque(lawful)


def test_no_operator_has_both_a_law_and_a_reason_to_have_none() -> None:
    assert not [row.key for row in ROWS.values() if row.opaque is not None and row.family]
