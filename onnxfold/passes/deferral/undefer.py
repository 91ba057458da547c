"""Norms deferred in the original model, computed in place again: all that can, or none.

y = s x is read again, and all nodes that restored s are removed. The proof checks that the regions
after them compute the same in both models. A LayerNorm whose readers were centered subtracts a mean
again that their weights ignore.
"""

from dataclasses import dataclass, replace
from math import frexp

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.edit import Editor, inherit, redirect, set_input, sweep
from onnxfold.graph.operands import computed_by, known_operand
from onnxfold.norms import NormSite
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.find_deferred import DeferredSite, find_deferred
from onnxfold.passes.deferral.row_scale import quotient
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.targets.costs import is_wanted


@dataclass(frozen=True, slots=True)
class FoundDeferred:
    """A deferred norm, with the name and reference of its 1 / s^2.

    ``refusal``: why it is not computed in place, or None if it is, or if it may stay deferred.
    """

    name: str
    ref: str
    reinstated: bool
    refusal: Refusal | None = None

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {
            "name": self.name,
            "action": "reinstated" if self.reinstated else "keep",
            "reason": None if self.refusal is None else self.refusal.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ReinstatingPlan:
    """The deferred norms of the original model, in order."""

    found: tuple[FoundDeferred, ...] = ()

    @property
    def norms(self) -> frozenset[str]:
        """The references of those that are reinstated."""
        return frozenset(each.ref for each in self.found if each.reinstated)

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.norms

    def left_out(self, reason: str) -> "ReinstatingPlan":
        """Return the plan to reinstate nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        kept = (
            replace(each, reinstated=False, refusal=why) if each.reinstated else each
            for each in self.found
        )
        return replace(self, found=tuple(kept))


def decide(info: ModelInfo, settings: Settings) -> ReinstatingPlan:
    """Return the deferred norms of a model; they are left if deferral is wanted."""
    wanted, rows = is_wanted(settings), []
    for found in find_deferred(info):
        name, ref = found.site.name, info.ref(found.site.output)
        again = not wanted and found.refusal is None and not settings.excludes(name)
        rows.append(FoundDeferred(name, ref, again, found.refusal))
    return ReinstatingPlan(tuple(rows))


def apply(edit: Editor, plan: ReinstatingPlan, settings: Settings) -> None:
    """Apply the plan, norm by norm."""
    del settings  # already decided
    now: dict[ir.Value, ir.Value] = {}
    for found in find_deferred(edit.info):
        if edit.info.ref(found.site.output) in plan.norms:
            _reinstate(edit, found, now)


def _reinstate(edit: Editor, found: DeferredSite, now: dict[ir.Value, ir.Value]) -> None:
    """``now``: the replacements of products that later norms were found to read."""
    y = _normalised(edit, found, now)
    for held in map(edit.value, found.held):
        edit.rename(held, _true_name(held))
    for node, index in found.readers:
        set_input(edit.node(node), index, y)
    for node, index, factor in found.tables:
        set_input(edit.node(node), index, edit.value(factor))
    for node, index, epsilon in found.epsilons:
        set_input(edit.node(node), index, edit.value(epsilon))
    values: list[ir.Value] = []
    for node, index in found.products:
        product = edit.node(node)
        result, value = product.outputs[0], product.inputs[index]
        if value is not None:
            now[result] = value
            inherit(result, value)
            redirect(result, value, outputs=True)
            values.append(value)
    sweep(edit.node(node) for node in found.nodes)
    for value in values:
        _drop_casts(value)


def _drop_casts(value: ir.Value) -> None:
    """Bypass a Cast to a wider type if another Cast reverts it."""
    cast = computed_by(value, "Cast")
    if cast is None:
        return
    narrow = known_operand(cast, 0)
    for use in list(value.uses()):
        result = use.node.outputs[0]
        if operator(use.node) == "Cast" and result.dtype == narrow.dtype:
            inherit(result, narrow)
            redirect(result, narrow, outputs=True)
            sweep([use.node])
    sweep([cast])


def _true_name(value: ir.Value) -> str:
    """Return the name of a value before it was computed without s, or a new one."""
    name = value.name or ""
    return name.removesuffix(".deferred") if name.endswith(".deferred") else f"{name}.normalised"


def _normalised(edit: Editor, found: DeferredSite, now: dict[ir.Value, ir.Value]) -> ir.Value:
    """Spell the norm of x; return its result, in the type of x."""
    site, power = _without_power(found.site.within(edit))
    x = now.get(site.input, site.input)
    new = NewNodes(edit.info.opset)
    y = new.cast(quotient(new, site, x), x.dtype)
    if power != 1 and x.dtype is not None:
        y = new.op("Mul", y, new.weight(f"{x.name}.power", np.array(power, x.dtype.numpy())))
        y.type = ir.TensorType(x.dtype)
    for number, node in enumerate(new.nodes):
        node.name = f"{site.name}.reinstated{number}"
        node.outputs[0].name = f"{x.name}.normalised"
    edit.insert_behind(x, Lowered.of(new))
    y.shape = x.shape
    return y


def _without_power(site: NormSite) -> tuple[NormSite, float]:
    """Return an RMS norm, and the 2^k before it, which its readers compensate by 2^-k.

    This is how deferral leaves it in float16; 2^k moves back into them with the gammas.
    """
    mantissa, exponent = frexp(site.factor)
    if site.input.dtype is not ir.DataType.FLOAT16 or mantissa != 0.5 or exponent % 2 == 0:
        return site, 1.0
    read = replace(site, factor=1.0, epsilon=site.epsilon / site.factor)
    return read, 2.0 ** ((1 - exponent) // 2)
