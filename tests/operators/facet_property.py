"""What the facets of a row say of one node, compared with what the numbers do.

Elements: the level that ``elements_of`` gives, on the data inputs together or on each alone.
Channels: a diagonal and a shift along channels pass as ``react`` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from onnxfold.graph import AxisBlock
from onnxfold.graph.channels import Channels
from onnxfold.operators import facets
from onnxfold.operators.families.reactions import Passes, react
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.row import Elements
from onnxfold.operators.table import row_of
from onnxfold.shapes.symbolic import SymbolicShapes
from tests.operators.law_property import UnsoundError
from tests.operators.sample import Array, Draw, Operand, Sample

__all__ = ["check_facets"]

_FACTOR = 2.5


def check_facets(sample: Sample, draw: Draw) -> Counter[str]:
    """Raise UnsoundError where a facet is wrong on the sample; count what was claimed."""
    return _Check(sample, draw).run()


class _Check:
    def __init__(self, sample: Sample, draw: Draw):
        self.sample, self.draw = sample, draw
        self.view = sample.view()
        self.node = next(iter(self.view.nodes()))
        self.row = row_of(self.node)
        self.f = sample.evaluator()
        self.x = sample.arrays()
        self.y = self.f(self.x)
        self.tally: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        self.level, _ = elements_of(self.view, self.node)
        self._shape()
        if self.row.decides:
            self._claim("decides", self.y[0].dtype == np.bool_)
        if self.row.adds_first:
            self._adds_first()
        for index, array in enumerate(self.x):
            if array is not None and facets.reads_type_alone(self.row, index):
                moved = [array + 1 if i == index else x for i, x in enumerate(self.x)]
                self._claim("reads its type alone", np.array_equal(self.f(moved)[0], self.y[0]))
        for chosen in self._chosen() if self.level < Elements.OPAQUE else ():
            self._elements(chosen)
        if self.level <= Elements.COPIES:
            self._copies()
        if facets.keeps_order(self.row) and self.level <= Elements.PERMUTES:
            x, y = self._array(0), self.y[0]
            same = np.array_equal(y.reshape(-1), x.reshape(-1).astype(y.dtype))
            self._claim("in the same order", same)
        if facets.passes_scale(self.row) and self.row.layer is None:
            self._channels()
        return self.tally

    def _claim(self, what: str, holds: object) -> None:
        self.tally[what] += 1
        if not holds:
            shapes = [None if x is None else x.shape for x in self.x]
            raise UnsoundError(f"{self.sample} {shapes}: not {what}")

    def _chosen(self) -> list[tuple[int, ...]]:
        """The sets of inputs that the level is about."""
        given = [i for i, x in enumerate(self.x) if x is not None]
        data = [i for i in facets.data_inputs(self.row, len(self.x)) if i in given]
        floats = all(self._array(i).dtype.kind == "f" for i in data)
        if not self.row.alone:
            return [tuple(data)] if floats else []
        bias = [self.row.bias] if self.row.bias in given else []
        return [(index, *bias) for index in data] if floats else []

    def _array(self, index: int) -> Array:
        array = self.x[index]
        assert array is not None
        return array

    def _with(self, chosen: tuple[int, ...], change: Callable[[Array], Array]) -> list[Array]:
        arrays = list(self.x)
        for index in chosen:
            old = self._array(index)
            arrays[index] = change(old).astype(old.dtype)
        results = self.f(arrays)
        return results if facets.scales_every_output(self.row) else results[:1]

    def _near(self, found: list[Array], wanted: list[Array], size: float = 1.0) -> bool:
        """Whether all are equal up to the roundings of sums of fewer than 100 numbers."""
        bound = self.sample.tolerance * 1e2 * size
        for a, b in zip(found, wanted, strict=False):
            wide, other = a.astype(np.float64), b.astype(np.float64)
            scale = max(1.0, float(np.abs(other).max(initial=0)))
            if a.shape != b.shape or not np.all(np.abs(wide - other) <= bound * scale):
                return False
        return True

    def _elements(self, chosen: tuple[int, ...]) -> None:
        scaled = self._with(chosen, lambda x: _FACTOR * x)
        self._claim("homogeneous", self._near(scaled, [_FACTOR * y for y in self.y]))
        if self.level > Elements.LINEAR:
            return
        moves = {i: self.draw.normal(self._array(i).shape) for i in chosen}
        sums, parts = list(self.x), list(self.x)
        for i, move in moves.items():
            parts[i] = move.astype(self._array(i).dtype)
            sums[i] = self._array(i) - 2 * parts[i]
        total = [y - 2 * z.astype(y.dtype) for y, z in zip(self.y, self.f(parts), strict=True)]
        every = facets.scales_every_output(self.row)
        self._claim("linear", self._near(self.f(sums) if every else self.f(sums)[:1], total, 10))
        if self.level <= Elements.AVERAGES:
            moved = self._with(chosen, lambda x: x + 3.0)
            size = 10.0
            if self.sample.attributes.get("mode") == "cubic":
                # onnx's evaluator rounds four weights per axis to float32, a few times each.
                size = 2.0**-24 * 4 * 8 * self.y[0].ndim / (1e2 * self.sample.tolerance)
            self._claim("averages", self._near(moved, [y + 3.0 for y in self.y], size))

    def _copies(self) -> None:
        data = [self._array(i) for i in facets.data_inputs(self.row, len(self.x))]
        numbers = np.concatenate([x.reshape(-1) for x in data]).astype(self.y[0].dtype)
        outputs = self.y if facets.scales_every_output(self.row) else self.y[:1]
        self._claim("copies", all(np.isin(y, numbers).all() for y in outputs))
        if self.level <= Elements.PERMUTES:
            same = np.array_equal(np.sort(self.y[0].reshape(-1)), np.sort(numbers))
            self._claim("permutes", same)

    def _channels(self) -> None:
        """A random digit of each data input: where it passes, a diagonal and a shift follow."""
        for index in facets.data_inputs(self.row, len(self.x)):
            if index >= len(self.x) or self.x[index] is None or not self._array(index).ndim:
                continue
            channels = self._digits(self._array(index).shape)
            value = self.node.inputs[index]
            reaction = react(self.view, self.node, index, channels) if value is not None else None
            if isinstance(reaction, Passes):
                self._passes(reaction, channels)

    def _digits(self, shape: tuple[int, ...]) -> Channels:
        axis = self.draw.number(0, len(shape) - 1)
        size = shape[axis]
        divisors = [n for n in range(1, size + 1) if size % n == 0] or [1]
        inner = self.draw.pick(divisors)
        length = self.draw.pick([n for n in divisors if (size // inner) % n == 0] or [1])
        return Channels.of([AxisBlock(axis, inner, length, size // inner // length)])

    def _passes(self, reaction: Passes, channels: Channels) -> None:
        g = self.draw.normal((channels.size,)) + 2.0
        s = self.draw.normal((channels.size,))
        shifted = reaction.shift_refusal is None
        arrays = list(self.x)
        for index in reaction.jointly:
            old = self._array(index)
            where = self._places(reaction, channels, index)
            if where is None:
                return
            new = old * where.spread(g, old.shape)
            arrays[index] = (new + where.spread(s, old.shape) * shifted).astype(old.dtype)
        results = self.f(arrays)
        for position, outer in reaction.outputs:
            y = self.y[position]
            wanted = y * outer.spread(g, y.shape) + outer.spread(s, y.shape) * shifted
            self._claim("scale passes", self._near([results[position]], [wanted], 10))
            self.tally["shift passes"] += shifted

    def _places(self, reaction: Passes, channels: Channels, index: int) -> Channels | None:
        """The channels of another joint input, which must come out at the same place."""
        ndim = self._array(index).ndim
        for offset in range(-4, 5):
            axes = {axis: axis + offset for axis in channels.axes}
            if not all(0 <= axis < ndim for axis in axes.values()):
                continue
            moved = channels.renamed(axes)
            other = react(self.view, self.node, index, moved)
            if isinstance(other, Passes) and other.outputs == reaction.outputs:
                return moved
        return None

    def _adds_first(self) -> None:
        for index in self.row.adds_first:
            b = self._array(1 - index)
            arrays = list(self.x)
            arrays[index], arrays[1 - index] = self._array(index) + 0.75, b - 0.75
            self._claim("adds first", self._near(self.f(arrays), self.y))

    def _shape(self) -> None:
        if facets.same_shape(self.row):
            self._claim("same shape", self.y[0].shape == self._array(0).shape)
        count = facets.broadcasts(self.row)
        if count is not None:
            shapes = [x.shape for x in self.x[: count or None] if x is not None]
            self._claim("broadcasts", self.y[0].shape == np.broadcast_shapes(*shapes))
        known = all(
            x is None or o.dims == x.shape for x, o in zip(self.x, self._operands(), strict=False)
        )
        if facets.reduces(self.row) and known:
            dims = SymbolicShapes(self.view).reduced(self.node)
            self._claim("reduces", dims == self.y[0].shape)

    def _operands(self) -> list[Operand]:
        return [operand for operand in self.sample.operands if operand is not None]
