"""Computes deferred norms where they stood: y = s x is read again, and all that put s back goes."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graph.edit import Editor, Lowered, inherit, redirect, set_input, sweep
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.row_numbers import as_type, quotient
from onnxfold.passes.reinstating.find import DeferredSite, find_deferred
from onnxfold.passes.reinstating.plan import ReinstatingPlan

__all__ = ["apply"]


def apply(edit: Editor, plan: ReinstatingPlan, settings: Settings) -> bool:
    """Carry out the plan, norm by norm."""
    del settings  # what is reinstated has been decided
    now: dict[ir.Value, ir.Value] = {}
    for found in find_deferred(edit.info):
        if edit.info.ref(found.site.output) in plan.norms:
            _reinstate(edit, found, now)
    return not plan.empty


def _reinstate(edit: Editor, found: DeferredSite, now: dict[ir.Value, ir.Value]) -> None:
    """``now``: what stands for the product that a later norm was found to read."""
    y = _normalised(edit, found, now)
    for held in map(edit.value, found.held):
        edit.rename(held, _true_name(held))
    for node, index in found.readers:
        set_input(edit.node(node), index, y)
    for node, index, factor in found.tables:
        set_input(edit.node(node), index, edit.value(factor))
    for node, index, epsilon in found.epsilons:
        set_input(edit.node(node), index, edit.value(epsilon))
    for node, index in found.products:
        product = edit.node(node)
        result, value = product.outputs[0], product.inputs[index]
        if value is not None:
            now[result] = value
            inherit(result, value)
            redirect(result, value, outputs=True)
    sweep(edit.node(node) for node in found.nodes)


def _true_name(value: ir.Value) -> str:
    """Return the name that a value had before it was computed without s, or a new one."""
    name = value.name or ""
    return name.removesuffix(".deferred") if name.endswith(".deferred") else f"{name}.normalised"


def _normalised(edit: Editor, found: DeferredSite, now: dict[ir.Value, ir.Value]) -> ir.Value:
    """Spell the norm behind x; return its result, in the type of x."""
    site = found.site.within(edit)
    x = now.get(site.input, site.input)
    nodes, made = quotient(site, x, edit.info.opset)
    nodes += as_type(nodes[-1].outputs[0], x.dtype)
    for number, node in enumerate(nodes):
        node.name = f"{site.name}.reinstated{number}"
        node.outputs[0].name = f"{x.name}.normalised"
    edit.insert_behind(x, Lowered(tuple(nodes), (), tuple(made)))
    y = nodes[-1].outputs[0]
    y.shape = x.shape
    return y
