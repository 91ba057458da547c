"""Carries out deferrals: a row's 1 / s^2 in the place of a norm, products and row epsilons behind.

A norm behind u = x / s computes u / sqrt(factor mean(u^2) + e / s^2), which is that of x.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.edit import Editor, Lowered, redirect, set_input, sweep
from onnxfold.norms import NormSite, find_norms
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.plan import DeferralPlan, DeferredNorm, Held
from onnxfold.passes.deferral.row_numbers import RowNumbers, epsilon_of, mean_square
from onnxfold.passes.lower.parameters import AffinePart, Parameters

__all__ = ["apply"]


def apply(edit: Editor, plan: DeferralPlan, settings: Settings) -> bool:
    """Carry out the plan, norm by norm."""
    del settings  # what is deferred has been decided
    work = _Work(edit)
    for norm in plan.norms:
        work.defer(norm)
    return not plan.empty


class _Work:
    """``now``: what stands for a value that a norm of the version reads, where it is another."""

    def __init__(self, edit: Editor):
        self._edit = edit
        self._values: Mapping[str, ir.Value] = edit.by_ref()
        self._sites = {edit.info.ref(site.output): site for site in find_norms(edit.info)}
        self._parameters = Parameters(edit.info)
        self._now: dict[ir.Value, ir.Value] = {}

    def defer(self, norm: DeferredNorm) -> None:
        """Compute the readers without s, multiply it behind them, let later norms cancel it."""
        site = self._sites[norm.output].within(self._edit)
        x = self._now.get(site.input, site.input)
        rows = RowNumbers(self._edit, site, x)
        for held in norm.held:
            self._hold(norm, held, rows)
        for output, scale in norm.cancelled:
            self._cancel(output, rows.inverse_square(scale))
        redirect(site.output, x)
        sweep(reversed(site.nodes))

    def _hold(self, norm: DeferredNorm, held: Held, rows: RowNumbers) -> None:
        value = self._values[held.value]
        if not held.multiplied:
            self._edit.rename(value, "deferred")
            return
        readers = [(use.node, use.idx) for use in value.uses() if self._reads_held(norm, use.node)]
        bias = self._without_bias(value) if held.biased else None
        product = ir.node("Mul", [value, rows.scale(held.scale)])
        self._edit.put_behind(value, product, role="row_scale", before="deferred")
        self._now[value] = product.outputs[0]
        if bias is not None:
            addition = ir.node("Add", [product.outputs[0], bias])
            self._edit.put_behind(product.outputs[0], addition, before="scaled")
            self._now[value] = addition.outputs[0]
        for node, index in readers:
            set_input(node, index, value)

    def _without_bias(self, value: ir.Value) -> ir.Value | None:
        """Take the bias of the layer that gives a value away; return it."""
        node = value.producer()
        index = None if node is None else facets.bias_behind(row_of(node))
        if node is None or index is None:
            raise InvariantError(f"no layer adds a bias to '{value.name}'")
        bias = node.inputs[index]
        set_input(node, index, None)
        return bias

    def _reads_held(self, norm: DeferredNorm, node: ir.Node) -> bool:
        """Whether a node hands the scale on, or belongs to a norm that cancels it."""
        results = {self._values[held.value] for held in norm.held}
        gone = (self._sites[output] for output, _ in norm.cancelled)
        inside = {self._edit.node(inner) for site in gone for inner in site.nodes}
        return node in inside or not results.isdisjoint(node.outputs)

    def _cancel(self, output: str, inverse_square: ir.Value) -> None:
        """Spell a norm with an epsilon for each row."""
        found = self._sites[output]
        site = found.within(self._edit)
        u = site.input
        epsilon = epsilon_of(site)
        nodes, made = mean_square(site, u, self._edit.info.opset)
        nodes.append(ir.node("Mul", [inverse_square, epsilon]))
        nodes.append(ir.node("Add", [nodes[-2].outputs[0], nodes[-1].outputs[0]]))
        nodes.append(ir.node("Sqrt", [nodes[-1].outputs[0]]))
        nodes.append(ir.node("Div", [u, nodes[-1].outputs[0]]))
        made.append(epsilon)
        for op_type, role, part in (("Mul", "gamma", found.gamma), ("Add", "beta", found.beta)):
            operand = self._operand(found, part, role, made)
            if operand is not None:
                nodes.append(ir.node(op_type, [nodes[-1].outputs[0], operand]))
        for place, node in enumerate(nodes):
            node.outputs[0].type = u.type
            node.name = f"{site.name}.row_epsilon{place}"
            node.outputs[0].name = f"{site.output.name}.row_epsilon"
        heir = nodes[-1].outputs[0]
        old = site.output
        self._edit.stand_in(
            Lowered(tuple(nodes), ((old, heir),), tuple(made)), site.last, reversed(site.nodes)
        )
        self._now[old] = heir

    def _operand(
        self, site: NormSite, part: AffinePart, role: str, made: list[ir.Value]
    ) -> ir.Value | None:
        if part is None:
            return None
        value = self._parameters.per_channel(site, part, role, made)
        return self._edit.value(value)
