"""The rule of a linear layer that absorbs r and s of its input, tested on random numbers.

    f(r * x + s, W, b) = f(x, W diag(r), b + factor * W s)

Both sides are polynomials in r and s: the rule is true for all of them if it is for random ones. It
is therefore tested once for all equal layers, on smaller tensors if sizes permit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, Shape
from onnxfold.graph.channels import Channels
from onnxfold.proof.certificate import LinearLayer
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.draws import ERRORS, Drawing
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.relation import EQUAL, Float64, Relation, is_small
from onnxfold.proof.sizes import SAMPLINGS, Drawn, Sizes
from onnxfold.weights.affine_parts import first_halves, weighted_sum
from onnxfold.weights.edited import evaluated

_SCALES = (1.0, 2.0**-6, 2.0**5)
_MOST_AXES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The axes of x, in order, along which the channels of a weight run; none for one r and s.

    ``digits``: outer, size and inner of the axes' elements; the channels are the middle one.
    """

    axes: tuple[int, ...]
    digits: tuple[int, int, int] | None = None

    def vector(self, array: Float64, shape: Shape, size: int) -> Float64 | None:
        """Return an array that broadcasts against x as a vector over channels, or None."""
        if not self.axes:
            return np.full(size, array.flat[0])
        dims = [dim if axis in self.axes and isinstance(dim, int) else 1
                for axis, dim in enumerate(shape)]  # fmt: skip
        rest = [axis for axis in range(len(dims)) if axis not in self.axes]
        vector = np.broadcast_to(array, dims).transpose(*rest, *self.axes).reshape(-1)
        if self.digits is None:
            return vector
        wide = vector.reshape(self.digits)
        repeats = np.array_equal(wide, np.broadcast_to(wide[:1, :, :1], wide.shape))
        return wide[0, :, 0] if repeats else None

    def spread(self, vector: Float64, shape: tuple[int, ...]) -> Float64:
        """Return a vector over channels as an array that broadcasts against an x of a shape."""
        if not self.axes:
            return vector[:1].reshape((1,) * len(shape))
        if self.digits is not None:
            vector = np.broadcast_to(vector[:, np.newaxis], self.digits)
        array = vector.reshape([shape[axis] for axis in self.axes])
        dims = [dim if axis in self.axes else 1 for axis, dim in enumerate(shape)]
        return array.transpose(np.argsort(self.axes)).reshape(dims)


def readings(x: Leaf, inner: Channels) -> Iterator[Reading]:
    """Yield the axes of x, in every order, that may be the channels of a weight."""
    yield from _over_axes(x, inner.size)
    if len(inner.digits) == 1 and not (digit := inner.digits[0]).whole:
        yield from _over_axes(x, 0, (digit.outer or 1, digit.size, digit.inner))


def _over_axes(x: Leaf, size: int, digits: tuple[int, int, int] | None = None) -> Iterator[Reading]:
    arrays = (a for a in (x.relation.r, x.relation.s) if a is not None)
    varying = {axis for a in arrays for axis, dim in enumerate(a.shape) if dim > 1}
    static = {axis: dim for axis, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 1}
    size = size if digits is None else prod(digits)
    for count in range(max(1, len(varying)), min(len(static), _MOST_AXES) + 1):
        for axes in combinations(static, count):
            if varying <= set(axes) and prod(static[axis] for axis in axes) == size:
                yield from (Reading(order, digits) for order in permutations(axes))
    if not varying:
        yield Reading(())


@dataclass(frozen=True, slots=True, eq=False)
class LayerPart:
    """One layer of a node, with its weight and bias among the leaves of a region."""

    layer: LinearLayer
    weight: Leaf
    bias: Leaf | None

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Both leaves, as far as they are there."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class AbsorptionRule:
    """The rule for all layers of one node: ``region`` starts from x, their weights and biases.

    ``scales`` and ``shifts``: whether some r differs from 1, and some s from 0.
    """

    parts: tuple[LayerPart, ...]
    region: Region
    x: Leaf
    reading: Reading
    scales: bool
    shifts: bool

    @staticmethod
    def of(
        parts: tuple[LayerPart, ...],
        region: Region,
        x: Leaf,
        reading: Reading,
        r: Float64,
        s: Float64,
    ) -> AbsorptionRule:
        """Return the rule for a region, for any numbers."""
        changed = (*(leaf for part in parts for leaf in part.leaves), x)
        drawn = {leaf: replace(leaf, relation=EQUAL, array=None, given=None, slack=0.0)
                 for leaf in changed}  # fmt: skip
        others = tuple(leaf for leaf in region.leaves if leaf not in drawn)
        own = tuple(
            LayerPart(
                part.layer, drawn[part.weight], None if part.bias is None else drawn[part.bias]
            )
            for part in parts
        )
        return AbsorptionRule(
            own, replace(region, leaves=(*drawn.values(), *others)), drawn[x], reading,
            bool(np.any(r != 1)), bool(np.any(s)),
        )  # fmt: skip

    @property
    def key(self) -> tuple[object, ...]:
        """Equal keys mean equal tests."""
        said = tuple(
            (part.layer.inner, part.layer.outer, part.layer.factor, part.bias is None)
            for part in self.parts
        )
        return (self.region.key, said, self.reading, self.scales, self.shifts)

    @np.errstate(all="ignore")
    def axes(self) -> tuple[int, ...] | None:
        """Return the axes of the output that receive W s, () if a bias does.

        None if the rule fails.
        """
        symbolic = bool(self.region.symbols)
        axes: set[tuple[int, ...]] | None = None
        wanted = 1 + symbolic
        for number, numbers in enumerate((*SAMPLINGS, ()) if symbolic else SAMPLINGS[:1]):
            found = self._draws(number, numbers) if wanted else None
            if found is not None:
                wanted -= 1
                axes = set.intersection(*found, *([] if axes is None else [axes]))
        return max(axes) if axes and wanted <= symbolic else None

    def _draws(self, number: int, numbers: tuple[int, ...]) -> list[set[tuple[int, ...]]] | None:
        """Return what each draw finds, on the smallest tensors that fit; None if none do."""
        layers = [part.layer for part in self.parts]
        digits = [Fiber(own.digits) for layer in layers for own in (layer.inner, layer.outer)]
        for whole in (False, True):
            rng = np.random.default_rng(number)
            sizes = self.region.sizes(numbers, digits, whole=whole)
            try:
                return [self._draw(sizes, rng, scale) for scale in _SCALES]
            except ERRORS:
                if not sizes.reduced:
                    break
        return None

    def _draw(self, sizes: Sizes, rng: np.random.Generator, scale: float) -> set[tuple[int, ...]]:
        """Return the axes of the output along which the difference is factor * W s."""
        r, s = self._vectors(_resized(self.parts[0].layer.inner, sizes).size, rng)
        region = self._related(sizes, r, s)
        old, new = Drawing(region, sizes).draw(rng, scale)
        totals = [self._total(part, old, s, sizes) for part in self.parts]
        for part, total in zip(self.parts, totals, strict=True):
            if part.bias is not None and part.bias.v is not None:
                shape = new[part.bias.v].shape
                start = old[part.bias.u] if part.bias.u is not None else np.zeros(shape)
                added = first_halves(total, part.layer.halves)
                new[part.bias.v] = np.asarray(start, np.float64) + added.reshape(shape)
        u, v = region.outputs(old, new)
        outside = [part.bias is None for part in self.parts]
        if not self.shifts or not any(outside):
            return {()} if is_small(u - v, u, v) else set()
        if len(outside) > 1:
            return set()
        (total,), outer = totals, _resized(self.parts[0].layer.outer, sizes)
        dims = tuple(digit.size for digit in outer.digits)
        return {
            axes
            for axes in permutations(range(u.ndim), len(dims))
            if dims == tuple(u.shape[axis] for axis in axes)
            and is_small(u - v - Reading(axes).spread(total, u.shape), u, v)
        }

    def _vectors(self, size: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return random r, far from 0, and s over the channels."""
        count = size if self.reading.axes else 1
        r = rng.uniform(1.0, 2.0, count) * rng.choice((-1.0, 1.0), count)
        s = rng.standard_normal(count)
        r, s = (np.broadcast_to(each, (size,)) for each in (r, s))
        return (r if self.scales else np.ones(size)), (s if self.shifts else np.zeros(size))

    def _related(self, sizes: Sizes, r: Float64, s: Float64) -> Region:
        """Return the region with u = r * v + s for x, and W' = W diag(r)."""
        x = sizes.of(self.x.shape)
        relations = {self.x: Relation(self.reading.spread(r, x), self.reading.spread(s, x))}
        for part in self.parts:
            W, inner = sizes.of(part.weight.shape), _resized(part.layer.inner, sizes)
            scaled = Relation(inner.spread(r, W), np.zeros((1,) * len(W)), reverse=True)
            relations[part.weight] = scaled
        return replace(self.region, leaves=tuple(
            replace(leaf, relation=relations.get(leaf, leaf.relation))
            for leaf in self.region.leaves
        ))  # fmt: skip

    def _total(
        self, part: LayerPart, old: Mapping[ir.Value, Drawn], s: Float64, sizes: Sizes
    ) -> Float64:
        inner, outer = (_resized(own, sizes) for own in (part.layer.inner, part.layer.outer))
        if part.weight.u is None:
            raise Unprovable("a weight is new")
        if not self.shifts:
            return np.zeros(outer.size)
        W = old[part.weight.u].astype(np.float64)
        return part.layer.factor * weighted_sum(evaluated(ir.tensor(W)), W.shape, s, inner, outer)


def _resized(channels: Channels, sizes: Sizes) -> Channels:
    """Return channels in the sizes in which the weight is drawn."""
    return Channels.of(sizes.fiber(Fiber(channels.digits)).blocks)
