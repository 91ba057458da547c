"""Attention in pieces, as exporters write it: softmax(q kT * scale + bias) v.

Sites are guesses from the graph's form, names play no part in it; what is made of them is proved
afterwards (`onnxfold.tuning.join_attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.operands import computed_by, known_operand, only_reader, operands
from onnxfold.graph.traversal import reached

_RANK = 4  # batch, heads, tokens, size of a head
HEADS_FIRST = (0, 2, 1, 3)  # [B, T, N, H] -> [B, N, T, H], and back
_KEYS_LAST = {(0, 1, 3, 2): False, (0, 2, 3, 1): True}  # -> [B, N, H, T]; True: from [B, T, N, H]
_TURNED = (0, 2, 1)
_FACTORS: dict[str, Callable[[float], float]] = {"Mul": float, "Div": lambda by: 1.0 / by}


class NoAttention(Exception):  # noqa: N818
    """Why a Softmax is not part of an attention that one operator can compute."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What Where adds to a score: one number where a condition holds and another where not."""

    condition: ir.Value
    holds: float
    fails: float


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Queries, keys or values [B, N, T, H], and what they come from.

    ``plain``: [B, T, N, H], of which they are the transpose. ``past``: what stands before the new
    ones, of which alone ``plain`` is then. ``turned``: ``value`` is [B, N, H, T].
    """

    value: ir.Value
    plain: ir.Value | None = None
    past: ir.Value | None = None
    turned: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """Softmax, its operands, and the product with the values.

    ``guarded``: weights that are NaN count as 0, and a mask may be infinite, so that there are.
    """

    softmax: ir.Node
    query: HeadRows
    key: HeadRows
    value: HeadRows
    scale: float
    biases: tuple[ir.Value | Mask, ...]
    product: ir.Node
    heads: int
    guarded: bool

    @property
    def caches(self) -> bool:
        """Whether the operator can append keys and values to the cached ones itself."""
        parts = (self.key, self.value)
        if any(part.past is None or part.plain is None for part in parts):
            return False
        # Its operands must not be computed from its result.
        terms = (b.condition if isinstance(b, Mask) else b for b in self.biases)
        inputs = [self.query.value, *terms, *(part.plain for part in parts if part.plain)]
        before = set(reached(inputs, lambda value: operands(value.producer())))
        return not any(part.value in before for part in parts)

    @property
    def masks(self) -> list[ir.Value]:
        """The float values that what is added to the scores is computed from, with that itself."""
        starts = [bias for bias in self.biases if isinstance(bias, ir.Value)]
        return list(reached(starts, lambda v: filter(_is_float, operands(v.producer()))))


@dataclass(frozen=True, slots=True)
class _Scores:
    product: ir.Node
    scale: float = 1.0
    biases: tuple[ir.Value | Mask, ...] = ()


def find_attention(view: ModelInfo) -> Iterator[AttentionSite | str]:
    """Yield every attention of the main graph, or why a Softmax is none that can be joined."""
    for node in view.model.graph:
        if operator(node) == "Softmax":
            try:
                yield _Finder(view).site(node)
            except NoAttention as error:
                yield f"{node_label(node)}: {error}"


class _Finder:
    def __init__(self, view: ModelInfo):
        self._view = view

    def site(self, softmax: ir.Node) -> AttentionSite:
        """Return the attention around a Softmax; raises NoAttention."""
        weights, scores = softmax.outputs[0], known_operand(softmax, 0)
        rank = self._view.rank(scores)
        if rank != _RANK or softmax.attributes.get_int("axis", -1) not in (-1, _RANK - 1):
            raise NoAttention("its scores are not of batch, heads, queries and keys, along keys")
        if scores.dtype is not ir.DataType.FLOAT:
            raise NoAttention("its scores are not float32")
        found = self._scores(scores)
        if found is None:
            raise NoAttention("its scores are not a product of queries and keys")
        guarded = self._guarded(weights)
        product = self._product_of(weights if guarded is None else guarded)
        query, factor = self._unscaled(known_operand(found.product, 0))
        keys, other = self._keys(known_operand(found.product, 1))
        site = AttentionSite(
            softmax,
            self._rows(query),
            keys,
            self._rows(known_operand(product, 1)),
            found.scale * factor * other,
            found.biases,
            product,
            self._heads(query),
            guarded is not None and not all(map(self._is_finite, found.biases)),
        )
        values = self._view.shape(site.value.value)
        if values is None or len(values) != _RANK or values[1] != site.heads:
            raise NoAttention("its queries and values have not equally many heads")
        return site

    def _heads(self, query: ir.Value) -> int:
        shape = self._view.shape(query)
        if (
            shape is None
            or len(shape) != _RANK
            or not all(isinstance(shape[n], int) for n in (1, 3))
        ):
            raise NoAttention("the number of heads or their size is not known")
        return int(shape[1]) if isinstance(shape[1], int) else 0

    def _scores(self, value: ir.Value) -> _Scores | None:
        """Return the product that scores come from, with all that is done to it."""
        node = value.producer()
        if node is None or node.domain:
            return None
        kind = node.op_type
        if kind == "MatMul":
            return _Scores(node)
        if kind == "Identity" or (kind == "Cast" and _keeps_type(node)):
            return self._scores(known_operand(node, 0))
        if kind in _FACTORS:
            rest, factor = self._factor(node)
            found = None if rest is None else self._scores(rest)
            if found is not None and found.biases:
                raise NoAttention("its mask is scaled with the scores")
            return None if found is None else replace(found, scale=found.scale * factor)
        if kind == "Add":
            for one, bias in (node.inputs, node.inputs[::-1]):
                found = None if one is None or bias is None else self._scores(one)
                if found is not None and bias is not None:
                    return replace(found, biases=(*found.biases, bias))
        return self._masked(node) if kind == "Where" else None

    def _masked(self, where: ir.Node) -> _Scores | None:
        """Return scores, some of which are replaced by a number."""
        condition, holds, fails = (known_operand(where, n) for n in range(3))
        for keeps, (one, other) in ((True, (holds, fails)), (False, (fails, holds))):
            number = self._view.scalar(other)
            found = None if number is None else self._scores(one)
            if found is not None and number is not None:
                mask = Mask(condition, 0.0, number) if keeps else Mask(condition, number, 0.0)
                return replace(found, biases=(*found.biases, mask))
        return None

    def _factor(self, node: ir.Node) -> tuple[ir.Value | None, float]:
        """Return what a number multiplies or divides, and the factor; None without one."""
        first, second = known_operand(node, 0), known_operand(node, 1)
        pairs = [(first, second)] + [(second, first)] * (node.op_type == "Mul")
        for rest, number in pairs:
            factor = self._number(number)
            if factor is not None and self._view.scalar(rest) is None:
                return rest, _FACTORS[node.op_type](factor)
        return None, 1.0

    def _number(self, value: ir.Value) -> float | None:
        array = self._view.wide_array(value)
        if array is None or array.size != 1 or array.ndim > _RANK:
            return None
        number = float(array.reshape(()))
        return number if np.isfinite(number) and number != 0 else None

    def _unscaled(self, value: ir.Value) -> tuple[ir.Value, float]:
        """Return what numbers multiply, and their product."""
        factor, node = 1.0, value.producer()
        while node is not None and not node.domain and node.op_type in _FACTORS:
            rest, more = self._factor(node)
            if rest is None:
                break
            value, factor, node = rest, factor * more, rest.producer()
        return value, factor

    def _keys(self, value: ir.Value) -> tuple[HeadRows, float]:
        """Return the keys whose transpose a value [B, N, H, T] is, and their factor."""
        value, factor = self._unscaled(value)
        turned = computed_by(value, "Transpose")
        if turned is not None:
            order = order_of(turned)
            before, more = self._unscaled(known_operand(turned, 0))
            if order in _KEYS_LAST and not _KEYS_LAST[order]:
                return self._rows(before), factor * more
            if order in _KEYS_LAST:
                return HeadRows(value, before, turned=True), factor * more
        # dynamo's spelling joins batch and heads for a while
        apart = computed_by(value, "Reshape")
        turned = None if apart is None else computed_by(known_operand(apart, 0), "Transpose")
        joined = None if turned is None else computed_by(known_operand(turned, 0), "Reshape")
        if turned is None or joined is None or order_of(turned) != _TURNED:
            raise NoAttention("its keys are not transposed")
        before, more = self._unscaled(known_operand(joined, 0))
        return self._rows(before), factor * more

    def _rows(self, value: ir.Value) -> HeadRows:
        """Return rows with what they come from."""
        joined = computed_by(value, "Concat")
        if joined is not None and len(joined.inputs) == 2:
            axis = joined.attributes.get_int("axis", 0) % _RANK
            past, new = known_operand(joined, 0), known_operand(joined, 1)
            if axis == _RANK - 2 and self._view.rank(past) == _RANK:
                return HeadRows(value, _plain(new), past)
        return HeadRows(value, _plain(value))

    def _product_of(self, weights: ir.Value) -> ir.Node:
        """Return the product of the weights and the values."""
        node = only_reader(weights)
        while node is not None and operator(node) in ("Identity", "Cast") and _keeps_type(node):
            weights = node.outputs[0]
            node = only_reader(weights)
        if node is None or operator(node) != "MatMul" or node.inputs[0] is not weights:
            raise NoAttention("its weights do more than multiply the values")
        return node

    def _guarded(self, weights: ir.Value) -> ir.Value | None:
        """Return the weights with 0 instead of NaN; None without such a guard."""
        readers = {use.node for use in weights.uses()}
        guard = next((node for node in readers if operator(node) == "IsNaN"), None)
        where = None if guard is None else only_reader(guard.outputs[0])
        if (
            guard is None
            or where is None
            or operator(where) != "Where"
            or weights.is_graph_output()
        ):
            return None
        _, chosen, other = where.inputs
        fits = other is weights and self._view.scalar(chosen) == 0 and readers == {guard, where}
        return where.outputs[0] if fits else None

    def _is_finite(self, bias: ir.Value | Mask) -> bool:
        """Whether a bias is finite wherever its input is: Where of finite numbers, or stored."""
        if isinstance(bias, Mask):
            return bool(np.isfinite([bias.holds, bias.fails]).all())
        array, node = self._view.array(bias), bias.producer()
        if array is not None:
            return bool(np.isfinite(array).all())
        if node is None or node.domain:
            return False
        if node.op_type == "Where":
            return all(self._is_finite(known_operand(node, n)) for n in (1, 2))
        moves = {"Expand", "Identity", "Reshape", "Slice", "Transpose", "Unsqueeze"}
        return node.op_type in moves and self._is_finite(known_operand(node, 0))


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _keeps_type(node: ir.Node) -> bool:
    return known_operand(node, 0).dtype is node.outputs[0].dtype


def order_of(transpose: ir.Node) -> tuple[int, ...]:
    """Return the order of axes of a Transpose; () where it turns all."""
    return tuple(transpose.attributes.get_ints("perm", ()))


def _plain(value: ir.Value) -> ir.Value | None:
    """Return [B, T, N, H] whose transpose a value is, or None."""
    node = computed_by(value, "Transpose")
    if node is None or order_of(node) != HEADS_FIRST:
        return None
    return known_operand(node, 0)
