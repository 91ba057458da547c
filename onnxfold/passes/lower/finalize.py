"""The final form of a rewritten model: types, functions, IR version, and what was done to it."""

from __future__ import annotations

import json

import onnx_ir as ir

from onnxfold import __version__
from onnxfold.graph.traversal import all_graphs
from onnxfold.operators.functions import DOMAIN, INLINED
from onnxfold.options import Target
from onnxfold.passes.plan import Plan
from onnxfold.shapes.inference import strip_types

__all__ = ["METADATA_KEY", "finished", "inline_functions"]

METADATA_KEY = "onnxfold"
_FUNCTIONS_SINCE_IR = 8


def finished(model: ir.Model, original: ir.Model, plan: Plan, target: Target) -> ir.Model:
    """Take away what only the work needed, and note in one metadata key what was done."""
    strip_types(model, like=original)
    used = {node.op_identifier() for graph in all_graphs(model) for node in graph}
    for identifier in [key for key in model.functions if key[0] == DOMAIN and key not in used]:
        del model.functions[identifier]
    if not any(domain == DOMAIN for domain, *_ in used):
        model.graph.opset_imports.pop(DOMAIN, None)
    if model.functions and model.ir_version < _FUNCTIONS_SINCE_IR:
        model.ir_version = _FUNCTIONS_SINCE_IR
    model.metadata_props[METADATA_KEY] = json.dumps(
        {
            "version": __version__,
            "target": target.value,
            "folded": len(plan.folds),
            "inserted_centerings": len(plan.insertions),
        },
        sort_keys=True,
    )
    return model


def inline_functions(model: ir.Model, *, everything: bool) -> None:
    """Replace calls of domain onnxfold by their bodies: all, or those that must not stay."""

    def wanted(function: ir.Function) -> bool:
        return function.domain == DOMAIN and (everything or function.overload == INLINED)

    if any(wanted(function) for function in model.functions.values()):
        from onnx_ir.passes.common import InlinePass

        InlinePass(criteria=wanted)(model)
    domains = {function.domain for function in model.functions.values()}
    domains |= {node.domain for graph in all_graphs(model) for node in graph}
    if DOMAIN not in domains:
        model.graph.opset_imports.pop(DOMAIN, None)
