"""A region: the nodes of both models between related values and one pair not yet related.

The float64 interpreter runs it on random values that satisfy the relations of its leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import NodeRuns
from onnxfold.graph import Fiber, Shape, node_label
from onnxfold.graph.equality import numbers_key
from onnxfold.proof.cone import Cone, Unprovable
from onnxfold.proof.coverage import Coverage
from onnxfold.proof.leaf import MAY_BE_FLOATS, Leaf
from onnxfold.proof.relation import Float64
from onnxfold.proof.sizes import SAMPLINGS, Drawn, Sizes, broadcast_sizes, reduced, symbols

_FEW_ELEMENTS = 1 << 15
_QUICK_ELEMENTS = 1 << 23  # in total
MOST_ELEMENTS = 1 << 22  # of a leaf; smaller sizes are tried beyond this


Pair = tuple[Float64, Float64]
_LEAST = 5  # every test reaches these positions
_BEYOND = 2**31 - 1  # to the end, not a position
_FEW = 64
_NUMBERS = frozenset({ir.AttributeType.INT, ir.AttributeType.FLOAT})
_LISTS = frozenset({ir.AttributeType.INTS, ir.AttributeType.FLOATS})


@dataclass(frozen=True, eq=False)
class Region:
    """Both cones, the leaves of both, and the pair (u, v) that they compute.

    ``shapes``: of all values of both, as far as known. ``shortest``: the least size of an axis
    along which drawn integers may be positions.
    """

    before: ir.Model
    after: ir.Model
    old: Cone
    new: Cone
    leaves: tuple[Leaf, ...]
    pair: tuple[ir.Value | None, ir.Value]
    shapes: tuple[Shape, ...]
    shortest: int = 2

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal keys mean equal tests."""
        numbers: dict[ir.Value | None, int] = {None: -1}
        for number, leaf in enumerate(self.leaves):
            for value in (leaf.u, leaf.v):
                if value is not None:
                    numbers[value] = number
        cones = (self.old, self.new)
        parts = [_signature(cone, numbers) for cone in cones]
        ends = tuple(map(_place, self.pair, cones, (numbers, numbers)))
        return (*parts, ends, tuple(leaf.key for leaf in self.leaves))

    def all_finite(self) -> Region | None:
        """Return the region with 1 for non-finite numbers in its constants.

        None if there are none.
        """
        leaves = tuple(leaf.all_finite() for leaf in self.leaves)
        same = all(a.key == b.key for a, b in zip(leaves, self.leaves, strict=True))
        return None if same else replace(self, leaves=leaves)

    def of_single_rows(self) -> Region | None:
        """Return the region whose drawn integers may be positions along axes of one element too.

        Returns None if it lacks such integers or axes.
        """
        drawn = any(not leaf.fixed and leaf.dtype not in MAY_BE_FLOATS for leaf in self.leaves)
        single = any(1 in leaf.shape for leaf in self.leaves if leaf.dtype in MAY_BE_FLOATS)
        return replace(self, shortest=1) if drawn and single else None

    def with_reciprocals(self) -> Region | None:
        """Return the region in which the original multiplies by 1 / n, n a number of elements.

        A mean may be written as a sum times 1 / n, rounded to the type of the model. None if the
        original alone reads no such constant.
        """
        sizes = frozenset(_counts(self.shapes))
        return self._with(leaf.with_reciprocal(sizes) for leaf in self.leaves)

    def as_stored(self) -> Region | None:
        """Return the region in which constants read only by the original are rounded as stored.

        The other model may contain a copy of such a constant. None if none is edited.
        """
        return self._with(leaf.as_stored() for leaf in self.leaves)

    def _with(self, leaves: Iterable[Leaf]) -> Region | None:
        changed = tuple(leaves)
        same = all(a is b for a, b in zip(changed, self.leaves, strict=True))
        return None if same else replace(self, leaves=changed)

    @cached_property
    def dims(self) -> frozenset[int]:
        """The known sizes of its values."""
        return frozenset(dim for shape in self.shapes for dim in shape if isinstance(dim, int))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of unknown sizes of its leaves, except those that a layer determines."""
        named = symbols(leaf.shape for leaf in self.leaves)
        demanded = self._channels()
        return tuple(name for name in named if name not in demanded)

    def _channels(self) -> dict[str, int]:
        """Return the sizes that symbols must have so that convolutions accept their inputs."""
        ends = ((value, leaf.shape) for leaf in self.leaves for value in (leaf.u, leaf.v))
        shapes = {value: shape for value, shape in ends if value is not None}
        return dict(channels for node in self.nodes for channels in _demanded(node, shapes))

    @cached_property
    def far(self) -> int:
        """The last position that may be counted along a symbolic axis; 0 for none.

        An integer that equals a known size of an axis of these values is assumed to be that size.
        """
        return max(positions(self.nodes, self.constants) - self.dims, default=0)

    def far_sizes(self, fibers: Iterable[Fiber] = ()) -> Iterator[list[Sizes]]:
        """Yield choices of sizes in which all symbols, or each in turn, exceed ``far``."""
        least = 2 * self.far + 3
        together = (tuple(range(least, least + len(SAMPLINGS[0]))), (least,))
        choices = [[self.sizes(numbers, fibers)] for numbers in together]
        one = [self.sizes(SAMPLINGS[0], fibers, {name: least}) for name in self.symbols]
        yield from (
            [sizes for sizes in each if self._may_be_run(sizes)] for each in (*choices, one)
        )

    def is_quick(self, sizes: Sizes) -> bool:
        """Whether a wrong guess about tensors of these sizes costs little time."""
        return sum(prod(sizes.of(shape)) for shape in self.shapes) <= _QUICK_ELEMENTS

    def _may_be_run(self, sizes: Sizes) -> bool:
        return sum(prod(sizes.of(shape)) for shape in self.shapes) <= MOST_ELEMENTS

    def sizes(
        self,
        numbers: tuple[int, ...],
        fibers: Iterable[Fiber] = (),
        forced: Mapping[str, int] | None = None,
        *,
        whole: bool = False,
    ) -> Sizes:
        """Return sizes, reduced for large tensors, excluding numbers that broadcast.

        ``fibers``: requested by the test; ``whole``: never reduced, because some operators fit only
        tensors of the model's sizes.
        """
        shapes = [leaf.shape for leaf in self.leaves]
        forced = forced or ({} if numbers else broadcast_sizes(shapes))
        numbers, channels = numbers or SAMPLINGS[0], self._channels()
        full = Sizes(numbers, {}, {**channels, **forced})
        drawn = [leaf.shape for leaf in self.leaves if not leaf.fixed]
        if sum(prod(full.of(shape)) for shape in drawn) <= _FEW_ELEMENTS or whole:
            return full
        if self._divides_sizes and self.is_quick(full):
            return full  # half of a smaller size is not a size of the model
        own = (fiber for leaf in self.leaves for fiber in leaf.fibers)
        smaller = self._smaller((*fibers, *own))
        fewer = {name: smaller.get(size, size) for name, size in channels.items()}
        return Sizes(numbers, smaller, {**fewer, **forced})

    @property
    def _divides_sizes(self) -> bool:
        """Whether sizes may be computed by quotients, right only for the model's sizes."""
        return any(
            node.op_type in ("Div", "Mod") and _is_number(node.outputs[0]) for node in self.nodes
        )

    def _smaller(self, fibers: Collection[Fiber]) -> dict[int, int]:
        """Return smaller sizes, for axes without numbers of constants or relations."""
        kept = {size for leaf in self.leaves for size in leaf.kept}
        parts = (fiber.part for fiber in fibers if fiber.part is not None)
        kept |= {digit.size for part in parts for digit in part.digits}
        digits = {n for fiber in fibers for b in fiber.digits for n in (b.inner, b.size, b.outer)}
        dims = self.dims | {n for n in digits if n is not None}
        integers = positions(self.nodes, self.constants, floats=True)
        while True:
            smaller = reduced(dims, integers, kept)
            sizes = Sizes((), smaller)
            unfit = [block for fiber in fibers if not sizes.fits(fiber) for block in fiber.digits]
            if not unfit:
                return smaller
            for block in unfit:
                known = (block.inner, block.size, block.outer or 1)
                kept |= {*known, prod(known)}

    @cached_property
    def alike(self) -> bool:
        """Whether both models have the same nodes; means of 0 would then change nothing."""
        names = [[node.op_identifier() for node in cone.nodes] for cone in (self.old, self.new)]
        return names[0] == names[1]

    @cached_property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of both models."""
        return (*self.old.nodes, *self.new.nodes)

    @cached_property
    def constants(self) -> tuple[Drawn, ...]:
        """The numbers of the leaves with known numbers."""
        both = [array for leaf in self.leaves for array in (leaf.array, leaf.given)]
        return tuple(array for array in both if array is not None)

    def outputs(self, old: dict[ir.Value, Drawn], new: dict[ir.Value, Drawn]) -> Pair:
        """Return u and v for values of the leaves.

        Raises Unprovable if they are empty although no axis of the model is, or if drawn indices
        reach only some of the differing elements.
        """
        u, v = self.pair
        second = self._sides[1].run(new)[v]
        if second.size == 0 and 0 not in self.dims:
            raise Unprovable("at these sizes nothing comes out")
        if u is None:
            return second, second
        return self._sides[0].run(old)[u], second

    def original(self, old: Mapping[ir.Value, Drawn]) -> Float64:
        """Return u for values of its leaves."""
        u = self.pair[0]
        if u is None:
            raise Unprovable("there is no original")
        return np.asarray(self._sides[0].run(old)[u])

    @cached_property
    def _sides(self) -> tuple[_Side, _Side]:
        return (
            _Side(self.before, self.old, self.leaves),
            _Side(self.after, self.new, self.leaves),
        )


class _Side:
    """The nodes of one model, to be run on many draws."""

    def __init__(self, model: ir.Model, cone: Cone, leaves: Iterable[Leaf]):
        ends = [(value, leaf) for leaf in leaves for value in (leaf.u, leaf.v) if value]
        differing = {value: leaf.differs_along for value, leaf in ends}
        drawn = {value for value, leaf in ends if not leaf.fixed}
        self._runs = NodeRuns(model, cone.nodes)
        self._coverage = Coverage(model, cone.nodes, differing, drawn)

    def run(self, given: Mapping[ir.Value, Drawn]) -> dict[ir.Value, Any]:
        """Return all values; raises Unprovable if indices reach some of the differing elements."""
        computed = self._runs.run(given)
        node = self._coverage.partly_read(computed)
        if node is not None:
            raise Unprovable(f"node '{node_label(node)}' may read a part of a constant alone")
        return computed


def _demanded(node: ir.Node, shapes: Mapping[ir.Value, Shape]) -> Iterator[tuple[str, int]]:
    """Yield the symbol of the channels that an ungrouped convolution reads, and their number."""
    if node.op_identifier() != ("", "Conv", "") or node.attributes.get_int("group", 1) != 1:
        return
    read, weight = (shapes.get(value, ()) if value else () for value in node.inputs[:2])
    for symbol, size in zip(read[1:2], weight[1:2], strict=False):
        if isinstance(symbol, str) and isinstance(size, int):
            yield symbol, size


def _is_number(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 0


def _counts(shapes: Iterable[Shape]) -> Iterator[int]:
    """Yield the numbers of elements of adjacent axes."""
    for shape in shapes:
        for first in range(len(shape)):
            count = 1
            for dim in shape[first:]:
                if not isinstance(dim, int):
                    break
                count *= dim
                yield count


def _place(
    value: ir.Value | None, cone: Cone, leaves: Mapping[ir.Value | None, int]
) -> tuple[int, int]:
    """Return the index of a value: of a leaf, or of a result of a node."""
    if value is None or value in leaves:
        return leaves[value], -1
    node = value.producer()
    return next(i for i, n in enumerate(cone.nodes) if n is node), value.index() or 0


def _signature(cone: Cone, numbers: Mapping[ir.Value | None, int]) -> tuple[object, ...]:
    known = dict(numbers)
    parts: list[object] = []
    for node in cone.nodes:
        inputs = tuple(known[value] for value in node.inputs)
        for output in node.outputs:
            known[output] = 10_000 + len(known)
        named = tuple(sorted((key, _text(value)) for key, value in node.attributes.items()))
        parts.append((node.op_identifier(), named, inputs, len(node.outputs)))
    return tuple(parts)


def _text(attribute: ir.Attr) -> object:
    if attribute.type is ir.AttributeType.TENSOR:
        return numbers_key(attribute.as_tensor().numpy())
    return repr(attribute.value)


def positions(
    nodes: Iterable[ir.Node], constants: Iterable[Drawn], *, floats: bool = False
) -> frozenset[int]:
    """Return integers that may be positions along an axis; from floats only on request.

    A test on shorter tensors shows nothing about the elements from such a position on. No table of
    operators is consulted: every number of an attribute and of a constant may be one.
    """
    attributes = (array for node in nodes for array in _attributes(node))
    arrays = [array for array in (*attributes, *constants) if array.dtype.kind in "iuf"]
    read = [array for array in arrays if array.dtype.kind != "f" or (floats and array.size <= _FEW)]
    return frozenset(number for array in read for number in _whole(array))


def _attributes(node: ir.Node) -> Iterator[Drawn]:
    for attribute in node.attributes.values():
        if attribute.type in _NUMBERS:
            yield np.array([attribute.value])
        elif attribute.type in _LISTS:
            yield np.array(attribute.value)
        elif attribute.type is ir.AttributeType.TENSOR:
            yield attribute.as_tensor().numpy()


def _whole(array: Drawn) -> Iterator[int]:
    sizes = np.unique(np.abs(array.astype(np.float64)))
    sizes = sizes[(sizes >= _LEAST) & (sizes < _BEYOND) & (sizes == np.floor(sizes))]
    return map(int, sizes)
