"""The walk: for every value of the rewritten model, its relation to a value of the original.

A value's relation follows from the relations of its operands. Equal operators on equal values yield
equal values; other operators are tested: the region of nodes of both models between the pair and
related values is run on random inputs (region.py, tester.py). No operator or norm is known here by
name, and no table of the planner is used.

Every output of every graph must be equal in the end.
"""

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.equality import same_tensor
from onnxfold.graph.operands import operands
from onnxfold.graph.traversal import bodies, reached
from onnxfold.proof.candidates import Candidates, Correspondence
from onnxfold.proof.certificate import Certificate, Proof
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.coverage import READ_NO_NUMBERS
from onnxfold.proof.linear_layers import Absorber
from onnxfold.proof.mean_proofs import ZeroMeans, with_zeros
from onnxfold.proof.neighbourhood import Neighbourhood, Numbers
from onnxfold.proof.region import Region
from onnxfold.proof.relation import ANY, EQUAL, Relation
from onnxfold.proof.states import Twins
from onnxfold.proof.stored import (
    ScaledWeights,
    TurnedWeights,
    compared,
    fits,
    is_product,
    is_rounded,
    largest,
    resized,
)
from onnxfold.proof.tester import Tester
from onnxfold.proof.widening import Widening

_MOST_UNKNOWN = 6
# The extent of a region: nodes upstream of the value of the rewritten model and of the original; an
# original is traced to the counterparts of the other's leaves (True) or to any related value.
_REACHES = ((0, 1, True), (1, 0, True), (1, 1, False), (1, 1, True), (2, 2, True), (2, 2, False),
            (3, 3, True), (5, 5, True), (8, 8, True))  # fmt: skip
_GUESS_REACHES = _REACHES[:4]  # a wrong guess has no relation at any distance


def walked(before: ModelInfo, after: ModelInfo, certificate: Certificate) -> Proof:
    """Return the outcome of the walk over two prepared models in which names were kept."""
    walker = _Walker(before, after, certificate)
    walker.walk()
    walker.look_at_roundings()
    walker.compare_outputs()
    return walker.proof()


class _Walker:
    def __init__(self, before: ModelInfo, after: ModelInfo, certificate: Certificate):
        self._before, self._after, self._hints = before, after, certificate
        self._match = Correspondence(before, after, certificate)
        self._related: dict[tuple[ir.Value, ir.Value], Relation] = {}
        # Two spellings of one function are equal for any weights, as a rule.
        spelled = certificate == Certificate()
        self._numbers = tuple(Numbers) if spelled else tuple(Numbers)[1:-1]
        self._near = Neighbourhood(before, after, self._match, self._related, spelled=spelled)
        self._tester = Tester(whole=certificate.by_name_alone)
        original = self._match.originals.get
        self._fibers: dict[str, list[Fiber]] = defaultdict(list)
        for ref, fiber in certificate.centred:
            self._fibers[ref].append(fiber)
        self._scaled = ScaledWeights(before, certificate, original)
        self._turned = TurnedWeights(certificate)
        self._widening = Widening(
            after, lambda value: self._near.alone(value, 1, actual=Numbers.MATRICES)
        )
        self._means = ZeroMeans(
            before, after, self._tester, self._widening, self._near.alone, original, self._fibers
        )
        self._absorber = Absorber(before, after, certificate)
        self._changed: dict[ir.Value, str] = {}
        self._fibers_near = Candidates(
            before, after, self._means, self._fibers, by_name_alone=certificate.by_name_alone
        )
        self._twins = Twins(before, after)
        self._failures = list(self._twins.other_inputs())
        self._unknown: dict[ir.Value, None] = {}

    def proof(self) -> Proof:
        """Return the outcome."""
        kinds = list(self._changed.values())
        scaled = kinds.count("scaled") + self._absorber.scaled
        values = self._after.by_ref()
        folded = [values.get(ref) for ref in self._hints.folded]
        equal = sum(value is not None and self._is_folded(value) for value in folded)
        return Proof(
            not self._failures,
            equal,
            kinds.count("centred"),
            tuple(self._failures),
            scaled,
            kinds.count("shifted") + self._absorber.shifted,
            rotated_weights=kinds.count("rotated"),
        )

    def _is_folded(self, value: ir.Value) -> bool:
        """Whether a norm's result is unchanged.

        A norm of constants is tested where it is needed.
        """
        u = self._match.originals.get(value)
        if u is not None and self._match.is_constant(value):
            found = self._tested(u, value)
            return found is not None and found.equal
        return self._is_equal(value)

    def _is_equal(self, value: ir.Value) -> bool:
        u = self._match.originals.get(value)
        return u is not None and self._related.get((u, value), ANY).equal

    def walk(self) -> None:
        """Relate every value that is needed, in order."""
        self._relate_sources()
        for graph in self._after.graphs:
            for node in graph:
                if self._after.is_dead(node):
                    continue
                for value in node.outputs:
                    u = self._match.originals.get(value)
                    if u is None or self._after.tensor(value) is not None:
                        continue  # a stored constant is already related, informative or not
                    relation = self.relation(u, value)
                    expected = self._match.is_constant(value) or self._match.is_guess(value)
                    if relation.known:
                        self._explain(node)
                    elif not (expected or self._reads_turned(value)):
                        self._unknown[value] = None

    def _explain(self, node: ir.Node) -> None:
        """Forget unknown values that a known result is computed of, as a variance is of squares."""

        def unknown(reader: ir.Node | None) -> list[ir.Value]:
            return [value for value in operands(reader) if value in self._unknown]

        if node.op_type not in READ_NO_NUMBERS:
            for value in list(reached(unknown(node), lambda value: unknown(value.producer()))):
                del self._unknown[value]

    def _reads_turned(self, v: ir.Value) -> bool:
        """Whether a value is computed of a turned one, as the square that a norm adds up."""
        read = ((self._match.originals.get(b), b) for b in operands(v.producer()))
        known = [(a, b) for a, b in read if a is not None]
        return any(self._related.get(pair, ANY).turn is not None for pair in known)

    def _relate_sources(self) -> None:
        """Relate inputs and constants, because a region may start from any."""
        for value, u in self._match.originals.items():
            if value.producer() is None or self._after.tensor(value) is not None:
                self.relation(u, value)

    def _reason(self, node: ir.Node) -> str:
        changed = [
            f"'{value.name}'"
            for value in node.inputs
            if value is not None
            and self._after.tensor(value) is not None
            and not self._is_equal(value)
        ]
        said = f", which reads the changed {', '.join(changed)}" if changed else ""
        return f"node '{node_label(node)}'{said}"

    def compare_outputs(self) -> None:
        """Check that every graph returns the same outputs as before, in the same order."""
        cause = next((value.producer() for value in self._unknown), None)
        origin = "a change that is not undone" if cause is None else self._reason(cause)
        if len(self._before.graphs) != len(self._after.graphs):
            self._failures.append("the bodies of the model differ from before")
        for old, new in zip(self._before.graphs, self._after.graphs, strict=False):
            us, vs = self._twins.old.outputs(old), self._twins.new.outputs(new)
            if [v.name for v in us] != [v.name for v in vs] and (
                new is self._after.model.graph or len(us) != len(vs)
            ):
                self._failures.append(f"graph '{new.name}' has other outputs than before")
            for u, v in zip(us, vs, strict=False):
                if None not in (u.dtype, v.dtype) and u.dtype is not v.dtype:
                    self._failures.append(f"output '{v.name}' has another type than before")
                if not self.relation(u, v).equal:
                    self._failures.append(f"output '{v.name}' could not be proved equal: {origin}")

    def look_at_roundings(self) -> None:
        """Check that no changed constant was rounded to fewer bits than the model computes with."""
        for value in self._after.by_ref().values():
            tensor = self._after.tensor(value)
            u = self._match.originals.get(value)
            old = None if u is None else self._before.tensor(u)
            # A new constant is rounded at the place of its counterpart.
            if tensor is None or old is None or self.relation(u, value).equal:
                continue
            wide = self._widening.reader_of(value, tensor.dtype)
            if wide is not None and is_rounded(tensor):
                self._failures.append(
                    f"'{value.name}' is rounded to {tensor.dtype} and computed with as {wide.dtype}"
                )

    def relation(self, u: ir.Value | None, v: ir.Value | None) -> Relation:
        """Return the relation of two values, derived from the values upstream."""
        u, v = self._twins.old.begins(u), self._twins.new.begins(v)
        if u is None or v is None:
            return EQUAL if u is v else ANY
        if (u, v) not in self._related:
            self._related[u, v] = ANY  # until known; a graph has no cycles
            found = self._find(u, v)
            self._related[u, v] = found
            if found.known:
                self._near.stand(u)
        return self._related[u, v]

    def _find(self, u: ir.Value, v: ir.Value) -> Relation:
        old, new = self._before.tensor(u), self._after.tensor(v)
        if old is not None and new is not None:
            return self._constants(u, v, old, new)
        if new is not None and self._match.is_constant(u) and self._near.computes(u, new):
            return EQUAL
        node, twin = v.producer(), u.producer()
        if node is None:
            same = twin is None and old is None and new is None
            if same and self._before.ref(u) == self._after.ref(v):
                return EQUAL
        elif twin is not None and self._twins.are(u, v):
            found = [self._operands(a, b) for a, b in self._twins.operands(twin, node)]
            if all(relation.equal for relation in found):
                return EQUAL
        if node is not None and bodies(node):
            return ANY
        constant = self._match.is_constant(v) and self._match.is_constant(u)
        if constant and not v.is_graph_output():
            return ANY  # tested where it is read, with its constants
        if len(self._unknown) > _MOST_UNKNOWN:
            return ANY  # the proof has failed, and the first reason counts
        shown = self._absorbed(u, v) or self._tested(u, v) or ANY
        # Whatever any two values satisfy would keep wider regions from what is upstream of them.
        return ANY if shown.vacuous else shown

    def _operands(self, u: ir.Value | None, v: ir.Value | None) -> Relation:
        """Return the relation of operands in one place, or ANY if v replaces another value."""
        u = self._twins.old.begins(u)
        stands_for = None if v is None else self._match.originals.get(v)
        return ANY if stands_for not in (None, u) else self.relation(u, v)

    def _absorbed(self, u: ir.Value, v: ir.Value) -> Relation | None:
        layers = self._absorber.layers_of(u, v)
        if not layers:
            return None
        try:
            return self._absorber.relation(layers, self._near.region(u, v, (1, 1, False), set()))
        except Unprovable:
            return None

    def _constants(
        self, u: ir.Value, v: ir.Value, old: ir.TensorProtocol, new: ir.TensorProtocol
    ) -> Relation:
        factors = list(self._scaled.factors(self._before.ref(u), v, tuple(old.shape.numpy())))
        turned = self._turned.relation(self._before.ref(u), old, new)  # zeros are turned zeros too
        if turned is not None:
            self._changed[v] = "rotated"
            return turned
        zero = bool(factors) and largest(new) == 0  # also its former value times any factor
        if old is new or (not zero and same_tensor(old, new)):
            return EQUAL
        cut = resized(old, new)
        if cut is not None:
            return cut
        fibers = self._fibers.get(self._before.ref(u), [])
        if old.dtype == new.dtype and (fibers := [f for f in fibers if fits(f, old)]):
            found = compared(old, new, sorted(fibers, key=lambda f: -f.size))
            if found.fiber is not None:
                self._changed[v] = "centred"
                if found.centred:
                    self._means.note_stored(v, found.fiber)
                return Relation(fiber=found.fiber)
        for factor in factors:
            if is_product(old, new, factor):
                self._changed[v] = "scaled"
                return Relation(factor, np.zeros((1,) * factor.ndim), reverse=True)
        return ANY

    def _tested(self, u: ir.Value, v: ir.Value) -> Relation | None:
        """Return the relation that a region near the pair proves; equality has priority."""
        tried: set[object] = set()
        weaker: Relation | None = None
        for reach in _GUESS_REACHES if self._match.is_guess(v) else _REACHES:
            for actual in self._numbers:
                drawn: set[ir.Value] = set()
                try:
                    region = self._near.region(u, v, reach, drawn, actual=actual)
                except Unprovable:
                    break
                if not region.new.nodes and not region.old.nodes:
                    break
                key = region.key
                if key not in tried:
                    tried.add(key)
                    found, shown = self._test(region)
                    if found is None and not drawn:
                        found = self._shift(region)
                    if found is not None and not found.known:
                        return weaker
                    if found is not None and self._is_enough(found, region, drawn):
                        self._note(region, shown, found)
                        return found
                    weaker = weaker or found
                if not drawn:
                    break
        return weaker

    def _shift(self, region: Region) -> Relation | None:
        """Return u = v + c if a product sums up s of a leaf, as of keys, to one number of a row."""
        fibers = self._fibers_near.after_sums(region)
        return self._tester.shift(region, fibers) if fibers else None

    def _is_enough(self, found: Relation, region: Region, drawn: Collection[ir.Value]) -> bool:
        """Whether neither a wider region nor actual numbers for drawn ones can show more.

        With drawn weights the outputs are unrelated, even if one is constant.
        """
        return found.final or (self._is_plain(region) and not (drawn and found.one_sided))

    def _is_plain(self, region: Region) -> bool:
        """Whether a wider region cannot show more: same nodes, no leaf depends on another."""
        if not region.alike:
            return False
        changed = {leaf.v for leaf in region.leaves if leaf.v and not leaf.relation.equal}
        return not any(self._follows(value, changed) for value in changed)

    def _follows(self, value: ir.Value, others: Collection[ir.Value]) -> bool:
        """Whether a value is computed from one of the others, through values that are not equal."""
        level = seen = {value}
        for _ in range(_REACHES[-1][0]):
            level = {
                operand
                for one in level
                for operand in operands(one.producer())
                if operand not in seen and not self._is_equal(operand)
            }
            if not level.isdisjoint(others):
                return True
            seen = seen | level
        return False

    def _note(self, region: Region, shown: Region, found: Relation) -> None:
        """Count the constants that absorbed the excess of a neighboring value.

        The proof fails here if equal numbers are rounded more than before.
        """
        judged = found.equal and self._hints.rounding and not self._match.is_guess(region.pair[1])
        if judged and (why := self._tester.rounds_more(shown)) is not None:
            self._failures.append(why)
        if any(leaf.relation.r is not None for leaf in region.leaves):
            for leaf in region.leaves:
                new = leaf.u is None or leaf.array is not None
                if new and leaf.given is not None and leaf.v is not None:
                    self._changed.setdefault(leaf.v, "shifted")

    def _test(self, region: Region) -> tuple[Relation | None, Region]:
        """Return the relation that a region proves, and the form of the region that does."""
        found, shown = self._test_as_given(region)
        if found is not None and found.equal:
            return found, shown
        exact = region.with_reciprocals()
        for other in (exact, (exact or region).as_stored()):
            better, form = (None, region) if other is None else self._test_as_given(other)
            if better is not None and better.equal:
                return better, form
        return found, shown

    def _test_as_given(self, region: Region) -> tuple[Relation | None, Region]:
        slack = max((leaf.slack for leaf in region.leaves), default=0.0)
        fibers = self._fibers_near.of_shift(region)
        turns = self._fibers_near.of_turn(region)
        weaker = self._tester.relation(region, fibers, slack, turns)
        if (weaker is not None and (weaker.equal or not weaker.known)) or region.alike:
            return weaker, region
        for choice in self._fibers_near.of_zeros(region):
            if not self._tester.runs(region):
                break
            centred = with_zeros(region, choice)
            if self._tester.may_be_exact(centred, slack) and all(
                leaf.v is not None and self._means.holds(leaf.v, zero) for leaf, zero in choice
            ):
                found = self._tester.exact(centred, slack)
                if found is not None:
                    return found, centred
        return weaker, region
