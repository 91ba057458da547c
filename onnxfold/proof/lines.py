"""Fits of u = r * v + s to draws of two values, with one r and s for as many axes as possible."""

import numpy as np

from onnxfold.proof.region import Pair
from onnxfold.proof.relation import Float64, is_small

_SNAP = 2.0**-42


def line(draws: list[Pair], slack: float) -> tuple[Float64, Float64] | None:
    """Return r and s of u = r * v + s by least squares for every element, joined along axes.

    A value that roundings of stored constants could have made from 1 or 0 counts as 1 or 0, and r
    is 0 if its product with v is within the roundings of u: as far as can be seen, u is then s.
    """
    u, v = (np.stack([pair[side] for pair in draws]) for side in (0, 1))
    r, s = _slope(u, v, tuple(range(u.ndim)), slack)
    if not _is_line(u, v, r, s, slack):
        r, s = _widest(u, v, slack)
    return (r, s) if np.isfinite(r).all() and np.isfinite(s).all() else None


def _widest(u: Float64, v: Float64, slack: float) -> tuple[Float64, Float64]:
    """Return r and s with the axes joined along which one line fits; elements may be constant."""
    axes: tuple[int, ...] = (0,)
    found = _slope(u, v, axes, slack)
    for axis in range(1, u.ndim):
        wider = _slope(u, v, (*axes, axis), slack)
        if _is_line(u, v, *wider, slack):
            axes, found = (*axes, axis), wider
    return found


def _is_line(u: Float64, v: Float64, r: Float64, s: Float64, slack: float) -> bool:
    return is_small(u - r * v - s, u, r * v, s, slack=slack)


def _slope(u: Float64, v: Float64, axes: tuple[int, ...], slack: float) -> tuple[Float64, Float64]:
    mean_u, mean_v = (a.mean(axis=axes, keepdims=True) for a in (u, v))
    moved = v - mean_v
    spread = (moved * moved).sum(axis=axes, keepdims=True)
    still = spread <= 2.0**-80 * float(np.max(v * v, initial=0))
    with np.errstate(all="ignore"):
        r = (moved * (u - mean_u)).sum(axis=axes, keepdims=True) / spread
    r = np.where(still, 1.0, r)
    r = np.where(np.abs(r - 1) <= _SNAP + slack, 1.0, r)
    least = _SNAP * float(np.max(np.abs(u), initial=0))
    r = np.where(np.abs(r) * float(np.max(np.abs(v), initial=0)) <= least, 0.0, r)
    s = mean_u - r * mean_v
    s = np.where(np.abs(s) <= least + slack, 0.0, s)
    return r[0], s[0]
