"""The only mutator of graphs: carries out a plan, in place, on the working copy of a model.

Requires: the view that the plan was made on, whose model has not changed since.  Ensures: every
value that others can see (inputs, outputs) keeps its name and type; nodes and weights that nothing
reads any more are gone; nothing else has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from onnxfold.errors import InvariantError, WeightOverflowError
from onnxfold.graph import Fiber, ModelInfo, constant_tensor
from onnxfold.graph.edit import Editor, Lowered, add_function, change_constant
from onnxfold.norms.site import NormSite
from onnxfold.passes.plan import Insertion, Plan, ReaderRef, WeightCentring
from onnxfold.weights.centre import centred_tensor

__all__ = [
    "Applied",
    "Fusion",
    "Lowered",
    "Lowering",
    "add_function",
    "apply_fusions",
    "apply_plan",
    "overflowing_weights",
]


@dataclass(frozen=True, slots=True)
class Applied:
    """The rewritten model, and whether anything in it differs from before."""

    model: ir.Model
    changed: bool


class Lowering(Protocol):
    """Which nodes compute what; returns them, changes nothing."""

    def rms_norm(self, site: NormSite, x: ir.Value) -> Lowered:
        """Return the RMSNorm that a folded LayerNorm becomes, reading ``x``."""

    def layer_norm(self, site: NormSite) -> Lowered | None:
        """Return a cheaper spelling of a norm that stays, or None."""

    def centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        """Return ``value`` minus its mean along ``fiber``."""


def apply_plan(
    view: ModelInfo, plan: Plan, sites: Iterable[NormSite], lowering: Lowering
) -> Applied:
    """Carry out ``plan`` on ``view.model``, in place."""
    changed = not plan.empty
    values = view.by_ref()
    editor = Editor(view)
    fed: dict[str, ir.Value] = {}
    # In place first: a copy along another fiber is then a copy of what all readers get.
    for weight in sorted(plan.weights, key=lambda weight: weight.split):
        copy = _centre_weight(view, values, weight, editor)
        fed.update(dict.fromkeys(weight.norms, copy))
    for insertion in plan.insertions:
        copy = _insert_centring(editor, values, insertion, lowering)
        fed.update(dict.fromkeys(insertion.norms, copy))
    folded = {fold.output for fold in plan.folds}
    for site in sites:
        ref = view.ref(site.output)
        if ref in folded:
            lowered = lowering.rms_norm(site, fed.get(ref, site.input))
            editor.stand_in(lowered, _last(site), site.nodes)
        else:
            cheaper = lowering.layer_norm(site)
            if cheaper is not None:
                editor.stand_in(cheaper, _last(site), site.nodes)
                changed = True
    return Applied(view.model, changed)


class Fusion(Protocol):
    """Nodes that one call replaces; the call is made when those before it are in place."""

    @property
    def place(self) -> ir.Node:
        """The node before which the call will stand."""

    @property
    def replaced(self) -> tuple[ir.Node, ...]:
        """The nodes to remove if nothing reads them any more, in graph order."""

    def lower(self) -> Lowered:
        """Return the call that replaces them."""


def apply_fusions(view: ModelInfo, fusions: Iterable[Fusion]) -> None:
    """Replace the nodes of every fusion, in graph order, in ``view.model``."""
    editor = Editor(view)
    for fusion in fusions:
        editor.stand_in(fusion.lower(), fusion.place, fusion.replaced)


def _last(site: NormSite) -> ir.Node:
    node = site.output.producer()
    if node is None:
        raise InvariantError(f"norm '{site.name}' is computed by no node")
    return node


def _centre_weight(
    view: ModelInfo, values: Mapping[str, ir.Value], weight: WeightCentring, editor: Editor
) -> ir.Value:
    value = values[weight.value]
    tensor = view.tensor(value)
    if tensor is None:
        raise InvariantError(f"the plan centres '{weight.value}', which is no weight")
    if weight.split:
        return _split(values, value, weight, editor)
    change_constant(value, centred_tensor(tensor, weight.fiber, tensor.name or value.name or ""))
    return value


def overflowing_weights(view: ModelInfo, plan: Plan) -> frozenset[str]:
    """Return the references of the weights in a plan that have no finite centred values."""
    values = view.by_ref()
    return frozenset(w.value for w in plan.weights if not _is_fit(view, values[w.value], w.fiber))


def _is_fit(view: ModelInfo, value: ir.Value, fiber: Fiber) -> bool:
    tensor = view.tensor(value)
    if tensor is None:
        raise InvariantError(f"the plan centres '{value.name}', which is no weight")
    try:
        centred_tensor(tensor, fiber, value.name or "").numpy()
    except WeightOverflowError:
        return False
    return True


def _split(
    values: Mapping[str, ir.Value], value: ir.Value, weight: WeightCentring, editor: Editor
) -> ir.Value:
    name = f"{value.name}.centred"

    def copied(operand: ir.Value) -> ir.Value:
        tensor = constant_tensor(operand)
        if tensor is None:
            raise InvariantError(f"the plan centres '{operand.name}', which is no weight")
        return editor.new_constant(value, centred_tensor(tensor, weight.fiber, name), name)

    return _redirect(values, value, weight.readers, copied, wanted=bool(weight.norms))


def _redirect(
    values: Mapping[str, ir.Value],
    value: ir.Value,
    readers: Iterable[ReaderRef],
    copied: Callable[[ir.Value], ir.Value],
    *,
    wanted: bool,
) -> ir.Value:
    """Give readers of a value a copy of what they read: of a copy along another fiber, maybe.

    Returns the copy of the value itself, which is made where it is ``wanted`` as well.
    """
    copies = {value: copied(value)} if wanted else dict[ir.Value, ir.Value]()
    for reader in readers:
        node = values[reader.node].producer()
        operand = None if node is None else node.inputs[reader.index]
        if node is None or operand is None:
            raise InvariantError(f"the plan names '{reader.node}', which no node computes")
        if operand not in copies:
            copies[operand] = copied(operand)
        node.replace_input_with(reader.index, copies[operand])
    return copies.get(value, value)


def _insert_centring(
    editor: Editor, values: Mapping[str, ir.Value], insertion: Insertion, lowering: Lowering
) -> ir.Value:
    value = values[insertion.value]

    def copied(operand: ir.Value) -> ir.Value:
        lowered = lowering.centring(operand, insertion.fiber)
        editor.insert_behind(operand, lowered)
        return lowered.stands_for[0][1]

    return _redirect(values, value, insertion.readers, copied, wanted=bool(insertion.norms))
