"""Guesses of the original counterpart of each value of a rewritten model, by name and place.

Nothing depends on a guess: the relation of a pair is tested.
"""

from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from onnxfold.check.reference import is_stochastic, is_supported
from onnxfold.graph import ModelInfo
from onnxfold.graph.equality import pairs
from onnxfold.graph.operands import producer_of
from onnxfold.graph.traversal import bodies
from onnxfold.proof.certificate import Certificate


class Correspondence:
    """``originals``: the counterpart of each value of the rewritten model, by name first.

    A value with a new name corresponds to the original node's operand at this place, or to the
    result of the same operator whose name a downstream node now has; otherwise to the counterpart
    of the first input of equal shape of its own node, if the certificate calls it centered.
    """

    def __init__(self, before: ModelInfo, after: ModelInfo, certificate: Certificate):
        self._before, self._after = before, after
        known = before.by_ref()
        self.originals: dict[ir.Value, ir.Value] = {}
        for ref, value in after.by_ref().items():
            if ref in known:
                self.originals[value] = known[ref]
        self._named = frozenset(self.originals)
        self._name_copies(known)
        if not certificate.by_name_alone:
            self._guess({known.get(ref) for ref, _ in certificate.centred})
        self._constants = _constants(before) | _constants(after)

    def _guess(self, centred: Collection[ir.Value | None]) -> None:
        """Guess the counterparts of values with new names."""
        for graph in self._after.graphs:
            for node in reversed(graph):
                self._read_off(node)
        for node in self._after.nodes():
            self._stand_in(node, centred)

    def is_guess(self, value: ir.Value) -> bool:
        """Whether a value's name differs from its counterpart's."""
        return value not in self._named

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value of either model is computed only from constants."""
        return value in self._constants

    def _name_copies(self, known: Mapping[str, ir.Value]) -> None:
        """Match copies of constants, whose names extend the original's.

        A copy of "b" may be named "b.fused.2" though there is a "b.fused": its readers decide.
        """
        for ref, value in self._after.by_ref().items():
            if value in self.originals or not self._after.tensor(value):
                continue
            stems = [known[stem] for stem in _stems(ref) if stem in known]
            found = [old for old in stems if self._before.tensor(old) is not None]
            if found:
                read = set(self._read_instead(value)) if len(found) > 1 else set()
                self.originals[value] = next((old for old in found if old in read), found[0])

    def _read_instead(self, value: ir.Value) -> Iterator[ir.Value | None]:
        """Yield what the original nodes read in the places of a value of the rewritten model."""
        for use in value.uses():
            originals = (self.originals.get(output) for output in use.node.outputs)
            twin = next((u.producer() for u in originals if u is not None), None)
            if twin is not None and use.idx < len(twin.inputs):
                yield twin.inputs[use.idx]

    def _read_off(self, node: ir.Node) -> None:
        outputs = (self.originals.get(output) for output in node.outputs)
        twin = next((u.producer() for u in outputs if u is not None), None)
        if twin is None:
            return
        if twin.op_identifier() != node.op_identifier():
            self._read_through(node, twin)
            return
        inputs = pairs(twin, node)
        taken = {self.originals.get(new) for _, new in inputs if new is not None}
        free = [old for old, _ in inputs if old is not None and old not in taken]
        for old, new in inputs:
            if new is None or new in self.originals:
                continue
            guess = old if old in free or old is None or len(free) != 1 else free[0]
            if guess is not None and self._alike(guess, new):
                self.originals[new] = guess

    def _read_through(self, node: ir.Node, twin: ir.Node) -> None:
        """Match an operator whose name a new node after it has taken, as the Add of a bias."""
        for value in node.inputs:
            producer = producer_of(value)
            if value is None or producer is None or value in self.originals:
                continue
            guess = twin.outputs[value.index() or 0] if len(twin.outputs) == 1 else None
            same = producer.op_identifier() == twin.op_identifier()
            if guess is not None and same and self._alike(guess, value):
                self.originals[value] = guess

    def _stand_in(self, node: ir.Node, centred: Collection[ir.Value | None]) -> None:
        for output in node.outputs:
            if output in self.originals or not output.name:
                continue
            for operand in node.inputs:
                guess = None if operand is None else self.originals.get(operand)
                if guess in centred and guess and operand and self._same(operand, output):
                    self.originals[output] = guess
                    break

    def _alike(self, old: ir.Value, new: ir.Value) -> bool:
        return self._before.rank(old) == self._after.rank(new)

    def _same(self, operand: ir.Value, output: ir.Value) -> bool:
        first, second = self._after.shape(operand), self._after.shape(output)
        return self._after.tensor(operand) is None and (
            first is None or second is None or first == second
        )


def _stems(ref: str) -> Iterator[str]:
    """Yield the names that a name extends, the longest first."""
    stem = ref.rpartition("@")[0] or ref
    while "." in stem:
        stem = stem.rpartition(".")[0]
        yield stem


def _constants(view: ModelInfo) -> set[ir.Value]:
    """Return the values that depend only on constants, as far as they can be computed here."""
    found: set[ir.Value] = set()
    for node in view.nodes():
        operands = [v for v in node.inputs if v is not None]
        known = all(v in found or view.tensor(v) is not None for v in operands)
        fixed = operands and known and not bodies(node) and not is_stochastic(node)
        if fixed and is_supported(view.model, node):
            found.update(node.outputs)
    return found
