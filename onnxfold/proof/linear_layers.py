"""Linear layers that have taken r and s of what they read: a rule, and the arrays that obey it.

    f(r * x + s, W, b) = f(x, W diag(r), b + factor * W s)          where a bias is read
    f(r * x + s, W)    = f(x, W diag(r)) + factor * W s             where none is

The rule is tested with random r-scaled weights of this node's shapes and attributes; W' = W diag(r)
and b' = b + factor * W s are compared element by element, within one rounding.

Source: FlashNorm (Graef et al., 2024), section 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, permutations
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import AxisBlock, ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.proof.certificate import Certificate, LinearLayer
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.relation import EQUAL, Float64, Relation, is_small
from onnxfold.proof.sizes import SAMPLINGS, Drawn, Sizes
from onnxfold.proof.stored import exact_numbers, is_product
from onnxfold.weights.affine_parts import weighted_sum
from onnxfold.weights.edited import evaluated
from onnxfold.weights.means import within_rounding

_SCALES = (1.0, 2.0**-6, 2.0**5)
_MOST_AXES = 3
_ERRORS = (OnnxfoldError, Unprovable, ArithmeticError, LookupError, ValueError)


class Absorber:
    """Checks the linear layers that a certificate names."""

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        certificate: Certificate,
    ):
        self._before, self._after = before, after
        self._values = before.by_ref()
        self._layers = {layer.node: layer for layer in certificate.linear}
        self._known: dict[object, object] = {}
        self.scaled = 0
        self.shifted = 0

    def layer_of(self, u: ir.Value, v: ir.Value) -> LinearLayer | None:
        """Return the layer that computes u, and v in the same way."""
        old, new = u.producer(), v.producer()
        if old is None or new is None or old.op_identifier() != new.op_identifier():
            return None
        return self._layers.get(self._before.ref(old.outputs[0]))

    def relation(self, layer: LinearLayer, region: Region) -> Relation | None:
        """Return u = v, or u = v + s along the output's channels; None where neither is shown."""
        root = self._values.get(layer.weight)
        weight = next((x for x in region.leaves if x.u is root and x.v is not None), None)
        changed = [x for x in region.leaves if x.relation.r is not None and x is not weight]
        if weight is None or len(changed) != 1 or changed[0].relation.reverse:
            return None
        for inner in _orders(layer.inner):
            ordered = replace(layer, inner=inner)
            for vectors in _vectors(changed[0], inner):
                rule = _Rule.of(ordered, region, weight, vectors, self._bias(layer, region))
                found = None if rule is None else self._checked(rule)
                if found is not None:
                    return found
        return None

    def _checked(self, rule: _Rule) -> Relation | None:
        if not self._weight_is_scaled(rule):
            return None
        axis = self._axis(rule)
        if axis is None:
            return None
        total = self._total(rule)
        if rule.bias is not None:
            return self._with_bias(rule, total)
        rank = self._before.rank(rule.region.pair[0])
        return None if rank is None else _along(rank, axis, total)

    def _bias(self, layer: LinearLayer, region: Region) -> Leaf | None:
        if layer.bias is None:
            return None
        new = region.pair[1].producer()
        value = new.inputs[layer.bias] if new and layer.bias < len(new.inputs) else None
        return next((leaf for leaf in region.leaves if value is not None and leaf.v is value), None)

    def _weight_is_scaled(self, rule: _Rule) -> bool:
        old, new = self._before.tensor(rule.weight.u), self._after.tensor(rule.weight.v)
        if old is None or new is None:
            return False
        key = ("weight", rule.weight.u, rule.weight.v, rule.factor.tobytes())
        if key not in self._known:
            self._known[key] = is_product(old, new, rule.factor)
            self.scaled += bool(self._known[key])
        return bool(self._known[key])

    def _total(self, rule: _Rule) -> Float64:
        tensor = self._before.tensor(rule.weight.u)
        if tensor is None or not np.any(rule.s):
            return np.zeros(rule.layer.outer.size)
        shape, layer = tuple(tensor.shape.numpy()), rule.layer
        total = weighted_sum(evaluated(tensor), shape, rule.s, layer.inner, layer.outer)
        return layer.factor * total

    def _with_bias(self, rule: _Rule, total: Float64) -> Relation | None:
        bias = rule.bias
        if bias is None or bias.v is None:
            return None
        old, new = self._before.tensor(bias.u), self._after.tensor(bias.v)
        if new is None or new.size != total.size:
            return None
        exact, stored = total, new.numpy().reshape(-1)
        magnitude = np.abs(total)
        if bias.u is not None:
            if old is None:
                return None
            numbers, _ = exact_numbers(old)
            wide = numbers.astype(np.float64).reshape(-1)
            exact, magnitude = wide + total, np.abs(wide) + magnitude
        if not within_rounding(stored, exact, magnitude):
            return None
        self.shifted += not (old is not None and old is new)
        return EQUAL

    def _axis(self, rule: _Rule) -> int | None:
        """Return the output axis (0 with a bias) along which the rule holds, None for none."""
        key = ("rule", rule.region.key, rule.layer)
        if key not in self._known:
            try:
                self._known[key] = rule.axis()
            except _ERRORS:
                self._known[key] = None
        found = self._known[key]
        return found if isinstance(found, int) else None


class _Rule:
    """The test of one layer's rule."""

    def __init__(
        self, layer: LinearLayer, region: Region, weight: Leaf, bias: Leaf | None,
        factor: Float64, s: Float64,
    ):  # fmt: skip
        self.layer, self.region, self.weight, self.bias = layer, region, weight, bias
        self.factor, self.s = factor, s

    @staticmethod
    def of(
        layer: LinearLayer,
        region: Region,
        weight: Leaf,
        vectors: tuple[Float64, Float64],
        bias: Leaf | None,
    ) -> _Rule | None:
        """Return the rule for r and s as vectors over the channels of the weight."""
        shape = tuple(dim for dim in weight.shape if isinstance(dim, int))
        r, s = vectors
        if layer.bias is not None and bias is None and np.any(s):
            return None
        factor = layer.inner.spread(r, shape)
        scaled = replace(
            weight, relation=Relation(factor, np.zeros((1,) * factor.ndim), reverse=True),
            array=None, given=None, slack=0.0,
        )  # fmt: skip
        any_bias = bias and replace(bias, relation=EQUAL, array=None, given=None, slack=0.0)
        others = [leaf for leaf in region.leaves if leaf not in (weight, bias)]
        drawn = (scaled, *((any_bias,) if any_bias else ()), *others)
        return _Rule(layer, replace(region, leaves=drawn), scaled, any_bias, factor, s)

    @np.errstate(all="ignore")
    def axis(self) -> int | None:
        """Test the rule; return the axis of the output that takes W s, 0 where a bias does.

        Raises what a test raises that cannot be carried out.
        """
        symbolic = any(
            not isinstance(dim, int) for leaf in self.region.leaves for dim in leaf.shape
        )
        axes: set[int] | None = None
        wanted = 1 + symbolic
        for number, numbers in enumerate((*SAMPLINGS, ()) if symbolic else SAMPLINGS[:1]):
            if not wanted:
                break
            sizes, rng = self.region.sizes(numbers), np.random.default_rng(number)
            try:
                found = [self._draw(sizes, rng, scale) for scale in _SCALES]
            except _ERRORS:
                continue
            wanted -= 1
            for draw in found:
                axes = draw if axes is None else axes & draw
        return max(axes) if axes and wanted <= symbolic else None

    def _draw(self, sizes: Sizes, rng: np.random.Generator, scale: float) -> set[int]:
        """Return the axes of the output along which the difference is factor * W s."""
        old, new = self.region.drawn(sizes, rng, scale)
        total = self._random_total(old, sizes)
        if self.bias is not None and self.bias.v is not None:
            shape = new[self.bias.v].shape
            start = old[self.bias.u] if self.bias.u is not None else np.zeros(shape)
            new[self.bias.v] = np.asarray(start, np.float64) + total.reshape(shape)
        u, v = self.region.outputs(old, new)
        if self.bias is not None:
            return {0} if is_small(u - v, u, v) else set()
        found = set()
        for axis, size in enumerate(u.shape):
            if total.size in (size, 1) or not np.any(self.s):
                behind = (1,) * (u.ndim - 1 - axis)
                shift = total.reshape(-1, *behind) if size == total.size else np.zeros(1)
                if is_small(u - v - shift, u, v):
                    found.add(axis)
        return found

    def _random_total(self, old: Mapping[ir.Value, Drawn], sizes: Sizes) -> Float64:
        if self.weight.u is None:
            raise Unprovable("a weight is new")
        W = old[self.weight.u].astype(np.float64)
        outer = _resized(self.layer.outer, self.weight, W.shape)
        if not np.any(self.s):
            return np.zeros(outer.size)
        total = weighted_sum(evaluated(ir.tensor(W)), W.shape, self.s, self.layer.inner, outer)
        return self.layer.factor * total


def _resized(channels: Channels, weight: Leaf, shape: tuple[int, ...]) -> Channels:
    """Return channels of whole axes in the sizes in which the weight was drawn."""
    return Channels.of(
        AxisBlock(d.axis, 1, shape[d.axis], 1) if d.whole and weight.shape[d.axis] == d.size else d
        for d in channels.digits
    )


def _orders(channels: Channels) -> Iterator[Channels]:
    """Yield the digits in every order, that of the memory first."""
    digits = sorted(channels.digits, key=lambda digit: (digit.axis, -digit.inner))
    if len(digits) <= _MOST_AXES:
        yield from (Channels.of(order) for order in permutations(digits))


def _vectors(x: Leaf, inner: Channels) -> Iterator[tuple[Float64, Float64]]:
    """Yield r and s as vectors over the channels of a weight.

    Over axes of x in every order in which they may stand; where the channels are a digit of the
    weight's axis, what repeats in the same way.
    """
    r, s = x.relation.r, x.relation.s
    if r is None or s is None:
        return
    yield from _over_axes(x, r, s, inner.size)
    if len(inner.digits) == 1 and not (digit := inner.digits[0]).whole:
        digits = (digit.outer or 1, digit.size, digit.inner)
        for pair in _over_axes(x, r, s, prod(digits)):
            wide = [vector.reshape(digits) for vector in pair]
            if all(np.array_equal(a, np.broadcast_to(a[:1, :, :1], a.shape)) for a in wide):
                yield wide[0][0, :, 0], wide[1][0, :, 0]


def _over_axes(x: Leaf, r: Float64, s: Float64, size: int) -> Iterator[tuple[Float64, Float64]]:
    varying = {axis for a in (r, s) for axis, dim in enumerate(a.shape) if dim > 1}
    static = [axis for axis, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 1]
    for count in range(len(varying), min(len(static), _MOST_AXES) + 1):
        for axes in combinations(static, count):
            sizes = [dim if axis in axes else 1 for axis, dim in enumerate(x.shape)]
            if not varying <= set(axes) or prod(d for d in sizes if isinstance(d, int)) != size:
                continue
            wide = [np.broadcast_to(a, [d for d in sizes if isinstance(d, int)]) for a in (r, s)]
            for order in permutations(axes):
                rest = [axis for axis in range(len(sizes)) if axis not in axes]
                first, second = (a.transpose(*rest, *order).reshape(-1) for a in wide)
                yield first, second
    if not varying:
        yield np.full(size, r.flat[0]), np.full(size, s.flat[0])


def _along(rank: int, axis: int, total: Float64) -> Relation:
    if not np.any(total):
        return EQUAL
    shape = (1,) * axis + (total.size,) + (1,) * (rank - 1 - axis)
    return Relation(np.ones((1,) * rank), total.reshape(shape))
