"""Regions around a pair of values: nodes, related values at the leaves, and numbers."""

from collections.abc import Callable, Mapping
from enum import IntEnum, auto

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import run_nodes
from onnxfold.graph import ModelInfo, Shape, constant_tensor
from onnxfold.graph.equality import same_numbers
from onnxfold.graph.traversal import bodies
from onnxfold.proof.candidates import Correspondence
from onnxfold.proof.cone import Cone, Unprovable, cone_of
from onnxfold.proof.coverage import READ_NO_NUMBERS
from onnxfold.proof.draws import ERRORS
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.relation import ANY, EQUAL, Relation
from onnxfold.proof.sizes import Drawn
from onnxfold.proof.stored import exact_numbers

_FEW, _MOST = 1 << 16, 1 << 24  # elements
_FEW_NODES = 16  # a region of so few costs little


class Numbers(IntEnum):
    """Which constants a test uses with their numbers (later kinds include earlier).

    Others are drawn. Next to huge numbers, such as a mask's, others vanish; a LARGE one may be a
    variance. Where only SCALARS have theirs, equal layers with other weights cost one test. ALL
    include large weights, which may have been joined.
    """

    SCALARS = auto()
    VECTORS = auto()
    MATRICES = auto()
    LARGE = auto()
    ALL = auto()

    @property
    def largest(self) -> float:
        """The largest number: 2^-30 of the tested value is 256 times the tolerance of a test."""
        return 2.0**30 if self >= Numbers.LARGE else 2.0**20


_MOST_AXES = {Numbers.SCALARS: 0, Numbers.VECTORS: 1}


class Neighbourhood:
    """Builder of regions of two models; ``related`` grows during the walk.

    ``spelled``: the models are two spellings of one function, with the same weights.
    """

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        match: Correspondence,
        related: Mapping[tuple[ir.Value, ir.Value], Relation],
        *,
        spelled: bool,
    ):
        self._before, self._after, self._spelled = before, after, spelled
        self._match, self._related = match, related
        self._standing: set[ir.Value] = set()
        self._sizes: dict[ir.Value, bool] = {}
        self._order = tuple({n: i for i, n in enumerate(view.nodes())} for view in (before, after))

    def stand(self, u: ir.Value) -> None:
        """Record that a value corresponds to an original."""
        self._standing.add(u)

    def computes(self, u: ir.Value, stored: ir.TensorProtocol) -> bool:
        """Whether the constants of the original yield the numbers of a tensor, in its type."""
        try:
            cone = cone_of(self._before, self._order[0], u, lambda *_: False)
            tensors = {leaf: self._before.tensor(leaf) for leaf in cone.leaves}
            given = {leaf: tensor.numpy() for leaf, tensor in tensors.items() if tensor is not None}
            found = run_nodes(self._before.model, list(cone.nodes), given)[u]
        except ERRORS:
            return False
        numbers = stored.numpy()
        return same_numbers(found.astype(numbers.dtype), numbers)

    def alone(self, value: ir.Value, depth: int, *, actual: Numbers = Numbers.VECTORS) -> Region:
        """Return the nodes of the rewritten model upstream of a value; ``actual``: see region.

        The values that bodies compute are arbitrary, wherever they are read.
        """
        try:
            return self._alone(value, depth, actual, self._is_size)
        except Unprovable:
            return self._alone(value, depth, actual, self._match.is_constant)

    def _alone(
        self, value: ir.Value, depth: int, actual: Numbers, constant: Callable[[ir.Value], bool]
    ) -> Region:
        cone = cone_of(
            self._after, self._order[1], value,
            lambda leaf, at: (at > 0 and _comes_of_a_body(leaf))
            or (at >= depth and not constant(leaf)),
        )  # fmt: skip
        leaves = []
        for leaf in cone.leaves:
            array, _ = self._numbers(self._after, leaf, actual=actual)
            leaves.append(self._leaf(None, leaf, EQUAL, None, array))
        model = self._after.model
        shapes = _shapes(self._after, cone)
        return Region(model, model, Cone((), ()), cone, tuple(leaves), (None, value), shapes)

    def region(
        self,
        u: ir.Value,
        v: ir.Value,
        reach: tuple[int, int, bool],
        drawn: set[ir.Value],
        *,
        actual: Numbers = Numbers.VECTORS,
    ) -> Region:
        """Return a region; constants that are not ``actual`` are ``drawn``.

        It extends to the shapes from which sizes are computed, if these are known: random numbers
        are not sizes. Raises Unprovable if v is computed from a counterpart of u and u must be
        traced further, to inputs of the model: no random number would be in both.
        """
        found = set[ir.Value]()
        try:
            region = self._region(u, v, reach, found, actual, self._is_size)
        except Unprovable:
            found.clear()
            region = self._region(u, v, reach, found, actual, self._match.is_constant)
        drawn |= found
        return region

    def _is_size(self, value: ir.Value) -> bool:
        """Whether a number or a vector is computed only from constants and shapes."""
        if value not in self._sizes:
            constant = constant_tensor(value) is not None or self._match.is_constant(value)
            self._sizes[value] = constant or self._comes_of_shapes(value)
        return self._sizes[value]

    def _comes_of_shapes(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or bodies(node):
            return False
        if node.op_type in READ_NO_NUMBERS:
            return True
        shape = value.shape
        known = shape is not None and len(shape) <= 1
        return known and all(v is None or self._is_size(v) for v in node.inputs)

    def _region(
        self,
        u: ir.Value,
        v: ir.Value,
        reach: tuple[int, int, bool],
        drawn: set[ir.Value],
        actual: Numbers,
        constant: Callable[[ir.Value], bool],
    ) -> Region:
        """Return a region that extends through values that are ``constant``."""
        depth, deep, strict = reach
        originals = self._match.originals

        def is_related(value: ir.Value) -> bool:
            original = originals.get(value)
            if value is v:
                return original is not u and bool(self._related_to(value))
            return original is not None and self._related.get((original, value), ANY).known

        new = cone_of(
            self._after, self._order[1], v,
            lambda value, at: at >= depth and not constant(value) and is_related(value),
        )  # fmt: skip
        standing, stored = self._standing, {w for v in new.leaves for w in self._computed_to(v)}
        preferred = {w for leaf in new.leaves for w in self._related_to(leaf)}
        if strict and deep and u in preferred:
            raise Unprovable(f"'{v.name}' is computed from what stands for the same value")
        old = cone_of(
            self._before, self._order[0], u,
            lambda value, at: value in stored or (not constant(value)
            and (at >= min(deep, 1) and value in preferred if strict
                 else at >= deep and value in standing and value is not u)),
        )  # fmt: skip
        alone = self._read_by_one((u, old), (v, new)) if len(old.nodes) > _FEW_NODES else None
        if alone is not None:
            raise Unprovable(f"'{alone.name}' has no counterpart that the other model reads")
        leaves = self._leaves(old, new, drawn, actual)
        shapes = (*_shapes(self._before, old), *_shapes(self._after, new))
        return Region(self._before.model, self._after.model, old, new, leaves, (u, v), shapes)

    def _related_to(self, v: ir.Value) -> list[ir.Value]:
        """Return the originals to which a value is known to correspond."""
        u = self._match.originals.get(v)
        found = [] if u is None else [u]
        return [w for w in found if self._related.get((w, v), ANY).known]

    def _computed_to(self, v: ir.Value) -> list[ir.Value]:
        """Return the constant expression of the original whose numbers a tensor stores."""
        u = self._match.originals.get(v)
        if not self._spelled or u is None or self._before.tensor(u) is not None:
            return []
        equal = self._after.tensor(v) is not None and self._related.get((u, v), ANY).equal
        return [u] if equal and self._match.is_constant(u) else []

    def _read_by_one(
        self, first: tuple[ir.Value, Cone], second: tuple[ir.Value, Cone]
    ) -> ir.Value | None:
        """Return a leaf on which the value of one cone depends, and the other's cannot, or None.

        A test would draw it for one model alone, and fail after much work on large cones.
        """
        (u, old), (v, new) = first, second
        originals = self._match.originals
        known = {originals.get(leaf) for leaf in new.leaves}
        lost = (leaf for leaf in old.leaves if leaf not in known)
        ends = [(u, old, leaf) for leaf in lost if self._before.tensor(leaf) is None]
        added = (leaf for leaf in new.leaves if originals.get(leaf) not in old.leaves)
        ends += [(v, new, leaf) for leaf in added if self._after.tensor(leaf) is None]
        return next((leaf for end, cone, leaf in ends if _depends(end, cone, leaf)), None)

    def _leaves(
        self, old: Cone, new: Cone, drawn: set[ir.Value], actual: Numbers
    ) -> tuple[Leaf, ...]:
        leaves, read, wanted = [], set(old.leaves), dict.fromkeys(old.leaves)
        for v in new.leaves:
            u = self._match.originals.get(v)
            if self._after.tensor(v) is not None:
                # The counterpart of an expression is used as it is if it is computed as before.
                known = u in read or self._before.tensor(u) is not None
                leaves.append(self._constant_leaf(u if known else None, v, drawn, actual))
            elif u is None or u not in read:
                leaves.append(self._leaf(None, v, EQUAL))
            else:
                leaves.append(self._leaf(u, v, self._related.get((u, v), ANY)))
            if leaves[-1].u is not None:
                wanted.pop(leaves[-1].u, None)
        for u in wanted:
            if self._before.tensor(u) is not None:
                array, _ = self._numbers(self._before, u, actual=actual)
                if array is None:
                    drawn.add(u)
                leaves.append(self._leaf(u, None, EQUAL, array))
                continue
            leaves.append(self._leaf(u, None, EQUAL))
        return tuple(leaves)

    def _constant_leaf(
        self, u: ir.Value | None, v: ir.Value, drawn: set[ir.Value], actual: Numbers
    ) -> Leaf:
        relation = ANY if u is None else self._related.get((u, v), ANY)
        if u is not None and (relation.fiber is not None or relation.short is not None):
            return self._leaf(u, v, relation)
        alone = Numbers.MATRICES if u is None else actual
        given, slack = self._numbers(self._after, v, actual=max(actual, alone))
        if u is None:
            return self._leaf(None, v, EQUAL, None, given, slack)
        if relation.equal:
            if given is None:
                drawn.add(v)
            return self._leaf(u, v, relation, given)
        array, _ = self._numbers(self._before, u, actual=actual)
        unseen = relation.r is not None and not np.any(given)  # a scale of zeros
        if array is None or given is None or unseen:
            drawn.add(v)
            return self._leaf(u, v, relation)
        return self._leaf(u, v, relation, array, given, slack)

    def _leaf(
        self,
        u: ir.Value | None,
        v: ir.Value | None,
        relation: Relation,
        array: Drawn | None = None,
        given: Drawn | None = None,
        slack: float = 0.0,
    ) -> Leaf:
        shape = None if u is None else _shape(self._before, u)
        if relation.short is None and v is not None and (shape is None or None in shape):
            other = _shape(self._after, v)
            shape = shape if other is None else other
        value = u if u is not None else v
        if shape is None or value is None:
            raise Unprovable(f"'{value.name if value else None}' has an unknown shape")
        return Leaf(u, v, relation, shape, value.dtype, array, given, None, slack)

    def _numbers(
        self, view: ModelInfo, value: ir.Value, *, actual: Numbers
    ) -> tuple[Drawn | None, float]:
        """Return the numbers of a constant for a test; None if any will do, so that it is drawn.

        A matrix may have any numbers, and so may one whose numbers, such as a mask's, would make
        others vanish.
        """
        tensor = view.tensor(value)
        if tensor is None:
            return None, 0.0
        if not tensor.dtype.is_floating_point():
            return tensor.numpy(), 0.0
        axes = sum(dim > 1 for dim in tensor.shape.numpy())
        most = _MOST if actual is Numbers.ALL else _FEW
        if tensor.size > most or axes > _MOST_AXES.get(actual, axes):
            return None, 0.0
        numbers, slack = exact_numbers(tensor)
        wide = np.abs(numbers.astype(np.float64))
        if np.any(np.isfinite(wide) & (wide > actual.largest)):
            return None, 0.0
        return numbers, slack


def _depends(value: ir.Value, cone: Cone, leaf: ir.Value) -> bool:
    """Whether the value of a cone depends on a leaf's numbers, as far as its nodes can say.

    A first output is taken to depend on all inputs, a further one on none: the keys that an
    attention hands on need no query.
    """
    found = {leaf}
    for node in cone.nodes:
        others = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        if not (others or node.op_type in READ_NO_NUMBERS or found.isdisjoint(node.inputs)):
            found.add(node.outputs[0])
    return value in found


def _comes_of_a_body(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and bool(bodies(node))


def _shape(view: ModelInfo, value: ir.Value) -> Shape | None:
    tensor = view.tensor(value)
    return view.shape(value) if tensor is None else tuple(tensor.shape.numpy())


def _shapes(view: ModelInfo, cone: Cone) -> tuple[Shape, ...]:
    values = (*cone.leaves, *(value for node in cone.nodes for value in node.outputs))
    shapes = (_shape(view, value) for value in values)
    return tuple(shape for shape in shapes if shape is not None)
