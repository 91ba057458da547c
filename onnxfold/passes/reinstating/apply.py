"""Computes deferred norms where they stood: y = s x is read again, and all that put s back goes."""

from dataclasses import replace
from math import frexp

import numpy as np
import onnx_ir as ir

from onnxfold.graph import operator
from onnxfold.graph.edit import Editor, Lowered, inherit, redirect, set_input, sweep
from onnxfold.graph.operands import computed_by, known_operand
from onnxfold.norms import NormSite
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.row_numbers import quotient
from onnxfold.passes.reinstating.find import DeferredSite, find_deferred
from onnxfold.passes.reinstating.plan import ReinstatingPlan


def apply(edit: Editor, plan: ReinstatingPlan, settings: Settings) -> None:
    """Carry out the plan, norm by norm."""
    del settings  # what is reinstated has been decided
    now: dict[ir.Value, ir.Value] = {}
    for found in find_deferred(edit.info):
        if edit.info.ref(found.site.output) in plan.norms:
            _reinstate(edit, found, now)


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
    """Read what a Cast to a wider type reads where a Cast takes that back."""
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
    """Return the name that a value had before it was computed without s, or a new one."""
    name = value.name or ""
    return name.removesuffix(".deferred") if name.endswith(".deferred") else f"{name}.normalised"


def _normalised(edit: Editor, found: DeferredSite, now: dict[ir.Value, ir.Value]) -> ir.Value:
    """Spell the norm behind x; return its result, in the type of x."""
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
    """Return an RMS norm, and the 2^k that stands before it: its readers have taken 2^-k.

    As deferral leaves it in float16; 2^k goes back into them with the gammas.
    """
    mantissa, exponent = frexp(site.factor)
    if site.input.dtype is not ir.DataType.FLOAT16 or mantissa != 0.5 or exponent % 2 == 0:
        return site, 1.0
    read = replace(site, factor=1.0, epsilon=site.epsilon / site.factor)
    return read, 2.0 ** ((1 - exponent) // 2)
