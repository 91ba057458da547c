"""The stages of a fold by hand, and an evaluator that is not onnxfold's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfold.analysis import Analysis, analyse
from onnxfold.graph import GraphView
from onnxfold.lower.residual import residual_fusions
from onnxfold.lower.target import Target
from onnxfold.planning import Plan
from onnxfold.prepare import prepare
from onnxfold.prove import Proof, prove
from onnxfold.rewrite import apply_fusions, apply_plan
from tests.soundness.sample import Array

__all__ = ["Folded", "evaluate", "fold", "forced", "relative_error"]


@dataclass(frozen=True, slots=True)
class Folded:
    """A model after the fold, the plan, and the proof of the one against the original."""

    model: onnx.ModelProto
    plan: Plan
    proof: Proof
    analysis: Analysis


def fold(
    model: onnx.ModelProto,
    target: Target = Target.PORTABLE,
    *,
    allow_split_bytes: int = 1 << 20,
    fuse: bool = False,
) -> Folded:
    """Fold everything that the plan finds worth it."""
    original = ir.from_proto(model)
    analysis = analyse(prepare(original).model, target, allow_split_bytes=allow_split_bytes)
    return _finished(original, analysis, analysis.plan, fuse=fuse)


def forced(model: onnx.ModelProto, plan: Plan, target: Target = Target.PORTABLE) -> Folded:
    """Carry out a plan that nobody made for the model."""
    original = ir.from_proto(model)
    analysis = analyse(prepare(original).model, target)
    return _finished(original, analysis, plan, fuse=False)


def _finished(original: ir.Model, analysis: Analysis, plan: Plan, *, fuse: bool) -> Folded:
    result = apply_plan(analysis.view, plan, analysis.sites, analysis.lowering).model
    if fuse:
        apply_fusions(result, residual_fusions(GraphView(result)))
    views = [GraphView(prepare(side).model) for side in (original, result)]
    proof = prove(views[0], views[1], plan)
    result.ir_version = max(result.ir_version, 8)
    return Folded(ir.to_proto(result), plan, proof, analysis)


class SimplifiedLayerNormalization(OpRun):
    """ONNX Runtime's operator in the types of its input."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, axis: int, epsilon: float, stash_type: int
    ) -> tuple[Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        return (x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + epsilon) * scale,)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model in float64 whatever its type, with onnx's evaluator."""
    session = ReferenceEvaluator(_wide(model), new_ops=[SimplifiedLayerNormalization])
    wide = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in feeds.items()}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return [np.asarray(result) for result in session.run(None, wide)]


def relative_error(expected: list[Array], got: list[Array]) -> float:
    """The largest difference, relative to the largest element of its output."""
    worst = 0.0
    for a, b in zip(expected, got, strict=True):
        if a.shape != b.shape:
            return float("inf")
        scale = max(1.0, float(np.abs(a).max(initial=0.0)))
        worst = max(worst, float(np.abs(a - b).max(initial=0.0)) / scale)
    return worst


def _wide(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every FLOAT turned into DOUBLE; its numbers stay what they are."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output):
        _widen_type(value)
    _widen_graph(wide.graph)
    for function in wide.functions:
        nodes = [new for node in function.node for new in _widened(node)]
        del function.node[:]
        function.node.extend(nodes)
    return wide


def _widen_type(value: onnx.ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type == TensorProto.FLOAT:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    del graph.value_info[:]
    nodes = [new for node in graph.node for new in _widened(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _widened(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the node with wide tensors; a float attribute makes a FLOAT, hence a Cast."""
    for attribute in node.attribute:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        elif attribute.HasField("t"):
            _widen_tensor(attribute.t)
        elif attribute.HasField("g"):
            _widen_graph(attribute.g)
        elif attribute.name == "value_float":
            name = node.output[0]
            node.output[0] = f"{name}.float"
            cast = helper.make_node("Cast", [node.output[0]], [name], to=TensorProto.DOUBLE)
            return [node, cast]
    return [node]


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    # What Resize reads as scales stays float32: its type is fixed.
    if tensor.data_type == TensorProto.FLOAT and tensor.name[:6] != "scales":
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
