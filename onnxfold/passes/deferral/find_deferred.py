"""Norms that are deferred in the original model: 1 / s^2 of some x, and where s is restored.

Values downstream of x are computed without s, up to ends where s is multiplied, to the value or to
the other factor of a product, or where a norm with the row epsilon e / s^2 cancels it. If every
path from x has such an end, s x may be read instead of x and the ends may be removed. The spelling
need not be ours: recognition handles any spelling of 1 / s^2, with roots and reciprocals after it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.operands import operands, producer_of
from onnxfold.graph.traversal import NodeQueue
from onnxfold.norms import NORMS, EpsilonMode, NormForm, NormKind, NormSite
from onnxfold.norms.second_moments import MOMENTS, Moment, Moments, Statistic
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.flow import tables_of
from onnxfold.passes.deferral.row_scale import RowPower, RowScale, passed_on, row_powers
from onnxfold.refusal import Refusal, RefusalCode

_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare"})


@dataclass(frozen=True, slots=True, eq=False)
class DeferredSite:
    """A norm y = s x that is not computed; ``site.output`` is 1 / s^2.

    ``readers`` read x instead of y, by input; ``held`` are the values computed without s.
    ``products`` multiply a value, at their input, by a power of s, ``tables`` by a factor t that
    was multiplied by s, at their input; ``epsilons`` are the sums whose input is e / s^2, and e.
    ``nodes`` may become unused. ``refusal``: why y cannot be read again.
    """

    site: NormSite
    readers: tuple[tuple[ir.Node, int], ...]
    held: tuple[ir.Value, ...]
    products: tuple[tuple[ir.Node, int], ...]
    tables: tuple[tuple[ir.Node, int, ir.Value], ...]
    epsilons: tuple[tuple[ir.Node, int, ir.Value], ...]
    nodes: tuple[ir.Node, ...]
    refusal: Refusal | None = None


def find_deferred(info: ModelInfo) -> tuple[DeferredSite, ...]:
    """Return the deferred norms of a model, in order."""
    inside = {node for site in NORMS.of(info) for node in site.nodes}
    found: list[DeferredSite] = []
    for graph in info.graphs:
        if any(node.op_type in _REDUCTIONS and node not in inside for node in graph):
            found += _in_graph(info, graph, inside)
    return tuple(found)


def _in_graph(info: ModelInfo, graph: ir.Graph, inside: set[ir.Node]) -> Iterator[DeferredSite]:
    moments = MOMENTS.of(info)(graph)
    order = {node: number for number, node in enumerate(graph)}
    for node in graph:
        form = moments.forms.get(node.outputs[0]) if node.outputs else None
        if node.op_type != "Add" or node in inside or not isinstance(form, Moment):
            continue
        site = _site(moments, node, form)
        if site is not None:
            walk = _Walk(info, moments, site, order)
            if walk.ends:
                yield walk.result()


def _site(moments: Moments, node: ir.Node, form: Moment) -> NormSite | None:
    """Return the norm whose 1 / s^2 a node computes, if all of it is known."""
    fiber, dtype = form.over.fiber, moments.dtype(node.outputs[0])
    if form.mode is not EpsilonMode.INSIDE or form.epsilon <= 0 or form.factor <= 0:
        return None
    if form.dropped is not None or form.one_pass or fiber is None or not fiber.whole:
        return None
    if form.statistic is Statistic.SQUARED_MEAN or dtype is None or form.t.dtype is None:
        return None
    variance = form.statistic is Statistic.VARIANCE
    return NormSite(
        name=node_label(node),
        kind=NormKind.LAYER_NORM if variance else NormKind.RMS_NORM,
        form=NormForm.DECOMPOSED,
        input=form.t,
        output=node.outputs[0],
        fiber=fiber,
        size=form.over.size,
        epsilon=form.epsilon,
        nodes=(node,),
        factor=form.factor,
        compute_dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class _Root:
    """sqrt(mean(u^2) + e / s^2) with its sum, or 1 over it; ``nodes`` lead to it from u."""

    total: ir.Node
    index: int
    epsilon: ir.Value
    power: RowPower
    t: ir.Value
    inverted: bool
    nodes: frozenset[ir.Node]


class _Walk:
    """Walk over the values computed from x without s.

    ``ends``: the nodes that remove s from a value, or belong to a norm that does.
    """

    def __init__(
        self, info: ModelInfo, moments: Moments, site: NormSite, order: Mapping[ir.Node, int]
    ):
        self._info, self._moments, self._site, self._order = info, moments, site, order
        x = site.input
        rank = info.rank(x) or 0
        rows = tuple(() if axis in site.fiber.axes else (axis,) for axis in range(rank))
        self._powers = row_powers(info, site.output, rows, order)
        self._roots = self._found_roots()
        self._scales = {x: RowScale(1, rows)}
        self._made: dict[ir.Value, tuple[ir.Node, tuple[int, ...]]] = {}
        self._products: list[tuple[ir.Node, int]] = []
        self._tables: list[tuple[ir.Node, int, ir.Value]] = []
        self._epsilons: dict[ir.Node, tuple[ir.Node, int, ir.Value]] = {}
        self.ends: dict[ir.Value, set[ir.Node]] = defaultdict(set)
        self._follow()

    def _follow(self) -> None:
        queue = NodeQueue(self._order)
        queue.add_readers(self._site.input)
        for node in queue:
            scaled = {i: self._scales[v] for i, v in enumerate(node.inputs) if v in self._scales}
            passed = None if self._ends_at(node, scaled) else passed_on(self._info, node, scaled)
            if passed is None:
                continue
            for output in node.outputs:
                self._scales[output] = passed
                self._made[output] = node, tuple(scaled)
                queue.add_readers(output)

    def _ends_at(self, node: ir.Node, scaled: Mapping[int, RowScale]) -> bool:
        """Whether a node removes s from its only scaled input; record how."""
        if len(scaled) != 1:
            return False
        ((index, scale),) = scaled.items()
        value = node.inputs[index]
        if value is None or not (
            self._takes_from_operand(node, index, scale) or self._takes_from_tables(node, scaled)
        ):
            return False
        self.ends[value].add(node)
        return True

    def _takes_from_operand(self, node: ir.Node, index: int, scale: RowScale) -> bool:
        """Whether a node multiplies by s^k, or divides by a root with e / s^2k."""
        rank, divides = self._info.rank(node.outputs[0]), operator(node) == "Div"
        if rank is None or not (divides or facets.factors(row_of(node))) or (divides and index):
            return False
        value, other = node.inputs[index], node.inputs[1 - index]
        if value is None or other is None:
            return False
        power = self._powers.get(other)
        if power is not None and divides:
            power = RowPower(-power.exponent, power.rows)
        if power is not None and power.is_scale(scale, rank):
            self._products.append((node, index))
            return True
        return self._cancels(value, other, scale, inverted=not divides)

    def _takes_from_tables(self, node: ir.Node, scaled: Mapping[int, RowScale]) -> bool:
        """Whether the other factors are t s^k, with unscaled t."""
        passed = passed_on(self._info, node, scaled)
        table = None if passed is None else tables_of(self._info, node, scaled, passed)
        if table is None:
            return False
        parts = [self._without_power(node.inputs[index], table.scale) for index in table.indices]
        found = [(node, i, t) for i, t in zip(table.indices, parts, strict=True) if t is not None]
        if len(found) < len(parts):
            return False
        self._tables += found
        return True

    def _without_power(self, value: ir.Value | None, scale: RowScale) -> ir.Value | None:
        """Return t of a product t s^k."""
        product = producer_of(value)
        if product is None or not facets.factors(row_of(product)):
            return None
        for s, t in (product.inputs, product.inputs[::-1]):
            power = None if s is None else self._powers.get(s)
            if power is None or t in self._scales or t in self._powers:
                continue
            if power.is_scale(scale, len(scale.rows)):
                return t
        return None

    def _cancels(
        self, value: ir.Value, other: ir.Value, scale: RowScale, *, inverted: bool
    ) -> bool:
        """Whether a node divides by a root with e / s^2k; its other nodes read the value too."""
        root, rank = self._roots.get(other), self._info.rank(value)
        if root is None or root.inverted is not inverted or rank is None:
            return False
        if self._moments.atom(value) is not root.t or not root.power.is_inverse_square(scale, rank):
            return False
        self._epsilons[root.total] = root.total, root.index, root.epsilon
        self.ends[value] |= root.nodes
        return True

    def _found_roots(self) -> dict[ir.Value, _Root]:
        found: dict[ir.Value, _Root] = {}
        for value, power in self._powers.items():
            for use in value.uses():
                product = use.node
                epsilon = product.inputs[1 - use.idx] if operator(product) == "Mul" else None
                number = self._info.scalar(epsilon)
                if epsilon is not None and number is not None and number > 0:
                    self._add_roots(product.outputs[0], epsilon, power, found)
        return found

    def _add_roots(
        self, scaled: ir.Value, epsilon: ir.Value, power: RowPower, found: dict[ir.Value, _Root]
    ) -> None:
        """Add the roots of sums of e / s^2k and a mean square."""
        for use in scaled.uses():
            other = use.node.inputs[1 - use.idx] if operator(use.node) == "Add" else None
            form = None if other is None else self._moments.form(other)
            if other is None or not isinstance(form, Moment) or form.mode is not None:
                continue
            if form.statistic is not Statistic.MEAN_SQUARE or form.dropped is not None:
                continue
            nodes = {use.node, *self._between(other, form.t)}
            for root in self._behind("Sqrt", use.node.outputs[0]):
                ends = frozenset({*nodes, root})
                known = use.node, use.idx, epsilon, power, form.t
                found[root.outputs[0]] = _Root(*known, False, ends)
                for inverse in self._behind("Reciprocal", root.outputs[0]):
                    found[inverse.outputs[0]] = _Root(*known, True, ends | {inverse})

    def _behind(self, op_type: str, value: ir.Value) -> list[ir.Node]:
        return [use.node for use in value.uses() if operator(use.node) == op_type]

    def _between(self, value: ir.Value, t: ir.Value) -> set[ir.Node]:
        """Return the nodes that compute a moment of t."""
        nodes: set[ir.Node] = set()
        waiting = [value]
        while waiting:
            current = waiting.pop()
            node = current.producer()
            if node is None or node in nodes or node not in self._order:
                continue
            if self._moments.atom(current) is not t:
                nodes.add(node)
                waiting += operands(node)
        return nodes

    def result(self) -> DeferredSite:
        """Return the norm, refused if some node reads without s a value that should have it."""
        held, readers = self._held()
        changed = [*held, *self._inside_of_norms()]
        blamed = self._read_elsewhere(held, changed)
        if blamed is None and (self._site.input in self.ends or not readers):
            blamed = self._site.last
        refusal = None
        if blamed is not None:
            sentence = f"'{node_label(blamed)}' ({operator(blamed)}) reads what has no scale"
            refusal = Refusal(RefusalCode.EXACT_READER, sentence, (self._site.name,))
        return DeferredSite(
            self._site,
            tuple(sorted(readers, key=lambda reader: self._order[reader[0]])),
            tuple(changed),
            tuple(self._products),
            tuple(self._tables),
            tuple(self._epsilons.values()),
            self._disposable(),
            refusal,
        )

    def _held(self) -> tuple[list[ir.Value], set[tuple[ir.Node, int]]]:
        """Return the values between x and the ends, in order, and where they read x."""
        readers, found = set[tuple[ir.Node, int]](), set[ir.Value]()
        waiting = list(self.ends)
        while waiting:
            value = waiting.pop()
            if value in found or value is self._site.input:
                continue
            found.add(value)
            node, indices = self._made[value]
            waiting += node.outputs
            for index in indices:
                operand = node.inputs[index]
                if operand is self._site.input:
                    readers.add((node, index))
                elif operand is not None:
                    waiting.append(operand)
        return [value for value in self._made if value in found], readers

    def _inside_of_norms(self) -> list[ir.Value]:
        """Return the values upstream of the roots of the norms that cancel s."""
        inner = {node for root in self._roots.values() for node in root.nodes}
        ends = {node for nodes in self.ends.values() for node in nodes}
        nodes = sorted(inner & ends, key=self._order.__getitem__)
        return [output for node in nodes for output in node.outputs]

    def _read_elsewhere(
        self, held: Collection[ir.Value], changed: Iterable[ir.Value]
    ) -> ir.Node | None:
        """Return a node that reads a value without s, but neither passes it on nor ends it."""
        known, ends = set(held), {node for nodes in self.ends.values() for node in nodes}
        for value in changed:
            if self._info.is_output(value):
                return value.producer()
            for use in value.uses():
                handed = not known.isdisjoint(use.node.outputs)
                if not (handed or use.node in ends) and facets.reads_elements(row_of(use.node)):
                    return use.node
        return None

    def _disposable(self) -> tuple[ir.Node, ...]:
        """Return all nodes that compute s, or multiply by it, in order."""
        nodes = self._between(self._site.output, self._site.input)
        nodes |= {node for value in self._powers if (node := value.producer()) is not None}
        readable = (self._site.input, *self._powers)  # x too, which a Cast may widen for its mean
        nodes |= {use.node for value in readable for use in value.uses()}
        return tuple(sorted(nodes & self._order.keys(), key=self._order.__getitem__))
