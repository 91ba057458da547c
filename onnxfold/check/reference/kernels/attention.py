"""Attention, its variants and RotaryEmbedding of the domain com.microsoft."""

# ruff: noqa: PLR0913, PLR0917  (the inputs of an operator are the arguments of its kernel)

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel
from onnxfold.check.reference.kernels.elementwise import softmax

_DOMAIN = "com.microsoft"


def _heads(x: Array, heads: int) -> Array:
    """[B, S, N*H] -> [B, N, S, H]."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _key_mask(call: Call, mask: Array, batch: int, keys: int) -> Array:
    """The additive mask [B, 1, S or 1, T] for the forms of mask_index."""
    fill = call.real("mask_filter_value", -10000.0)
    if mask.ndim == 1 and mask.shape[0] == batch:
        keep = np.arange(keys) < mask.reshape(-1, 1, 1, 1)
    elif mask.ndim == 2 and mask.shape == (batch, keys):
        keep = (mask != 0).reshape(batch, 1, 1, keys)
    elif mask.ndim == 3:
        keep = (mask != 0)[:, None]
    else:
        raise call.unsupported(f"a mask of shape {mask.shape}")
    return np.where(keep, 0.0, fill)


def _attend(call: Call, q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """softmax(q kᵀ scale + bias) v for [B, N, S, H], back to [B, S, N*H]."""
    scale = call.unrounded("scale", 0.0) or float(1 / np.sqrt(q.shape[-1]))
    scores = np.matmul(q, k.swapaxes(-1, -2)) * np.asarray(scale, q.dtype)
    if bias is not None:
        scores = scores + bias.astype(q.dtype)
    if call.integer("unidirectional", 0):
        queries, keys = scores.shape[-2:]
        allowed = np.tri(queries, keys, keys - queries, dtype=bool)
        scores = np.where(allowed, scores, np.asarray(-np.inf, q.dtype))
    y: Array = np.matmul(softmax(scores, -1), v).transpose(0, 2, 1, 3)
    return y.reshape(y.shape[0], y.shape[1], -1)


def _total(*terms: Array | None) -> Array | None:
    given = [t for t in terms if t is not None]
    return np.asarray(sum(given[1:], given[0])) if given else None


@kernel("Attention", domain=_DOMAIN)
def attention(
    call: Call,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    extra: Array | None = None,
    past_length: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Self-attention with q, k and v from one product with weights: [D, Dq + Dk + Dv]."""
    if past_length is not None or call.integer("do_rotary", 0):
        raise call.unsupported("a shared past buffer or rotary embedding")
    heads = call.integer("num_heads", 1)
    packed = np.matmul(x, weights)
    packed = packed if bias is None else packed + bias
    third = weights.shape[1] // 3
    sizes = call.integers("qkv_hidden_sizes") or (third, third, third)
    q, k, v = (_heads(part, heads) for part in np.split(packed, np.cumsum(sizes[:2]), axis=-1))
    if past is not None:
        k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    masked = None if mask is None else _key_mask(call, mask, x.shape[0], k.shape[2])
    y = _attend(call, q, k, v, _total(masked, extra))
    return (y, np.stack([k, v])) if call.wants(1) else y


@kernel("MultiHeadAttention", domain=_DOMAIN)
def multi_head_attention(
    call: Call,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    extra: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *others: Array | None,
) -> tuple[Array, ...]:
    """Attention of projected query, key and value: [B, S, D], or key and value [B, N, T, H]."""
    if query.ndim != 3 or key is None or value is None or any(o is not None for o in others):
        raise call.unsupported("packed inputs or a shared past buffer")
    heads = call.integer("num_heads", 1)
    parts = [query, key, value]
    if bias is not None:
        ends = np.cumsum([query.shape[-1], key.shape[-1] if key.ndim == 3 else query.shape[-1]])
        offsets = np.split(bias, ends)
        if any(p.ndim != 3 for p in parts):
            raise call.unsupported("a bias with key and value of rank 4")
        parts = [np.asarray(p + b) for p, b in zip(parts, offsets, strict=True)]
    q, k, v = (_heads(p, heads) if p.ndim == 3 else p for p in parts)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    masked = None if mask is None else _key_mask(call, mask, query.shape[0], k.shape[2])
    return _attend(call, q, k, v, _total(masked, extra)), k, v


def _rotated(call: Call, x: Array, cos: Array, sin: Array, positions: Array) -> Array:
    """[B, N, S, H] with pairs turned by the angles of their positions [B, S]."""
    c, s = (np.asarray(table[positions][:, None], x.dtype) for table in (cos, sin))
    width = 2 * c.shape[-1]
    rest = x[..., width:]
    apart = call.integer("rotary_interleaved", 0)
    a, b = (
        (x[..., 0:width:2], x[..., 1:width:2])
        if apart
        else (x[..., : width // 2], x[..., width // 2 : width])
    )
    turned = (a * c - b * s, a * s + b * c)
    joined = np.stack(turned, -1).reshape((*a.shape[:-1], width)) if apart else None
    halves = np.concatenate(turned, axis=-1) if joined is None else joined
    return np.concatenate([halves, rest], axis=-1)


def _joined(past: Array | None, new: Array, first: Array) -> Array:
    """Return the cache [B, N, T, H] with the new rows after the ``first`` rows of each batch."""
    if past is None:
        return new
    length = max(past.shape[2], int(first.max()) + new.shape[2])
    cache = np.zeros((*new.shape[:2], length, new.shape[3]), new.dtype)
    for batch, start in enumerate(first):
        cache[batch, :, :start] = past[batch, :, :start]
        cache[batch, :, start : start + new.shape[2]] = new[batch]
    return cache


def _grouped(call: Call, query: Array, key: Array | None, value: Array | None) -> list[Array]:
    """Queries [B, N, S, H], keys and values [B, G, S, H]; they may be packed in the first."""
    heads, shared = call.integer("num_heads", 1), call.integer("kv_num_heads", 1)
    parts = [query, key, value]
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * shared)
        parts = [*np.split(query, np.array([heads, heads + shared]) * size, axis=-1)]
    counts = (heads, shared, shared)
    pairs = zip(parts, counts, strict=True)
    return [_heads(part, count) for part, count in pairs if part is not None]


def _normed(call: Call, x: Array, gamma: Array | None) -> Array:
    """RMSNorm of every head, which ONNX Runtime computes only on GPUs."""
    if gamma is None:
        return x
    power = np.mean(np.square(x), axis=-1, keepdims=True)
    y: Array = x / np.sqrt(power + np.asarray(call.real("qk_norm_epsilon", 1e-6), x.dtype)) * gamma
    return y


def _with_sink(call: Call, scores: Array, sink: Array | None) -> Array:
    """Softmax [B, N, S, T] with one more score per head, whose value is zero."""
    if sink is None and call.integer("smooth_softmax", 0) <= 0:
        return softmax(scores, -1)
    more = np.zeros(scores.shape[1], scores.dtype) if sink is None else sink.astype(scores.dtype)
    column = np.broadcast_to(more[:, None, None], (*scores.shape[:-1], 1))
    weights: Array = softmax(np.concatenate([scores, column], axis=-1), -1)[..., :-1]
    return weights


@kernel("GroupQueryAttention", domain=_DOMAIN)
def group_query_attention(
    call: Call,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_length: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    positions: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm: Array | None = None,
    k_norm: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Causal attention of several queries to each key, with the keys and values so far."""
    types = {call.text(name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    sliding = call.integer("sliding_window_cache", 0)
    if k_scale is not None or v_scale is not None or sliding or types != {"NONE"}:
        raise call.unsupported("a cache that slides or is quantized")
    q, k, v = _grouped(call, query, key, value)
    q, k = _normed(call, q, q_norm), _normed(call, k, k_norm)
    rows, total = q.shape[2], int(np.max(total_length))
    first = np.zeros(q.shape[0], np.int64)
    if rows != total:
        first = seqlens_k.reshape(-1).astype(np.int64) + 1 - rows
    if first.min() < 0:
        raise call.unsupported("more queries than keys")
    last = first[:, None] + np.arange(rows)
    if call.integer("do_rotary", 0):
        if cos is None or sin is None:
            raise call.unsupported("a rotary embedding without angles")
        places = last if positions is None else positions
        q, k = (_rotated(call, part, cos, sin, places) for part in (q, k))
    keys, values = _joined(past_key, k, first), _joined(past_value, v, first)
    groups = q.shape[1] // k.shape[1]
    scores = np.matmul(q, np.repeat(keys, groups, axis=1).swapaxes(-1, -2))
    scores = scores * np.asarray(call.real("scale", 0.0) or 1 / np.sqrt(q.shape[-1]), q.dtype)
    cap = call.real("softcap", 0.0)
    scores = scores if cap == 0 else np.tanh(scores / cap) * np.asarray(cap, q.dtype)
    scores = scores if bias is None else scores + bias.astype(q.dtype)
    behind = last[:, None, :, None] - np.arange(keys.shape[2])
    window = call.integer("local_window_size", -1)
    seen = (behind >= 0) & ((behind < window) | (window < 0))
    weights = _with_sink(call, np.where(seen, scores, np.asarray(-np.inf, q.dtype)), sink)
    y: Array = np.matmul(weights, np.repeat(values, groups, axis=1)).transpose(0, 2, 1, 3)
    return y.reshape(y.shape[0], rows, -1), keys, values


@kernel("RotaryEmbedding", domain=_DOMAIN)
def rotary_embedding(call: Call, x: Array, positions: Array, cos: Array, sin: Array) -> Array:
    """Turn pairs of channels of x: [B, S, N*H] or [B, N, S, H]; positions: [1] or [B, S]."""
    turned, heads = call.integer("rotary_embedding_dim", 0), call.integer("num_heads", 0)
    if call.integer("is_packed_batching", 0):
        raise call.unsupported("packed batches")
    packed = x.ndim == 3
    if packed:
        size = x.shape[2] // heads if turned else 2 * cos.shape[1]
        parts = x.reshape(*x.shape[:2], -1, size)
    else:
        parts = x.transpose(0, 2, 1, 3)
    turned = turned or parts.shape[-1]
    if positions.size == 1:
        positions = positions.reshape(1, 1) + np.arange(parts.shape[1])
    c, s = (table[positions][:, :, None, : turned // 2] for table in (cos, sin))
    y = parts.copy()
    near = call.integer("interleaved", 0)
    first = slice(0, turned, 2) if near else slice(0, turned // 2)
    second = slice(1, turned, 2) if near else slice(turned // 2, turned)
    a, b = parts[..., first], parts[..., second]
    y[..., first], y[..., second] = c * a - s * b, s * a + c * b
    return y.reshape(x.shape) if packed else y.transpose(0, 2, 1, 3)
