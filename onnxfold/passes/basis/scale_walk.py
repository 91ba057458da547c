"""The parts of a stream times c > 0: constants that absorb c, norms that end it, and the rest.

    RMS_(c^2 e)(c x) = RMS_e(x)        LN_(c^2 e)(c x) = LN_e(x)        (A / c) (c x) = A x

A value f(x1, x2, ..) times c is f(c x1, c x2, ..) where f is homogeneous in all of them together (a
sum), and f(c x1, x2) where it is so in each alone (a product): a factor of the stream carries c,
otherwise a constant absorbs it. Values computed otherwise (by an activation) or given (an input)
are unchanged, followed by a product with c.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, ModelInfo, Reader
from onnxfold.graph.channels import SCALAR
from onnxfold.graph.operands import operand
from onnxfold.norms import NormForm, NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.families.transfer import refuse, refuse_value
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.row import Elements, Family
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.streams.obstacles import refuse_foreign
from onnxfold.streams.stream_walk import BasisWalk

_EVERY = Fiber(())  # a scale is along no axis


@dataclass(frozen=True, slots=True, eq=False)
class ScaledConstant:
    """A constant that takes c^power, for one of its readers, so that what ``node`` gives does."""

    root: EditPlace
    power: int
    node: ir.Node


class ScaleWalk(BasisWalk):
    """Finds all values that are scaled by c when one is, and how.

    ``constants`` take a power of c; a product with c follows each ``opened`` value, for the named
    readers; the norms ``ending`` take c^2 into their epsilon.
    """

    change = "times a power of two"

    def __init__(self, info: ModelInfo, transfers: ModelTransfers, sites: Iterable[NormSite]):
        super().__init__(info, transfers, tuple(sites))
        self.constants: list[ScaledConstant] = []
        self.opened: dict[ir.Value, list[Reader]] = {}
        self.ending: dict[ir.Value, NormSite] = {}
        self._products: dict[ir.Node, int | None] = {}  # factors of the stream, None: undecided
        self._layers: list[Reader] = []
        self._entries: set[ir.Value | None] = set()
        self._asked: dict[ir.Value, list[Reader]] = defaultdict(list)

    def find(self, value: ir.Value) -> Refusal | None:
        """Find the stream of what a norm reads, or say what must see it as it is."""
        why = self.run(Point(value, _EVERY)) or self._settle_products()
        if why is None:
            self._settle_layers()
        return why

    @property
    def members(self) -> list[ir.Value]:
        """The values that are times c in the place of what they were."""
        return [p.value for p in self.stream.values if p.value not in self.opened]

    def open_behind(self, constant: ScaledConstant) -> bool:
        """Append a product with c to a node instead of scaling its only constant, if possible."""
        node = constant.node
        alone = [each for each in self.constants if each.node is node] == [constant]
        read = any(self.holds(value) for value in node.inputs)
        if constant.power != 1 or not alone or read or len(node.outputs) != 1:
            return False
        self.constants.remove(constant)
        self.opened[node.outputs[0]] = list(self.info.readers(node.outputs[0]))
        return True

    def refuse_place(self, point: Point) -> Refusal | None:
        """Take floats, wherever their channels are."""
        if point.value.dtype in FLOATS:
            return None
        return refuse_value(RefusalCode.UNSUPPORTED_TYPE, point.value, "does not contain floats")

    def refuse_second(self, known: Point) -> Refusal | None:
        """Take a value again: a scale is the same along every fiber."""
        del known
        return None

    def backward(self, point: Point) -> Refusal | None:
        """Take what a value is computed from, or let a product with c stand behind it."""
        value, node = point.value, point.value.producer()
        if node is None or self._is_opaque(node, value):
            self._entries.add(value)
            self.opened[value] = self._asked[value]
            return None
        self.stream.values.append(point)
        others = node.outputs if facets.scales_every_output(row_of(node)) else ()
        why = self._visit_all(each for each in others if each.uses())
        if row_of(node).alone:
            self._products.setdefault(node, None)
            return why
        data = facets.data_inputs(row_of(node), len(node.inputs))
        return why or self._take(node, self._affine_inputs(node) or data)

    def _is_opaque(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether no operand of a node can be multiplied instead of its result."""
        site = self.norms.get(node)
        if site is not None and site.form is not NormForm.DECOMPOSED:
            return value is not site.output or not self._affine_inputs(node)
        if node in self.owners and row_of(node).family is Family.QUOTIENT:
            return True  # a norm's, whose divisor takes c as well
        alike = value is node.outputs[0] or facets.scales_every_output(row_of(node))
        return not alike or not self._is_homogeneous(node)

    def _is_homogeneous(self, node: ir.Node) -> bool:
        """Whether f(c x) = c f(x) for c > 0, of all that it reads together or of each alone."""
        level = elements_of(self.info, node)[0]
        return level <= Elements.HOMOGENEOUS or row_of(node).family is Family.CENTRING

    def _affine_inputs(self, node: ir.Node) -> tuple[int, ...]:
        """Return the inputs of gamma and beta where a norm is one operator; () without gamma."""
        site = self.norms.get(node)
        if site is None or site.form is NormForm.DECOMPOSED or site.gamma is None:
            return ()
        parts = [part for part in (site.gamma, site.beta) if isinstance(part, ir.Value)]
        return tuple(i for i, v in enumerate(node.inputs) if any(v is part for part in parts))

    def _visit_all(self, values: Iterable[ir.Value]) -> Refusal | None:
        refusals = (self.visit(Point(value, _EVERY)) for value in values)
        return next((why for why in refusals if why is not None), None)

    def _take(self, node: ir.Node, indices: Iterable[int]) -> Refusal | None:
        """Let operands be times c: constants take it."""
        for index in indices:
            value = operand(node, index)
            if value is None or self._scale(node, index, 1):
                continue
            self._asked[value].append(Reader(node, index))
            why = refuse_foreign(self.info, node, value) or self._visit_all([value])
            if why is not None:
                return why
        return None

    def _scale(self, node: ir.Node, index: int, power: int) -> bool:
        """Let an operand take a power of c, if it is a constant."""
        root = self._root(node, index)
        if root is not None:
            self.constants.append(ScaledConstant(root, power, node))
        return root is not None

    def _root(self, node: ir.Node, index: int) -> EditPlace | None:
        found = root_of(self.info, Reader(node, index), SCALAR, SCALAR)
        return None if isinstance(found, Refusal) else found

    def _settle_products(self) -> Refusal | None:
        """Find the one factor of each product that is times c: of the stream, or a constant."""
        while waiting := [node for node, count in self._products.items() if count is None]:
            for node in [n for n in waiting if self._count(n)] or waiting[:1]:
                found = self._products[node] = self._count(node)
                why = self._settle(node, found) or self.go_on()
                if why is not None:
                    return why
        for node, count in self._products.items():
            if self._count(node) != count or (count or 0) > 1:
                return refuse(RefusalCode.EXACT_READER, node, "multiplies the stream by itself")
        return None

    def _settle(self, node: ir.Node, count: int) -> Refusal | None:
        row = row_of(node)
        divides = row.family is Family.QUOTIENT
        if not count:
            taken = any(self._scale(node, index, 1) for index in self._fewest_first(node))
            if not taken and not (divides and self._scale(node, 1, -1)):
                value = node.outputs[0]
                self.opened[value] = list(self.info.readers(value))
                return None
        return None if row.bias is None else self._take(node, (row.bias,))

    def _fewest_first(self, node: ir.Node) -> list[int]:
        """Return the factors of a product by their stored numbers: one large factor is a scalar."""

        def stored(index: int) -> float:
            root = self._root(node, index)
            tensor = None if root is None else self.info.tensor(root.value)
            return inf if tensor is None else tensor.size

        return sorted(self._factors(node), key=stored)

    def _factors(self, node: ir.Node) -> tuple[int, ...]:
        return facets.data_inputs(row_of(node), len(node.inputs))

    def _count(self, node: ir.Node) -> int:
        """Count the factors of a product that are times c as they stand; a norm sees no c."""
        given = [operand(node, index) for index in self._factors(node)]
        normalised = {site.input for site in self.owners.get(node, ())}
        return sum(self.holds(v) and v not in normalised and v not in self._entries for v in given)

    def _settle_layers(self) -> None:
        """Let weights of layers that read the stream, and give none of its values, take 1 / c."""
        for reader in self._layers:
            node = reader.node
            if node not in self._products:
                self._scale(node, 1 - reader.index, -1)

    def forward(self, point: Point) -> Refusal | None:
        """Take the readers of a value; only those that ask for it read what is opened."""
        return None if point.value in self.opened else super().forward(point)

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Take a reader into the stream, let it undo c, or say that it must see the value."""
        node, row = reader.node, row_of(reader.node)
        sites = self.norms_of(point.value, node)
        no_number = facets.reads_type_alone(row, reader.index) or not facets.reads_elements(row)
        if self.info.is_dead(node) or no_number:
            return None
        if sites:
            return next((why for why in map(self._end, sites) if why is not None), None)
        foreign = refuse_foreign(self.info, node, point.value)
        if foreign is not None:
            return foreign
        data = facets.data_inputs(row, len(node.inputs))
        if row.layer is not None and reader.index in (0, 1) and self._root(node, 1 - reader.index):
            self._layers.append(reader)
            return None
        if not self._is_homogeneous(node) or reader.index not in (*data, row.bias):
            return self.refuse_reader(point, reader)
        outputs = node.outputs if facets.scales_every_output(row) else node.outputs[:1]
        return self._visit_all(each for each in outputs if each.uses() or each.is_graph_output())

    def _end(self, site: NormSite) -> Refusal | None:
        """Note a norm that does not see c, or say why it does."""
        if site.kind is NormKind.DYT or not site.size or site.escaping:
            code = RefusalCode.STATISTICS_READ if site.escaping else RefusalCode.NOT_CENTRED_NORM
            what = "gives its statistics to others" if site.escaping else "sees the size of what"
            sentence = f"norm '{site.name}' {what}{'' if site.escaping else ' it reads'}"
            return Refusal(code, sentence, (site.name,))
        if any(part is site.input for part in (site.gamma, site.beta)):
            sentence = f"norm '{site.name}' has what it reads as its gamma or beta too"
            return Refusal(RefusalCode.DYNAMIC_WEIGHT, sentence, (site.name,))
        self.ending[site.output] = site
        return None
