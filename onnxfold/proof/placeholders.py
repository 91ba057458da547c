"""Tests of u = r * v + s with placeholders for r and s, so that layers share one test.

What a region makes of r and s does not depend on their values where it holds for placeholders that
are all different: r' and s' of its outputs are then elements of r and s, found again by value.
"""

from dataclasses import dataclass, replace

import numpy as np

from onnxfold.proof.region import Region
from onnxfold.proof.relation import Float64, Relation

_FOUND_AGAIN = 2.0**-30  # the numbers are 1 / size apart, and known to 2^-38


@dataclass(frozen=True, slots=True, eq=False)
class PlaceholderRegion:
    """A region whose leaves have the relation ``placeholders`` in the place of ``actual``."""

    region: Region
    placeholders: Relation
    actual: Relation

    def resolved(self, found: Relation) -> Relation | None:
        """Return what a relation of the outputs is for the actual numbers, None if unknown."""
        if found.r is None or found.s is None or found.reverse:
            return None
        r = _read(found.r, self.placeholders.r, self.actual.r)
        s = _read(found.s, self.placeholders.s, self.actual.s)
        return None if r is None or s is None else Relation(r, s)


def with_placeholders(region: Region) -> PlaceholderRegion | None:
    """Return the region with other numbers; None unless all that is scaled is so alike."""
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


def _distinct(array: Float64, plain: float) -> Float64:
    """Return numbers that are all different, of both signs; those of no effect stay."""
    if np.all(array == plain):
        return array
    rng = np.random.default_rng(int(plain))
    numbers = rng.permutation(np.linspace(1.0, 2.0, array.size))
    return np.asarray(numbers * rng.choice((-1.0, 1.0), array.size)).reshape(array.shape)


def _read(found: Float64, made: Float64 | None, actual: Float64 | None) -> Float64 | None:
    """Return the elements of ``actual`` that stand where those of ``made`` were found."""
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
