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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader, node_label
from onnxfold.graph.compare import same_attributes, same_default
from onnxfold.norms import NormSite, find_norms
from onnxfold.passes.centring.relations import Point, Relations, Unseen
from onnxfold.passes.plan import Plan
from onnxfold.proof.copies import Copies
from onnxfold.proof.forms import (
    AffinePart,
    repeated_axes,
    same_epsilon,
    same_operand,
    with_next_affine,
    without_reshapes,
)
from onnxfold.proof.means import Means
from onnxfold.proof.weights import compared

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
            self.scaled_weights + scaled_weights,
            self.shifted_biases + shifted_biases,
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
    """d(v) is constant along each of the fibers; without any, nothing is known of d(v)."""

    fibers: tuple[Fiber, ...]
    origin: str

    def constant_along(self, fiber: Fiber) -> bool:
        """Whether what works along ``fiber`` and subtracts the mean there cannot see d(v)."""
        return any(known.covers(fiber) for known in self.fibers)


def prove(before: ModelInfo, after: ModelInfo, plan: Plan) -> Proof:
    """Check ``after`` against ``before``; both are views of prepared models with the same names."""
    checker = _Checker(before, after, plan)
    checker.compare_inputs()
    checker.compare_weights()
    checker.walk_forward()
    return Proof(
        not checker.failures,
        checker.folded_norms,
        checker.centred_weights,
        tuple(checker.failures),
    )


class _Checker:
    def __init__(self, before: ModelInfo, after: ModelInfo, plan: Plan):
        self._before, self._after, self._plan = before, after, plan
        self._old = before.by_ref()
        self._sites_before = {before.ref(s.output): s for s in find_norms(before)}
        self._site_of_centred = {
            s.centred: s for s in self._sites_before.values() if s.centred is not None and s.size
        }
        sites_after = find_norms(after)
        self._sites_after = self._matched(sites_after)
        self._relations = Relations(after, sites_after)
        self._copies = Copies(before, after, self._relations, self._sites_before, self._sites_after)
        self._original, self._twin = self._copies.original, self._copies.twin
        self._relations_before = Relations(before, self._sites_before.values())
        self._normed_along: dict[ir.Value, list[Fiber]] = {}
        for site in self._sites_after.values():
            if site.size:
                self._normed_along.setdefault(site.input, []).append(site.fiber)
        self._means = Means(before, after, self._relations, self._sites_after, self._original)
        self._shifts: dict[ir.Value, _Shift] = {}
        self.failures: list[str] = []
        self.folded_norms = 0
        self.centred_weights = 0

    def _matched(self, sites: Iterable[NormSite]) -> dict[str, NormSite]:
        """Key the norms by result; a Mul or Add behind a norm is its affine if it was before."""
        matched = {}
        for found in sites:
            site = without_reshapes(self._after, found)
            whole = site
            while self._after.ref(whole.output) not in self._sites_before:
                longer = with_next_affine(whole)
                if longer is None:
                    break
                whole = longer
            known = whole if self._after.ref(whole.output) in self._sites_before else found
            matched[self._after.ref(known.output)] = known
        return matched

    def compare_inputs(self) -> None:
        """The graph takes the same inputs, with the same defaults."""
        old, new = (view.model.graph.inputs for view in (self._before, self._after))
        if [value.name for value in old] != [value.name for value in new]:
            self.failures.append("the model takes other inputs than before")
        for a, b in zip(old, new, strict=False):
            if not same_default(a, b):
                self.failures.append(f"input '{b.name}' has another default than before")

    def compare_weights(self) -> None:
        """Find the changed weights and check that each differs by a shift along its fiber."""
        fibers: dict[str, list[Fiber]] = {}
        for weight in self._plan.weights:
            fibers.setdefault(weight.value, []).append(weight.fiber)
        for value in self._after.by_ref().values():
            new = self._after.tensor(value)
            original = self._original(value)
            old = None if original is None else self._before.tensor(original)
            if original is None or new is old:
                continue
            if old is None or new is None or new.dtype != old.dtype:
                if new is not None or not value.producer():
                    self._shifts[value] = _Shift((), f"'{value.name}'")
                continue
            found = compared(old, new, fibers.get(self._before.ref(original), []))
            if found.same:
                continue
            self.centred_weights += 1
            known = () if found.fiber is None else (found.fiber,)
            self._shifts[value] = _Shift(known, f"weight '{value.name}'")
            if found.fiber is not None and found.centred:
                self._means.add(Point(value, found.fiber))

    def walk_forward(self) -> None:
        """Carry the shifts through the graph, and judge norms and graph outputs."""
        for graph in self._after.graphs:
            for node in graph:
                self._visit(node)
            for output in graph.outputs:
                shift = self._shifts.get(output)
                if shift is not None:
                    self.failures.append(
                        f"output '{output.name}' sees a change that began at {shift.origin}"
                    )
        self._compare_outputs()
        for ref in self._sites_before:
            value = self._after.by_ref().get(ref)
            shift = None if value is None else self._shifts.get(value)
            if ref not in self._sites_after and shift is not None and not shift.fibers:
                self.failures.append(
                    f"the norm that computes '{ref}' cannot be recognised any more"
                )

    def _compare_outputs(self) -> None:
        """Every graph gives the values that it gave before, in the same order."""
        graphs = zip(self._before.graphs, self._after.graphs, strict=False)
        for old, new in graphs:
            stand = [self._original(output) for output in new.outputs]
            if len(stand) != len(old.outputs) or any(
                a is not b for a, b in zip(stand, old.outputs, strict=True)
            ):
                self.failures.append(f"graph '{new.name}' gives other outputs than before")

    def _visit(self, node: ir.Node) -> None:
        if self._after.is_dead(node):
            return
        for index, output in enumerate(node.outputs):
            ref = self._after.ref(output) if output.name else ""
            problem = self._norm_problem(ref)
            if problem is None:
                continue
            # A norm that does not match as a whole, or at all, may still do so node by node.
            shift = self._shift_of(node, index)
            if shift is None:
                continue
            self._shifts[output] = shift
            if problem and not shift.fibers:
                self.failures.append(f"norm '{self._sites_before[ref].name}': {problem}")
                self._shifts[output] = _Shift((), f"norm '{self._sites_before[ref].name}'")

    def _shift_of(self, node: ir.Node, index: int) -> _Shift | None:
        copied = self._copies.stands_for.get(node.outputs[index])
        if copied is not None and self._twin(node) is None:
            return self._shift_of_copy(node, copied)
        centred = self._reads_centred(node)
        moved = [
            (position, operand, self._shifts[operand])
            for position, operand in enumerate(node.inputs)
            if operand is not None and operand in self._shifts and position not in centred
        ]
        moved = [item for item in moved if not self._is_unseen(node, *item)]
        if self._rewired(node):
            return _Shift((), f"node '{node_label(node)}'")
        if not moved:
            return None
        output, candidates = node.outputs[index], []
        for position, operand, shift in moved:
            if not shift.fibers:
                return shift
            candidates += self._candidates(output, operand, shift, Reader(node, position))
        found = [fiber for fiber in candidates if self._joint(Point(output, fiber), moved)]
        if not found and self._joint(Point(output, Fiber(())), moved):
            found = [Fiber(())]
        return _Shift(tuple(dict.fromkeys(found)), moved[0][2].origin)

    def _candidates(
        self, output: ir.Value, operand: ir.Value, shift: _Shift, reader: Reader
    ) -> list[Fiber]:
        """Return fibers along which the shift of an operand may be one of the output."""
        carried = [
            point.fiber
            for fiber in shift.fibers
            for point in self._relations.reached(Point(operand, fiber), reader)
            if point.value is output
        ]
        wanted = self._normed_along.get(output, ())
        repeated = repeated_axes(self._after, output, operand)
        spread = [
            Fiber.of((*fiber.blocks, *(block for axis in repeated for block in axis.blocks)))
            for fiber in carried
            if not any(set(axis.axes) & set(fiber.axes) for axis in repeated)
        ]
        return [*carried, *spread, *repeated, *wanted]

    def _is_unseen(self, node: ir.Node, position: int, operand: ir.Value, shift: _Shift) -> bool:
        """Whether the node does not look at what has moved, whatever its other inputs are."""
        reader = Reader(node, position)
        effects = (self._relations.effect(Point(operand, f), reader) for f in shift.fibers)
        return any(isinstance(effect, Unseen) for effect in effects)

    def _joint(self, point: Point, moved: Iterable[tuple[int, ir.Value, _Shift]]) -> bool:
        """Whether the law of ``point`` turns all moved inputs together into one shift."""
        carried = dict(self._relations.carried(point))
        return all(
            position in carried and shift.constant_along(carried[position])
            for position, _, shift in moved
        )

    def _shift_of_copy(self, node: ir.Node, original: ir.Value) -> _Shift | None:
        """A node that the original does not have: it must centre the value it is a copy of."""
        source = node.inputs[0]
        fiber = self._relations.centring_fiber(node)
        origin = f"node '{node_label(node)}'"
        if source is None or fiber is None or self._original(source) is not original:
            return _Shift((), origin)
        before = self._shifts.get(source)
        if before is None or before.constant_along(fiber):
            return _Shift((fiber,), origin)
        # The mean that is subtracted is constant along whatever lies within the centred fiber.
        return _Shift(tuple(f for f in before.fibers if fiber.covers(f)), before.origin)

    def _rewired(self, node: ir.Node) -> bool:
        """Whether the node is not the same computation on the same values as before."""
        twin = self._twin(node)
        if twin is None:
            return bool(node.outputs and self._after.ref(node.outputs[0]) in self._old)
        if len(twin.inputs) != len(node.inputs) or not same_attributes(
            twin, node, of_constants=False
        ):
            return True
        return any(
            (new is None) != (old is None)
            or (new is not None and old is not None and not self._stands(new, old))
            for new, old in self._copies.paired_inputs(node, twin)
        )

    def _stands(self, new: ir.Value, old: ir.Value) -> bool:
        return self._original(new) is old or self._is_centred(new, old)

    def _is_centred(self, new: ir.Value, old: ir.Value) -> bool:
        """Whether ``old`` was x - mean(x), ``new`` is x but for a shift, and its mean is 0."""
        whole = self._uncentred(old)
        if whole is None or self._original(new) is not whole.value:
            return False
        shift = self._shifts.get(new)
        if shift is not None and not shift.constant_along(whole.fiber):
            return False
        return self._means.are_zero(Point(new, whole.fiber))

    def _uncentred(self, value: ir.Value) -> Point | None:
        """Return x and its fiber where ``value`` of the original is x - mean(x)."""
        site = self._site_of_centred.get(value)
        if site is not None:
            return Point(site.input, site.fiber)
        node = value.producer()
        fiber = None if node is None else self._relations_before.centring_fiber(node)
        if node is None or fiber is None or node.inputs[0] is None:
            return None
        return Point(node.inputs[0], fiber)

    def _reads_centred(self, node: ir.Node) -> set[int]:
        """Return the inputs at which x of mean 0 takes the place of x - mean(x)."""
        twin = self._twin(node)
        return {
            position
            for position, (new, old) in enumerate(
                self._copies.paired_inputs(node, twin) if twin else ()
            )
            if new is not None and old is not None and self._is_centred(new, old)
        }

    def _norm_problem(self, ref: str) -> str | None:
        """Say how a norm differs from what it was; "" where it is one in neither or one model."""
        old, new = self._sites_before.get(ref), self._sites_after.get(ref)
        if old is None or new is None:
            return ""
        if not self._stands(new.input, old.input) and not self._subtracts_it(new, old.input):
            return f"reads '{new.input.name}', which does not stand for '{old.input.name}'"
        if (new.fiber, new.epsilon_mode, new.factor) != (old.fiber, old.epsilon_mode, old.factor):
            return "works along other elements or with another epsilon mode"
        if not same_epsilon(old.epsilon, new.epsilon):
            return f"has epsilon {new.epsilon} instead of {old.epsilon}"
        for role, a, b in (("gamma", old.gamma, new.gamma), ("beta", old.beta, new.beta)):
            if not self._same_affine(a, b, neutral=float(role == "gamma")):
                return f"has another {role}"
        centred = self._is_centred(new.input, old.input)
        shift = None if centred else self._shifts.get(new.input)
        if shift is not None and not (old.size and shift.constant_along(old.fiber)):
            return f"sees a change that began at {shift.origin}"
        if shift is not None and not old.subtracts_mean:
            return f"sees the mean, which changed at {shift.origin}"
        if old.kind is new.kind:
            return None
        self.folded_norms += 1
        if old.subtracts_mean and self._means.are_zero(Point(new.input, new.fiber)):
            return None
        return f"became {new.kind.value}, but its input '{new.input.name}' may have a mean"

    def _subtracts_it(self, new: NormSite, old: ir.Value) -> bool:
        """Whether ``old`` was x - mean(x), and the norm of x subtracts that mean itself."""
        whole = self._uncentred(old)
        if whole is None or not new.subtracts_mean or whole.fiber != new.fiber:
            return False
        return self._original(new.input) is whole.value

    def _same_affine(self, old: AffinePart, new: AffinePart, neutral: float) -> bool:
        if old is None and new is None:
            return True
        if (
            isinstance(old, ir.Value)
            and isinstance(new, ir.Value)
            and new not in self._shifts
            and self._original(new) is old
        ):
            return True
        first, second = (
            part if isinstance(part, np.ndarray) else view.array(part)
            for part, view in ((old, self._before), (new, self._after))
        )
        if (old is None) != (new is None):
            present = second if old is None else first
            return present is not None and bool(np.all(present == neutral))
        return first is not None and second is not None and same_operand(first, second)
