"""Apply deferrals: a row's 1 / s^2 instead of a norm, products and row epsilons downstream.

A norm downstream of u = x / s computes u / sqrt(factor mean(u^2) + e / s^2), the norm of x.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.edit import Editor, redirect, set_input, sweep
from onnxfold.graph.operands import known_operand, known_producer, known_tensor
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.flow import TableEditor, product, sites_of
from onnxfold.passes.deferral.plan import (
    DeferralPlan,
    DeferredNorm,
    UnscaledValue,
)
from onnxfold.passes.deferral.readers import halving
from onnxfold.passes.deferral.row_scale import RowNumbers, Rows, quotient, rows_of
from onnxfold.passes.gamma_tables import GammaTables, gamma_tables, scale_factors
from onnxfold.passes.places import ReaderRef
from onnxfold.targets.parameters import Parameters
from onnxfold.weights.edited import edited
from onnxfold.weights.evaluation import Centre, Scale

_GEMM_WITHOUT_BIAS = 11  # the first opset in which a Gemm may lack it


def apply(edit: Editor, plan: DeferralPlan, settings: Settings) -> None:
    """Apply the plan, norm by norm."""
    del settings  # the deferrals are already decided
    work = _Work(edit)
    for norm in plan.norms:
        work.defer(norm)


class _Work:
    """``now``: the replacements of values that norms of the version read."""

    def __init__(self, edit: Editor):
        self._edit = edit
        self._values: Mapping[str, ir.Value] = edit.by_ref()
        self._sites = {edit.info.ref(site.output): site for site in sites_of(edit.info)}
        self._parameters = Parameters(edit.info)
        self._now: dict[ir.Value, ir.Value] = {}

    def defer(self, norm: DeferredNorm) -> None:
        """Compute the readers without s, multiply by it after them, let later norms cancel it."""
        found = self._sites[norm.output]
        site = found.within(self._edit)
        x = self._now.get(site.input, site.input)
        shrunk = 4.0**-norm.exponent
        read = replace(site, factor=site.factor * shrunk, epsilon=site.epsilon * shrunk)
        axes = rows_of(found.fiber, len(self._edit.info.shape(found.output) or ()))
        rows = RowNumbers(self._edit, read, x, axes)
        for reader in norm.centred:
            self._reweigh(reader.reader, "centred", Centre(reader.fiber))
        for halved in norm.halved:
            self._reweigh(halved.reader, "halved", halving(halved))
        for held in norm.held:
            self._hold(norm, held, rows)
        tables = TableEditor(self._edit, rows)
        for table in norm.tables:
            tables.scale(known_producer(self._values[table.node]), table)
        for output, scale in norm.cancelled:
            gammas = self._gammas(output, scale.rows) if output in norm.gammas else None
            self._cancel(output, rows.inverse_square(scale), weightless=gammas is not None)
            if gammas is not None:
                self._scale_factors(gammas)
        redirect(site.output, x)
        sweep(site.nodes)

    def _reweigh(self, reader: ReaderRef, what: str, edit: Centre | Scale) -> None:
        """Give a layer its own weight."""
        node = known_producer(self._values[reader.node])
        weight = known_operand(node, reader.index)
        name = f"{weight.name}.{what}"
        copy = self._edit.new_constant(weight, edited(known_tensor(weight), edit, name), name)
        set_input(node, reader.index, copy)
        self._edit.drop_if_unread(weight)

    def _hold(self, norm: DeferredNorm, held: UnscaledValue, rows: RowNumbers) -> None:
        value = self._values[held.value]
        if not held.multiplied:
            self._edit.rename(value, f"{value.name}.deferred")
            return
        readers = [(use.node, use.idx) for use in value.uses() if self._reads_held(norm, use.node)]
        bias = self._without_bias(value) if held.biased else None
        product = self._multiplied(value, rows.scale(held.scale))
        if bias is not None:
            addition = ir.node("Add", [product, bias])
            self._edit.put_behind(product, [addition], before="scaled")
            product = addition.outputs[0]
        self._now[value] = product
        for node, index in readers:
            set_input(node, index, value)

    def _multiplied(self, value: ir.Value, scale: ir.Value) -> ir.Value:
        """Multiply a value, give the product to all readers, and return it."""
        new = NewNodes(self._edit.info.opset)
        result = product(new, value, scale)
        self._edit.put_behind(value, new.nodes, role="row_scale", before="deferred")
        return result

    def _without_bias(self, value: ir.Value) -> ir.Value | None:
        """Remove the bias of the layer that computes a value, and return it."""
        node = known_producer(value)
        index = facets.bias_behind(row_of(node))
        if index is None:
            raise InvariantError(f"no layer adds a bias to '{value.name}'")
        bias = node.inputs[index]
        required = node.op_type == "Gemm" and self._edit.info.opset < _GEMM_WITHOUT_BIAS
        set_input(node, index, self._zero(bias) if required else None)
        return bias

    def _zero(self, bias: ir.Value | None) -> ir.Value:
        """Return a zero bias for an operator that requires one."""
        if bias is None or bias.dtype is None:
            raise InvariantError("a bias that is taken away has no type")
        name = f"{bias.name}.zero"
        zero = ir.Tensor(np.zeros(1, bias.dtype.numpy()), dtype=bias.dtype, name=name)
        return self._edit.new_constant(bias, zero, name)

    def _reads_held(self, norm: DeferredNorm, node: ir.Node) -> bool:
        """Whether a node passes the scale on, or belongs to a norm that cancels it."""
        results = {self._values[held.value] for held in norm.held}
        gone = (self._sites[output] for output, _ in norm.cancelled)
        inside = {self._edit.node(inner) for site in gone for inner in site.nodes}
        return node in inside or not results.isdisjoint(node.outputs)

    def _gammas(self, output: str, rows: Rows) -> GammaTables:
        """Return the destination of a norm's gamma."""
        found = gamma_tables(self._edit.info, self._sites[output], rows)
        if found is None:
            raise InvariantError(f"no tables take the gamma of '{output}'")
        return found

    def _scale_factors(self, gammas: GammaTables) -> None:
        """Multiply tables by a gamma removed from the values that they are multiplied with."""
        scale_factors(self._edit, gammas)
        for value in gammas.held:
            now = self._edit.value(value)
            now = self._now.get(now, now)
            self._edit.rename(now, f"{now.name}.weightless")

    def _cancel(self, output: str, inverse_square: ir.Value, *, weightless: bool) -> None:
        """Spell a norm with one epsilon per row."""
        found = self._sites[output]
        site = found.within(self._edit)
        new = NewNodes(self._edit.info.opset)
        heir = quotient(new, site, site.input, inverse_square)
        gamma = None if weightless else found.gamma
        for op_type, role, part in (("Mul", "gamma", gamma), ("Add", "beta", found.beta)):
            if part is not None:
                given = self._parameters.per_channel(found, part, role, new.weights)
                operand = self._edit.value(given)
                heir = new.op(op_type, new.cast(heir, operand.dtype), operand)
                heir.type = operand.type
        heir = new.cast(heir, site.output.dtype)
        for place, node in enumerate(new.nodes):
            node.name = f"{site.name}.row_epsilon{place}"
            node.outputs[0].name = f"{site.output.name}.row_epsilon"
        self._edit.stand_in(Lowered.of(new, (site.output, heir)), site.last, site.nodes)
        self._now[site.output] = heir
