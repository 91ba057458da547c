"""Linear layers that absorbed r and s of their inputs: a rule, and arrays that satisfy it.

    f(r * x + s, W, b) = f(x, W diag(r), b + factor * W s)          if a bias is read
    f(r * x + s, W)    = f(x, W diag(r)) + factor * W s             otherwise

The rule is tested with random r-scaled weights of this node's shapes and attributes; W' = W diag(r)
and b' = b + factor * W s are compared element by element, within one rounding.

Source: FlashNorm (Graef et al., 2024), section 1.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.proof.absorption import AbsorptionRule, LayerPart, Reading, readings
from onnxfold.proof.certificate import Certificate, LinearLayer
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.draws import ERRORS
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.relation import EQUAL, Float64, Relation, is_small
from onnxfold.proof.sizes import SAMPLINGS, Drawn
from onnxfold.proof.stored import exact_numbers, is_product
from onnxfold.refusal import Refusal
from onnxfold.weights.affine_parts import first_halves, weighted_sum
from onnxfold.weights.dequantised import quantised_weight
from onnxfold.weights.edited import evaluated
from onnxfold.weights.means import within_rounding

_MOST_AXES = 3


class Absorber:
    """Checker of the linear layers that a certificate names."""

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        certificate: Certificate,
    ):
        self._before, self._after = before, after
        self._values = before.by_ref()
        self._layers: dict[str, list[LinearLayer]] = defaultdict(list)
        for layer in certificate.linear:
            self._layers[layer.node].append(layer)
        self._known: dict[object, object] = {}
        self.scaled = 0
        self.shifted = 0

    def layers_of(self, u: ir.Value, v: ir.Value) -> list[LinearLayer]:
        """Return the layers of the node that computes u, and v in the same way."""
        old, new = u.producer(), v.producer()
        if old is None or new is None or old.op_identifier() != new.op_identifier():
            return []
        return self._layers.get(self._before.node_ref(old), [])

    def relation(self, layers: list[LinearLayer], region: Region) -> Relation | None:
        """Return u = v, or u = v + s along the output's channels; None if neither is proved."""
        parts = [self._part(layer, region) for layer in layers]
        if any(layer.fixed for layer in layers):
            found = self._into_biases(layers, region)
            return found or (self._beside_codes(region) if layers[0].bias is None else None)
        own = {part.weight for part in parts if part is not None}
        changed = [x for x in region.leaves if x.relation.r is not None and x not in own]
        if None in parts or len(changed) != 1 or changed[0].relation.reverse:
            return None
        known = tuple(part for part in parts if part is not None)
        for inners in zip(*(_orders(layer.inner) for layer in layers), strict=True):
            ordered = tuple(
                replace(part, layer=replace(part.layer, inner=inner))
                for part, inner in zip(known, inners, strict=True)
            )
            for r, s, reading in _vectors(changed[0], inners[0]):
                lost = any(part.layer.bias is not None and part.bias is None for part in known)
                if lost and np.any(s):
                    continue
                rule = AbsorptionRule.of(ordered, region, changed[0], reading, r, s)
                found = self._checked(rule, r, s)
                if found is not None:
                    return found
        return None

    def _part(self, layer: LinearLayer, region: Region) -> LayerPart | None:
        root = self._values.get(layer.weight)
        weight = next((x for x in region.leaves if x.u is root and x.v is not None), None)
        return None if weight is None else LayerPart(layer, weight, self._bias(layer, region))

    @np.errstate(all="ignore")
    def _into_biases(self, layers: list[LinearLayer], region: Region) -> Relation | None:
        """Return u = v where f(x + s, W, b) = f(x, W, b + W s), each W made of codes.

        The original's nodes compute both sides, of the numbers that are stored.
        """
        changed = [leaf for leaf in region.leaves if leaf.relation.r is not None]
        biases = [self._bias(layer, region) for layer in layers]
        others = [leaf for leaf in region.leaves if leaf not in (*changed, *biases)]
        stays = all(leaf.u is not None and leaf.relation.equal for leaf in others)
        node, codes = region.nodes[0], [self._values.get(layer.weight) for layer in layers]
        if (
            not all(value in node.inputs for value in codes)
            or len(changed) != 1
            or None in biases
            or not stays
            or changed[0].relation.reverse
        ):
            return None
        totals = self._of_codes(layers, node, changed[0])
        known = [leaf for leaf in biases if leaf is not None]
        if totals is None or not self._moves_alike(region, changed[0], known, totals):
            return None
        shown = [self._with_bias(leaf, total) for leaf, total in zip(known, totals, strict=True)]
        return EQUAL if all(found is not None for found in shown) else None

    def _of_codes(self, layers: list[LinearLayer], node: ir.Node, x: Leaf) -> list[Float64] | None:
        """Return W s for every layer of a node, of the numbers that its codes are."""
        totals = []
        for layer in layers:
            at = list(node.inputs).index(self._values.get(layer.weight))
            weight = quantised_weight(self._before, Reader(node, at))
            found = next(iter(_vectors(x, layer.inner)), None)
            if isinstance(weight, Refusal) or found is None or np.any(found[0] != 1):
                return None
            shape = tuple(weight.shape.numpy())
            totals.append(weighted_sum(weight, shape, found[1], layer.inner, layer.outer))
        return totals

    def _moves_alike(
        self, region: Region, x: Leaf, biases: list[Leaf], totals: list[Float64]
    ) -> bool:
        """Whether s in the original's x does what W s in the other model's biases does."""
        wanted = 1 + bool(region.symbols)
        for numbers in SAMPLINGS[: len(SAMPLINGS) if region.symbols else 1]:
            old, new = self._drawn(region, numbers)
            if x.u is None or x.relation.s is None or None in (leaf.v for leaf in biases):
                return False
            old[x.u] = old[x.u].astype(np.float64) + x.relation.s
            for leaf, total in zip(biases, totals, strict=True):
                if leaf.v is not None:
                    bias = new[leaf.v].astype(np.float64)
                    new[leaf.v] = bias + total.reshape(bias.shape)
            with suppress(*ERRORS):  # of so few rows some experts may get none
                first, second = region.outputs(old, new)
                if not is_small(first - second, first, second):
                    return False
                wanted -= 1
                if not wanted:
                    return True
        return False

    def _drawn(
        self, region: Region, numbers: tuple[int, ...]
    ) -> tuple[dict[ir.Value, Drawn], dict[ir.Value, Drawn]]:
        """Return equal values of the leaves in both models; zeros where the original has none."""
        sizes, rng = region.sizes(numbers, whole=True), np.random.default_rng(len(numbers))
        old: dict[ir.Value, Drawn] = {}
        new: dict[ir.Value, Drawn] = {}
        for leaf in region.leaves:
            given: Drawn = np.zeros(sizes.of(leaf.shape))
            if leaf.u is not None:
                stored = self._before.tensor(leaf.u) is not None
                given = self._stored(leaf) if stored else rng.standard_normal(given.shape)
                old[leaf.u] = given
            if leaf.v is not None:
                new[leaf.v] = given
        return old, new

    def _beside_codes(self, region: Region) -> Relation | None:
        """Return what is left of f(x + s, W) = f(x, W) + W s, W s as the nodes compute it.

        f is affine in x where the difference is the same for every x.
        """
        changed = [leaf for leaf in region.leaves if leaf.relation.r is not None]
        others = [leaf for leaf in region.leaves if leaf not in changed]
        stays = all(leaf.u is not None and leaf.relation.equal for leaf in others)
        if len(changed) != 1 or not stays or changed[0].relation.reverse:
            return None
        totals = [self._added(region, changed[0], n) for n in SAMPLINGS[: 1 + bool(region.symbols)]]
        found = {None if total is None else total.shape for total in totals}
        first = totals[0]
        if first is None or len(found) > 1:
            return None
        if not all(is_small(first - total, first) for total in totals[1:] if total is not None):
            return None
        return Relation(np.ones((1,) * first.ndim), first) if np.any(first) else EQUAL

    @np.errstate(all="ignore")
    def _added(self, region: Region, x: Leaf, numbers: tuple[int, ...]) -> Float64 | None:
        """Return what s of x adds to the output, 1 for axes of any size.

        None if that depends on x, or varies along an axis of any size.
        """
        sizes, (r, s) = region.sizes(numbers, whole=True), (x.relation.r, x.relation.s)
        if x.u is None or r is None or s is None or np.any(r != 1):
            return None
        given = {leaf.u: self._stored(leaf) for leaf in region.leaves if leaf.u not in (None, x.u)}
        shape, rng = sizes.of(x.shape), np.random.default_rng(len(numbers))
        changes = []
        for drawn in (np.zeros(shape), rng.standard_normal(shape)):
            u, v = (region.original({**given, x.u: drawn + each}) for each in (s, 0.0))
            changes.append((u - v, np.abs(u) + np.abs(v)))
        (change, _), (other, size) = changes
        if not is_small(change - other, size, change):
            return None
        known = self._before.shape(region.pair[0]) or (None,) * change.ndim
        first = change[tuple(slice(None if isinstance(dim, int) else 1) for dim in known)]
        return first if is_small(change - first, change) else None

    def _stored(self, leaf: Leaf) -> Drawn:
        tensor = self._before.tensor(leaf.u)
        if tensor is None:
            raise Unprovable("an operand beside the codes is computed")
        return exact_numbers(tensor)[0]

    def _checked(self, rule: AbsorptionRule, r: Float64, s: Float64) -> Relation | None:
        """Check a rule with r and s of its layers over the channels of their weights."""
        parts = rule.parts
        if not all(self._weight_is_scaled(part, r) for part in parts):
            return None
        axes = self._axes(rule)
        if axes is None:
            return None
        totals = [self._total(part, s) for part in parts]
        if len(parts) == 1 and parts[0].bias is None:
            rank = self._before.rank(rule.region.pair[0])
            return None if rank is None else _along(rank, axes, parts[0].layer.outer, totals[0])
        shown = [
            EQUAL if part.bias is None else self._with_bias(part.bias, total)
            for part, total in zip(parts, totals, strict=True)
        ]
        return EQUAL if all(found is not None for found in shown) else None

    def _bias(self, layer: LinearLayer, region: Region) -> Leaf | None:
        if layer.bias is None:
            return None
        new = region.pair[1].producer()
        value = new.inputs[layer.bias] if new and layer.bias < len(new.inputs) else None
        return next((leaf for leaf in region.leaves if value is not None and leaf.v is value), None)

    def _weight_is_scaled(self, part: LayerPart, r: Float64) -> bool:
        weight, inner = part.weight, part.layer.inner
        old, new = self._before.tensor(weight.u), self._after.tensor(weight.v)
        if old is None or new is None:
            return False
        factor = inner.spread(r, tuple(old.shape.numpy()))
        key = ("weight", weight.u, weight.v, factor.tobytes())
        if key not in self._known:
            self._known[key] = is_product(old, new, factor)
            self.scaled += bool(self._known[key])
        return bool(self._known[key])

    def _total(self, part: LayerPart, s: Float64) -> Float64:
        layer, tensor = part.layer, self._before.tensor(part.weight.u)
        if tensor is None or not np.any(s):
            return np.zeros(layer.outer.size * (2 if layer.halves else 1))
        shape = tuple(tensor.shape.numpy())
        total = weighted_sum(evaluated(tensor), shape, s, layer.inner, layer.outer)
        return first_halves(layer.factor * total, layer.halves)

    def _with_bias(self, bias: Leaf, total: Float64) -> Relation | None:
        if bias.v is None:
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

    def _axes(self, rule: AbsorptionRule) -> tuple[int, ...] | None:
        """Return the output axes (none with a bias) along which the rule applies, or None."""
        key = ("rule", rule.key)
        if key not in self._known:
            self._known[key] = rule.axes()
        found = self._known[key]
        return found if isinstance(found, tuple) else None


def _vectors(x: Leaf, inner: Channels) -> Iterator[tuple[Float64, Float64, Reading]]:
    """Yield r and s of x as vectors over the channels of a weight, and how they are read."""
    r, s = x.relation.r, x.relation.s
    if r is None or s is None:
        return
    for reading in readings(x, inner):
        first, second = (reading.vector(each, x.shape, inner.size) for each in (r, s))
        if first is not None and second is not None:
            yield first, second, reading


def _orders(channels: Channels) -> Iterator[Channels]:
    """Yield the digits in every order, in memory order first."""
    digits = sorted(channels.digits, key=lambda digit: (digit.axis, -digit.inner))
    if len(digits) <= _MOST_AXES:
        yield from (Channels.of(order) for order in permutations(digits))


def _along(rank: int, axes: tuple[int, ...], outer: Channels, total: Float64) -> Relation:
    if not np.any(total):
        return EQUAL
    sizes = dict(zip(axes, (digit.size for digit in outer.digits), strict=True))
    shape = tuple(sizes.get(axis, 1) for axis in range(rank))
    return Relation(np.ones((1,) * rank), Reading(axes).spread(total, shape))
