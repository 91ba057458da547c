"""Proof of a rewritten model against the original, independent of how the plan was found.

The plan is used as a certificate only: its fibers say which shift a changed weight is claimed to
have, and everything is checked against the weights and the two graphs.

1. Values.  d(v) = v in the rewritten model minus v in the original.  A changed weight has d
   constant along its fiber, checked on the arrays.  Laws carry d forward: through a linear
   operator a shift stays a shift; a norm that subtracts the mean ends it; anything else makes it
   unknown.  Every graph output must end with d = 0.
2. Means.  Where a LayerNorm became an RMSNorm (same fiber, epsilon, gamma, beta), the mean of its
   input in the rewritten model must be 0: by the laws, down to weights whose means are computed.

Source: Algorithm 1 of CBWC, as a checker, with affine parts and readers taken into account.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber, GraphView, Reader, follow_reshape, node_label
from onnxfold.norms import NormSite, find_norms
from onnxfold.planning import Plan
from onnxfold.refusal import Refusal
from onnxfold.rewrite.edited import unrounded
from onnxfold.zero_mean.arrays import fiber_means, is_centred, split_digits, within_rounding
from onnxfold.zero_mean.law import ZeroMean
from onnxfold.zero_mean.relations import Carries, Point, Relations, Unseen

__all__ = ["Proof", "prove"]

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether everything could be shown, and otherwise what could not."""

    passed: bool
    folded_norms: int
    centred_weights: int
    failures: tuple[str, ...]
    scaled_weights: int = 0
    shifted_biases: int = 0

    def joined(self, scaled_weights: int, shifted_biases: int, failures: tuple[str, ...]) -> Proof:
        """Return this proof together with that of the affine fusion before it."""
        return Proof(
            self.passed and not failures,
            self.folded_norms,
            self.centred_weights,
            (*failures, *self.failures),
            scaled_weights,
            shifted_biases,
        )

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {
            "passed": self.passed,
            "folded_norms": self.folded_norms,
            "centred_weights": self.centred_weights,
            "scaled_weights": self.scaled_weights,
            "shifted_biases": self.shifted_biases,
            "failures": list(self.failures),
        }


@dataclass(frozen=True, slots=True)
class _Shift:
    """d(v) is constant along ``fiber``; None: nothing is known of d(v)."""

    fiber: Fiber | None
    origin: str


def prove(before: GraphView, after: GraphView, plan: Plan) -> Proof:
    """Check ``after`` against ``before``; both are views of prepared models with the same names."""
    checker = _Checker(before, after, plan)
    checker.compare_weights()
    checker.walk_forward()
    return Proof(
        not checker.failures,
        checker.folded_norms,
        checker.centred_weights,
        tuple(checker.failures),
    )


class _Checker:
    def __init__(self, before: GraphView, after: GraphView, plan: Plan):
        self._before, self._after, self._plan = before, after, plan
        self._old = before.by_ref()
        self._sites_before = {before.ref(s.output): s for s in find_norms(before)}
        sites_after = find_norms(after)
        self._sites_after = self._matched(sites_after)
        self._relations = Relations(after, sites_after)
        self._shifts: dict[ir.Value, _Shift] = {}
        self._means: dict[Point, bool] = {}
        self._stands_for: dict[ir.Value, ir.Value] = {}
        self._find_copies()
        self.failures: list[str] = []
        self.folded_norms = 0
        self.centred_weights = 0

    def _matched(self, sites: Iterable[NormSite]) -> dict[str, NormSite]:
        """Key the norms by result; a Mul or Add behind a norm is its affine if it was before."""
        matched = {}
        for found in sites:
            site = _without_reshapes(self._after, found)
            whole = site
            while self._after.ref(whole.output) not in self._sites_before:
                longer = _with_next_affine(whole)
                if longer is None:
                    break
                whole = longer
            known = whole if self._after.ref(whole.output) in self._sites_before else found
            matched[self._after.ref(known.output)] = known
        return matched

    def _find_copies(self) -> None:
        """Map every value that only the rewritten model has to the original it stands for.

        A centring stands for what it centres.  The rest is read off the graphs, readers first: an
        input of a node of both models that has changed its name stands for the value that the
        node read there before.
        """
        for node in self._after.nodes():
            source = node.inputs[0] if node.inputs else None
            if source is None or self._relations.centring_fiber(node) is None:
                continue
            original = self._original(source)
            if original is not None:
                self._stand_for(node.outputs[0], original)
        for graph in self._after.model.graphs():
            for node in reversed(graph):
                self._find_copies_at(node)

    def _find_copies_at(self, node: ir.Node) -> None:
        for output in node.outputs:
            ref = self._after.ref(output) if output.name else ""
            site, twin = self._sites_after.get(ref), self._sites_before.get(ref)
            if site is not None and twin is not None:
                self._stand_for(site.input, twin.input)
        twin_node = self._twin(node)
        for new, old in self._paired_inputs(node, twin_node) if twin_node is not None else ():
            if new is not None and old is not None:
                self._stand_for(new, old)

    def _paired_inputs(
        self, node: ir.Node, twin: ir.Node
    ) -> tuple[tuple[ir.Value | None, ir.Value | None], ...]:
        """Pair the inputs of two nodes; a sum of two may have its terms exchanged."""
        if len(node.inputs) != len(twin.inputs):
            return ()
        straight = tuple(zip(node.inputs, twin.inputs, strict=True))
        if node.op_type != "Add" or node.domain:
            return straight
        crossed = tuple(zip(node.inputs, twin.inputs[::-1], strict=True))
        return max((straight, crossed), key=self._agreements)

    def _agreements(self, pairs: tuple[tuple[ir.Value | None, ir.Value | None], ...]) -> int:
        return sum(
            new is not None and old is not None and self._original(new) is old for new, old in pairs
        )

    def _stand_for(self, new: ir.Value, old: ir.Value) -> None:
        if self._after.ref(new) not in self._old:
            self._stands_for.setdefault(new, old)

    def _twin(self, node: ir.Node) -> ir.Node | None:
        """Return the node of the original that computes the same value with the same operator."""
        if not node.outputs:
            return None
        old = self._old.get(self._after.ref(node.outputs[0]))
        old = old if old is not None else self._stands_for.get(node.outputs[0])
        producer = None if old is None else old.producer()
        if producer is None or producer.op_identifier() != node.op_identifier():
            return None
        return producer

    def _original(self, value: ir.Value) -> ir.Value | None:
        return self._stands_for.get(value) or self._old.get(self._after.ref(value))

    def compare_weights(self) -> None:
        """Find the changed weights and check that each differs by a shift along its fiber."""
        fibers: dict[str, list[Fiber]] = {}
        for weight in self._plan.weights:
            fibers.setdefault(weight.value, []).append(weight.fiber)
        for value in self._after.by_ref().values():
            new = self._after.tensor(value)
            original = self._original(value)
            old = None if original is None else self._before.tensor(original)
            if new is None or original is None or old is None or new is old:
                continue
            arrays = old.numpy(), new.numpy()
            if arrays[0].shape == arrays[1].shape and np.array_equal(*arrays):
                continue
            self.centred_weights += 1
            claimed = fibers.get(self._before.ref(original), [])
            exact = unrounded(old)
            fiber = next((f for f in claimed if _is_shift(exact, arrays[1], f)), None)
            self._shifts[value] = _Shift(fiber, f"weight '{value.name}'")

    def walk_forward(self) -> None:
        """Carry the shifts through the graph, and judge norms and graph outputs."""
        for graph in self._after.model.graphs():
            for node in graph:
                self._visit(node)
            for output in graph.outputs:
                shift = self._shifts.get(output)
                if shift is not None:
                    self.failures.append(
                        f"output '{output.name}' sees a change that began at {shift.origin}"
                    )
        missing = [ref for ref in self._sites_before if ref not in self._sites_after]
        for ref in missing:
            if ref in self._after.by_ref():
                self.failures.append(
                    f"the norm that computes '{ref}' cannot be recognised any more"
                )

    def _visit(self, node: ir.Node) -> None:
        for index, output in enumerate(node.outputs):
            ref = self._after.ref(output) if output.name else ""
            if ref in self._sites_after and ref in self._sites_before:
                self._judge_norm(self._sites_before[ref], self._sites_after[ref])
                continue
            shift = self._shift_of(node, index)
            if shift is not None:
                self._shifts[output] = shift

    def _shift_of(self, node: ir.Node, index: int) -> _Shift | None:
        copied = self._stands_for.get(node.outputs[index])
        if copied is not None and self._twin(node) is None:
            return self._shift_of_copy(node, copied)
        moved = [
            (position, operand, self._shifts[operand])
            for position, operand in enumerate(node.inputs)
            if operand is not None and operand in self._shifts
        ]
        if self._rewired(node):
            return _Shift(None, f"node '{node_label(node)}'")
        if not moved:
            return None
        fibers = {position: shift.fiber for position, _, shift in moved}
        for position, operand, shift in moved:
            if shift.fiber is None:
                return shift
            effect = self._relations.effect(Point(operand, shift.fiber), Reader(node, position))
            if isinstance(effect, Unseen) and len(moved) == 1:
                return None
            if isinstance(effect, Carries):
                for point in effect.points:
                    if point.value is node.outputs[index] and self._joint(point, fibers):
                        return _Shift(point.fiber, shift.origin)
        return _Shift(None, moved[0][2].origin)

    def _joint(self, point: Point, fibers: dict[int, Fiber | None]) -> bool:
        """Whether the law of ``point`` turns all moved inputs together into one shift."""
        carried = dict(self._relations.carried(point))
        return all(
            fiber is not None and position in carried and fiber.covers(carried[position])
            for position, fiber in fibers.items()
        )

    def _shift_of_copy(self, node: ir.Node, original: ir.Value) -> _Shift | None:
        """A node that the original does not have: it must centre the value it is a copy of."""
        source = node.inputs[0]
        fiber = self._relations.centring_fiber(node)
        origin = f"node '{node_label(node)}'"
        if source is None or fiber is None or self._original(source) is not original:
            return _Shift(None, origin)
        before = self._shifts.get(source)
        if before is not None and (before.fiber is None or not before.fiber.covers(fiber)):
            return _Shift(None, before.origin)
        return _Shift(fiber, origin)

    def _rewired(self, node: ir.Node) -> bool:
        """Whether the node is not the same computation on the same values as before."""
        twin = self._twin(node)
        if twin is None:
            return bool(node.outputs and self._after.ref(node.outputs[0]) in self._old)
        if len(twin.inputs) != len(node.inputs) or not _same_attributes(twin, node):
            return True
        return any(
            (new is None) != (old is None) or (new is not None and self._original(new) is not old)
            for new, old in self._paired_inputs(node, twin)
        )

    def _judge_norm(self, old: NormSite, new: NormSite) -> None:
        problem = self._norm_problem(old, new)
        if problem is None:
            return
        self.failures.append(f"norm '{old.name}': {problem}")
        self._shifts[new.output] = _Shift(None, f"norm '{old.name}'")

    def _norm_problem(self, old: NormSite, new: NormSite) -> str | None:
        if self._original(new.input) is not old.input:
            return f"reads '{new.input.name}', which does not stand for '{old.input.name}'"
        if (new.fiber, new.epsilon_mode, new.factor) != (old.fiber, old.epsilon_mode, old.factor):
            return "works along other elements or with another epsilon mode"
        if not _same_epsilon(old.epsilon, new.epsilon):
            return f"has epsilon {new.epsilon:g} instead of {old.epsilon:g}"
        for role, a, b in (("gamma", old.gamma, new.gamma), ("beta", old.beta, new.beta)):
            if not self._same_affine(a, b):
                return f"has another {role}"
        shift = self._shifts.get(new.input)
        if shift is not None and (shift.fiber is None or not shift.fiber.covers(old.fiber)):
            return f"sees a change that began at {shift.origin}"
        if shift is not None and not old.subtracts_mean:
            return f"sees the mean, which changed at {shift.origin}"
        if old.kind is new.kind:
            return None
        self.folded_norms += 1
        if old.subtracts_mean and self._mean_is_zero(Point(new.input, new.fiber)):
            return None
        return f"became {new.kind.value}, but its input '{new.input.name}' may have a mean"

    def _same_affine(self, old: object, new: object) -> bool:
        if old is None and new is None:
            return True
        if isinstance(old, ir.Value) and isinstance(new, ir.Value):
            if new in self._shifts:
                return False
            if self._original(new) is old:
                return True
        arrays = [
            part if isinstance(part, np.ndarray) else view.array(part)
            for part, view in ((old, self._before), (new, self._after))
            if part is None or isinstance(part, (ir.Value, np.ndarray))
        ]
        first, second = (np.ones(1) if array is None else array for array in arrays)
        if (old is None) != (new is None):
            return bool(np.all(first == second))
        if any(array is None for array in arrays):
            return False
        return np.array_equal(first.reshape(-1), second.reshape(-1)) or (
            min(first.size, second.size) == 1 and bool(np.all(first == second))
        )

    def _mean_is_zero(self, point: Point) -> bool:
        """Whether the value's mean along the fiber is 0 in the rewritten model."""
        if point not in self._means:
            self._means[point] = False  # no cycles in a graph; guards against a broken one
            self._means[point] = self._decide_mean(point)
        return self._means[point]

    def _decide_mean(self, point: Point) -> bool:
        order: list[Point] = []
        pending, seen = [point], {point}
        while pending:
            current = pending.pop()
            order.append(current)
            tensor = self._after.tensor(current.value)
            if tensor is not None:
                if not is_centred(tensor.numpy(), current.fiber):
                    return False
                continue
            pulled = self._relations.pull(current)
            if isinstance(pulled, Refusal):
                return False
            if isinstance(pulled, ZeroMean):
                continue
            node = current.value.producer()
            for index, fiber in pulled.inputs:
                operand = node.inputs[index] if node is not None else None
                if operand is None:
                    return False
                following = Point(operand, fiber)
                if self._means.get(following):
                    continue
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
        self._means.update(dict.fromkeys(order, True))
        return True


def _without_reshapes(view: GraphView, site: NormSite) -> NormSite:
    """Return Reshape, norm, Reshape back as the norm of what the first Reshape reads."""
    before = site.input.producer()
    uses = list(site.output.uses())
    if before is None or before.op_type != "Reshape" or len(uses) != 1:
        return site
    source, after = before.inputs[0], uses[0].node
    if source is None or after.op_type != "Reshape" or after.domain or site.gamma is not None:
        return site
    inner, outer = view.shape(source), view.shape(site.input)
    if inner is None or outer is None or view.shape(after.outputs[0]) != inner:
        return site
    fiber = follow_reshape(site.fiber, outer, inner)
    if fiber is None or site.beta is not None:
        return site
    return replace(site, input=source, output=after.outputs[0], fiber=fiber)


def _with_next_affine(site: NormSite) -> NormSite | None:
    """Return the norm with the Mul or Add that alone reads its result as gamma or beta."""
    uses = list(site.output.uses())
    if len(uses) != 1 or site.output.is_graph_output():
        return None
    node, index = uses[0].node, uses[0].idx
    if node.op_type not in ("Mul", "Add") or node.domain or len(node.inputs) != 2:
        return None
    operand = node.inputs[1 - index]
    if node.op_type == "Mul" and site.gamma is None and site.beta is None:
        return replace(site, output=node.outputs[0], gamma=operand)
    if node.op_type == "Add" and site.beta is None:
        return replace(site, output=node.outputs[0], beta=operand)
    return None


def _is_shift(old: Array, new: Array, fiber: Fiber) -> bool:
    """Whether old - new is constant along the fiber, up to one rounding of each new element."""
    if old.shape != new.shape:
        return False
    digits, _ = split_digits(old.shape, fiber)
    expected = np.subtract(old.reshape(digits), fiber_means(old, fiber), dtype=np.float64)
    stored = new.reshape(digits)
    if np.array_equal(expected.astype(new.dtype), stored):
        return True
    return within_rounding(stored, expected, np.abs(expected) + np.abs(fiber_means(old, fiber)))


def _same_epsilon(old: float, new: float) -> bool:
    return bool(np.float32(old) == np.float32(new))


def _same_attributes(a: ir.Node, b: ir.Node) -> bool:
    if set(a.attributes) != set(b.attributes):
        return False
    return all(
        _same_attribute(a.op_type, first, b.attributes[name])
        for name, first in a.attributes.items()
    )


def _same_attribute(op_type: str, a: ir.Attr, b: ir.Attr) -> bool:
    if a.type != b.type:
        return False
    if a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return True  # bodies are walked node by node
    if a.type is ir.AttributeType.TENSOR:
        # The tensor of a Constant node is a weight like any other.
        return op_type == "Constant" or np.array_equal(a.as_tensor().numpy(), b.as_tensor().numpy())
    return bool(a.value == b.value)
