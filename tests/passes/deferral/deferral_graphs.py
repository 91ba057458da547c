"""Small graphs with an RMS norm, and what the pass makes of them: versions, plan and proof."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Defer
from onnxfold.passes.base import Settings, Shown
from onnxfold.passes.deferral.apply import apply
from onnxfold.passes.deferral.decide import decide
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.deferral.prove import prove
from onnxfold.passes.lower.finalize import define_functions
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import PASSES
from tests.passes.affine.affine_graphs import Array, graph, weights

__all__ = ["ALL", "Deferred", "defer", "forced", "rms_graph", "rms_norm"]

ALL = Settings(defer=Defer.ALL)


@dataclass(frozen=True, slots=True)
class Deferred:
    """The version before the pass and after it."""

    before: ir.Model
    after: ir.Model
    plan: DeferralPlan
    shown: Shown

    @property
    def reasons(self) -> dict[str, str]:
        """The codes of the refusals, by the reference of the norm's output."""
        return {output: refusal.code.value for output, refusal in self.plan.refusals}


def defer(model: ir.Model, settings: Settings = ALL) -> Deferred:
    """Carry out all passes up to this one on a copy of the model."""
    info = prepare(model).info
    for each in PASSES[:-1]:
        decision = each.decide(info, settings)
        if not decision.empty:
            each.apply(Editor(info), decision, settings)
            info = ModelInfo(info.model)
    return _carried_out(info, decide(info, settings))


def forced(model: ir.Model, plan: DeferralPlan) -> Deferred:
    """Carry out a plan that was decided for another model of the same names."""
    return _carried_out(prepare(model).info, plan)


def _carried_out(info: ModelInfo, plan: DeferralPlan) -> Deferred:
    edit = Editor(info, copy=True)
    apply(edit, plan, ALL)
    for model in (info.model, edit.model):  # which folded norms call
        define_functions(model, ALL.target, ALL.norm_form)
    info = ModelInfo(info.model)
    names = [node.name for node in edit.model.graph if node.name]
    assert len(set(names)) == len(names)  # or ONNX Runtime takes no such model
    return Deferred(info.model, edit.model, plan, prove(info, ModelInfo(edit.model), plan))


def rms_norm(x: str, y: str, opset: int, epsilon: str = "eps") -> str:
    """Text of y = x / sqrt(mean(x^2) + epsilon) along the last axis, in operators."""
    axes = "(sq_{y}, last)" if opset >= 18 else "<axes=[-1], keepdims=1>(sq_{y})"
    return (
        f"sq_{y} = Mul({x}, {x}) ms_{y} = ReduceMean{axes.format(y=y)} "
        f"me_{y} = Add(ms_{y}, {epsilon}) rt_{y} = Sqrt(me_{y}) {y} = Div({x}, rt_{y}) "
    )


def rms_graph(
    body: str,
    *,
    opset: int = 18,
    width: int = 6,
    outputs: str = "double[B,T,3] y",
    epsilon: float = 1e-5,
    **constants: tuple[int, ...] | Array,
) -> ir.Model:
    """Return a model that reads x: [B, T, width], and n, the RMS norm of it.

    A constant is given as a shape, to be drawn, or as an array.
    """
    shapes = {name: given for name, given in constants.items() if isinstance(given, tuple)}
    arrays = {name: given for name, given in constants.items() if isinstance(given, np.ndarray)}
    made: dict[str, Array] = {**weights(**shapes), **arrays, "eps": np.array(epsilon)}
    if opset >= 18:
        made["last"] = np.array([-1])
    text = rms_norm("x", "n", opset) + body
    return graph(text, f"double[B,T,{width}] x", outputs, made, opset=opset)
