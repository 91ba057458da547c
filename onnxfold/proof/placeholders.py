"""Tests of u = r * v + s with placeholders for r and s, so that layers share one test.

The effect of a region on r and s does not depend on their values if it is the same for distinct
placeholders: r' and s' of its outputs are then elements of r and s, found by value. The same
applies to vectors that only the original reads, such as the gamma that a norm has lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.relation import Float64, Relation
from onnxfold.proof.sizes import Drawn

_FOUND_AGAIN = 2.0**-30  # the numbers differ by 1 / size, and are known to 2^-38


@dataclass(frozen=True, slots=True, eq=False)
class PlaceholderRegion:
    """A region with the numbers of ``placeholders`` instead of ``actual``."""

    region: Region
    placeholders: Relation
    actual: Relation

    def resolved(self, found: Relation) -> Relation | None:
        """Return the relation of the outputs for the actual numbers, None if unknown."""
        if found.r is None or found.s is None or found.reverse:
            return None
        r = _read(found.r, self.placeholders.r, self.actual.r)
        s = _read(found.s, self.placeholders.s, self.actual.s)
        return None if r is None or s is None else Relation(r, s)


def with_placeholders(region: Region) -> PlaceholderRegion | None:
    """Return the region with other numbers; None if it has none, or several ways to scale."""
    scaled = any(leaf.relation.r is not None for leaf in region.leaves)
    return _of_relations(region) if scaled else _of_constants(region)


def _of_relations(region: Region) -> PlaceholderRegion | None:
    changed = [leaf for leaf in region.leaves if leaf.relation.r is not None]
    relations = {leaf.relation.key: leaf.relation for leaf in changed}
    if len(relations) != 1 or any(leaf.fixed or leaf.relation.reverse for leaf in changed):
        return None
    (actual,) = relations.values()
    if actual.r is None or actual.s is None:
        return None
    distinct = replace(actual, r=_distinct(actual.r, 1.0), s=_distinct(actual.s, 0.0))
    leaves = tuple(replace(leaf, relation=distinct) if leaf in changed else leaf
                   for leaf in region.leaves)  # fmt: skip
    return PlaceholderRegion(replace(region, leaves=leaves), distinct, actual)


def _of_constants(region: Region) -> PlaceholderRegion | None:
    """Replace the numbers of original vectors that the other model lacks."""
    lost = [leaf for leaf in region.leaves if _is_lost(leaf)]
    arrays = [leaf.array for leaf in lost if leaf.array is not None]
    if not lost:
        return None
    actual = np.concatenate([array.reshape(-1) for array in arrays])
    made = _distinct(actual, 1.0).astype(actual.dtype)
    kept = {float(leaf.given.flat[0]) for leaf in lost if leaf.given is not None} - {0.0, 1.0}
    of_made, of_actual = (_with_shares(array, kept) for array in (made, actual))
    if np.any(np.diff(np.sort(of_made)) <= 2 * _FOUND_AGAIN):
        return None  # rounded to the type of the constants, or scaled by another
    parts = iter(np.split(made, np.cumsum([array.size for array in arrays])))
    leaves = tuple(
        replace(leaf, array=next(parts).reshape(leaf.array.shape))
        if leaf.array is not None and _is_lost(leaf)
        else leaf
        for leaf in region.leaves
    )
    told, meant = Relation(of_made, of_made), Relation(of_actual, of_actual)
    return PlaceholderRegion(replace(region, leaves=leaves), told, meant)


def _with_shares(array: Drawn, kept: Iterable[float]) -> Float64:
    """Return numbers, the remainders after factoring out one number, and the neutral ones.

    A norm that keeps 1/2 of gamma passes g / (1/2) to its readers. A 0 or 1 has no effect and
    stays.
    """
    numbers = array.astype(np.float64)
    return np.concatenate([numbers, *(numbers / one for one in sorted(kept)), (0.0, 1.0)])


def _is_lost(leaf: Leaf) -> bool:
    """Whether a leaf is a vector in the original, and one number or nothing in the other model."""
    array, given = leaf.array, leaf.given
    if array is None or array.dtype.kind != "f" or not np.isfinite(array).all():
        return False
    alone = leaf.v is None or (given is not None and not leaf.relation.known and _is_plain(given))
    return alone and not _is_plain(array)


def _is_plain(array: Drawn) -> bool:
    return bool(np.all(array == array.flat[0])) if array.size else True


def _distinct(array: Float64, plain: float) -> Float64:
    """Return distinct numbers of both signs; neutral ones stay."""
    if np.all(array == plain):
        return array
    rng = np.random.default_rng(int(plain))
    numbers = rng.permutation(np.linspace(1.0, 2.0, array.size + 2)[1:-1])  # 1 is neutral
    return np.asarray(numbers * rng.choice((-1.0, 1.0), array.size)).reshape(array.shape)


def _read(found: Float64, made: Float64 | None, actual: Float64 | None) -> Float64 | None:
    """Return the elements of ``actual`` at the positions of the numbers found in ``made``."""
    if made is None or actual is None:
        return None
    if made is actual:
        return found if np.all(found == actual.flat[0]) else None
    order = np.argsort(made, axis=None)
    known = made.reshape(-1)[order]
    behind = np.clip(np.searchsorted(known, found), 1, max(1, known.size - 1))
    ends = np.stack([behind - 1, np.minimum(behind, known.size - 1)])
    off = np.abs(known[ends] - found)
    if not np.all(off.min(axis=0) <= _FOUND_AGAIN):
        return None
    near = np.take_along_axis(ends, off.argmin(axis=0)[np.newaxis], axis=0)[0]
    return np.asarray(actual.reshape(-1)[order[near]])
