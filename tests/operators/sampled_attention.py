"""Samplers of attention operators, with attention written out in numpy as their oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed

__all__ = ["ATTENTION"]

_CONTRIB = "com.microsoft"


def _split(x: Array, heads: int) -> Array:
    """[B, S, N * D] -> [B, N, S, D]; four axes stay."""
    if x.ndim == 4:
        return x
    return np.moveaxis(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 2, 1)


def _attend(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    """softmax(q k' + mask) v with the heads of k and v repeated to match q."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bntd,bnsd->bnts", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores if mask is None else scores + mask)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bnts,bnsd->bntd", weights, v)


def _oracle(
    heads: tuple[int, int],
    *,
    mask: int,
    past: tuple[int, int] | None,
    bias: int | None,
    merge: bool,
) -> Callable[[list[Array | None], dict[str, Any]], list[Array]]:
    """``mask``, ``past`` and ``bias`` are numbers of inputs that may be there."""

    def at(arrays: list[Array | None], index: int | None) -> Array | None:
        return arrays[index] if index is not None and index < len(arrays) else None

    def run(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
        q, k, v = (np.asarray(array) for array in arrays[:3])
        added = at(arrays, bias)
        if added is not None:
            ends = np.cumsum([q.shape[-1], k.shape[-1]])
            q, k, v = (x + b for x, b in zip((q, k, v), np.split(added, ends), strict=True))
        q, k, v = (_split(x, n) for x, n in zip((q, k, v), (heads[0], *2 * heads[1:]), strict=True))
        if past is not None and (old := at(arrays, past[1])) is not None:
            k = np.concatenate([np.asarray(at(arrays, past[0])), k], axis=2)
            v = np.concatenate([old, v], axis=2)
        y = _attend(q, k, v, at(arrays, mask))
        if merge:
            y = np.moveaxis(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)
        return [y, k, v]

    return run


def _shapes(draw: Draw, grouped: bool) -> tuple[int, int, int, int, int, int]:
    """Batch, queries, keys, heads of q, heads of k and v, elements of a head."""
    few = draw.pick((1, 1, 2))
    many = few * (draw.pick((1, 2)) if grouped else 1)
    return *(draw.number(1, 2) for _ in range(3)), many, few, draw.pick((2, 4))


def _mask(draw: Draw, batch: int, heads: int, queries: int, keys: int) -> Operand:
    return fixed(draw.normal((batch, heads, queries, keys)))


def _operand(draw: Draw, dims: Dims) -> Operand:
    """Values: sometimes of symbolic sizes."""
    dims = (*(draw.dim(sizes=(d,)) if isinstance(d, int) else d for d in dims[:-1]), dims[-1])
    return draw.floats(dims)


def _onnx(draw: Draw) -> Sample:
    """Attention-23: three or four axes, grouped heads, a mask, earlier keys and values."""
    batch, t, s, many, few, size = _shapes(draw, grouped=True)
    flat = draw.chance(0.6)
    shapes: list[Dims] = (
        [(batch, t, many * size), (batch, s, few * size), (batch, s, few * size)]
        if flat
        else [(batch, many, t, size), (batch, few, s, size), (batch, few, s, size)]
    )
    past, kept = draw.number(0, 3) == 3, draw.number(0, 4) == 4
    operands: list[Operand | None] = [_operand(draw, shape) for shape in shapes]
    earlier = 2 if past else 0
    operands.append(_mask(draw, batch, many, t, s + earlier) if draw.chance(0.3) else None)
    if past:
        operands += [fixed(draw.normal((batch, few, 2, size))) for _ in range(2)]
    attributes = {"q_num_heads": many, "kv_num_heads": few} if flat else {}
    y: Dims = (batch, t, many * size) if flat else (batch, many, t, size)
    return draw.sample(
        "Attention",
        draw.pick((23, 24)),
        tuple(operands),
        attributes,
        outputs=3 if kept else 1,
        function=_oracle((many, few), mask=3, past=(4, 5), bias=None, merge=flat),
        output_dims=None if kept else y,
    )


def _multi_head(draw: Draw) -> Sample:
    """com.microsoft.MultiHeadAttention: key and value of three or four axes, a bias, a mask."""
    batch, t, s, heads, _, size = _shapes(draw, grouped=False)
    split = draw.chance(0.3)
    shape: Dims = (batch, heads, s, size) if split else (batch, s, heads * size)
    operands: list[Operand | None] = [_operand(draw, (batch, t, heads * size))]
    operands += [_operand(draw, shape) for _ in range(2)]
    biased = not split and draw.chance(0.3)
    operands.append(fixed(draw.normal((3 * heads * size,))) if biased else None)
    if draw.chance(0.3):
        operands += [None, _mask(draw, batch, heads, t, s)]
    return draw.sample(
        "MultiHeadAttention",
        17,
        tuple(operands),
        {"num_heads": heads},
        domain=_CONTRIB,
        function=_oracle((heads, heads), mask=5, past=None, bias=3, merge=True),
        output_dims=(batch, t, heads * size),
    )


def _group_query(draw: Draw) -> Sample:
    """com.microsoft.GroupQueryAttention with fewer heads of k and v, with and without a cache."""
    batch, t, _, many, few, size = _shapes(draw, grouped=True)
    operands: list[Operand | None] = [_operand(draw, (batch, t, many * size))]
    operands += [_operand(draw, (batch, t, few * size)) for _ in range(2)]
    past, kept = draw.number(0, 4) == 4, draw.number(0, 4) == 4
    operands += [fixed(draw.normal((batch, few, 2, size))) if past else None for _ in range(2)]
    lengths = np.full(batch, t - 1, dtype=np.int32), np.array(t, dtype=np.int32)
    operands += [fixed(array) for array in lengths]
    return draw.sample(
        "GroupQueryAttention",
        17,
        tuple(operands),
        {"num_heads": many, "kv_num_heads": few},
        outputs=3 if kept else 1,
        domain=_CONTRIB,
        function=_oracle((many, few), mask=10, past=(3, 4), bias=None, merge=True),
        output_dims=None if kept else (batch, t, many * size),
    )


ATTENTION: dict[tuple[str, str], Any] = {
    ("", "Attention"): _onnx,
    (_CONTRIB, "MultiHeadAttention"): _multi_head,
    (_CONTRIB, "GroupQueryAttention"): _group_query,
}
