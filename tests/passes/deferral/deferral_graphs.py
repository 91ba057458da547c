"""Small graphs with an RMS norm, and the pass's results: versions, plan and proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Defer
from onnxfold.passes.base import ProofOutcome, Settings
from onnxfold.passes.deferral.apply import apply
from onnxfold.passes.deferral.decide import decide
from onnxfold.passes.deferral.plan import DeferralPlan, DeferredNorm
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import PASSES
from onnxfold.pipeline.finalize import define_functions
from onnxfold.pipeline.proofs import of_deferral as prove
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import BOUND, error

__all__ = [
    "ALL",
    "BODIES",
    "MEANS",
    "Deferred",
    "attention",
    "defer",
    "feed_forward",
    "forced",
    "glu",
    "rms_graph",
    "rms_norm",
    "rotary",
]

ALL = Settings(defer=Defer.ALL)
MEANS = Settings(defer=Defer.ALL, defer_means=True)
_FOUR = np.array([0, 0, 4, 4])


@dataclass(frozen=True, slots=True)
class Deferred:
    """The version before the pass and after it."""

    before: ir.Model
    after: ir.Model
    plan: DeferralPlan
    shown: ProofOutcome

    @property
    def reasons(self) -> dict[str, str]:
        """The codes of the refusals, by the reference of the norm's output."""
        return {output: refusal.code.value for output, refusal in self.plan.refusals}

    @property
    def norm(self) -> DeferredNorm:
        """The only norm of the plan."""
        (norm,) = self.plan.norms
        return norm

    def assert_right(self) -> None:
        """It is proved, and the function is the same."""
        assert not self.shown.failures
        assert error(self.before, self.after) < BOUND

    def assert_broken(self, least: float = 1e-3) -> None:
        """The proof fails, and the function is visibly another."""
        assert error(self.before, self.after) > least
        assert self.shown.failures


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
        define_functions(ModelInfo(model), ALL.target, ALL.norm_form)
    info = ModelInfo(info.model)
    names = [node.name for node in edit.model.graph if node.name]
    assert len(set(names)) == len(names)  # ONNX Runtime rejects duplicate names
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


def feed_forward(activation: str, opset: int = 18) -> ir.Model:
    """Return two layers with an activation a of h between them."""
    body = f"h = MatMul(n, W) a = {activation} y = MatMul(a, V)"
    constants = {"W": (6, 12), "V": (12, 3), "b": (12,), "U": (6, 12)}
    used = {name: shape for name, shape in constants.items() if f"{name})" in body}
    return rms_graph(body, opset=opset, **used)


def attention(opset: int = 18, **constants: float) -> ir.Model:
    """Return attention whose queries and keys are normalized again, queries with a gamma."""
    body = (
        "q = MatMul(n, Q) k = MatMul(n, K) v = MatMul(n, V) "
        f"q4 = Reshape(q, four) {rms_norm('q4', 'qn', opset, 'eps2')}"
        f"k4 = Reshape(k, four) {rms_norm('k4', 'kn', opset, 'eps2')}"
        "v4 = Reshape(v, four) qg = Mul(qn, g) qt = Transpose<perm=[0,2,1,3]>(qg) "
        "kt = Transpose<perm=[0,2,3,1]>(kn) vt = Transpose<perm=[0,2,1,3]>(v4) "
        "s = MatMul(qt, kt) p = Softmax<axis=-1>(s) o = MatMul(p, vt) "
        "y = Transpose<perm=[0,2,1,3]>(o)"
    )
    return rms_graph(
        body,
        opset=opset,
        outputs="double[B,T,4,4] y",
        epsilon=constants.get("epsilon", 1e-5),
        Q=(6, 16),
        K=(6, 16),
        V=(6, 16),
        g=(4,),
        four=_FOUR,
        eps2=np.array(constants.get("second", 1e-3)),
    )


def glu(gate: str, opset: int) -> ir.Model:
    """Return two layers h and u, a gate of them, and a layer after their product."""
    body = f"h = MatMul(n, W) u = MatMul(n, U) {gate} m = Mul(g, u) y = MatMul(m, V)"
    return rms_graph(body, opset=opset, W=(6, 12), U=(6, 12), V=(12, 3))


# A graph of an opset, the values at which s is multiplied, the norms that cancel it.
BODIES: dict[str, tuple[Callable[[int], ir.Model], set[str], set[str]]] = {
    "a ReLU": (lambda o: feed_forward("Relu(h)", o), {"y"}, set()),
    "a LeakyReLU": (lambda o: feed_forward("LeakyRelu<alpha=0.2>(h)", o), {"y"}, set()),
    "an Abs": (lambda o: feed_forward("Abs(h)", o), {"y"}, set()),
    "a bias": (lambda o: feed_forward("Add(h, b)", o), {"h"}, set()),
    "a sigmoid": (lambda o: feed_forward("Sigmoid(h)", o), {"h"}, set()),
    "norms of queries and keys": (attention, {"v"}, {"qg", "kn"}),
    "a ReGLU": (lambda o: glu("g = Relu(h)", o), {"y"}, set()),
    "a bilinear GLU": (lambda o: glu("g = Identity(h)", o), {"y"}, set()),
    "a SwiGLU": (lambda o: glu("e = Sigmoid(h) g = Mul(h, e)", o), {"h", "y"}, set()),
}


def rotary(opset: int = 18, heads: int = 4) -> ir.Model:
    """Queries and keys of heads of 4, rotated with tables that the heads share."""

    def rotated(x: str, layer: str, shape: str) -> str:
        return (
            f"{x} = MatMul(n, {layer}) {x}4 = Reshape({x}, {shape}) "
            f"{x}t = Transpose<perm=[0,2,1,3]>({x}4) {x}c = Mul({x}t, cos) "
            f"{x}1, {x}2 = Split<axis=3>({x}t, halves) {x}m = Neg({x}2) "
            f"{x}r = Concat<axis=3>({x}m, {x}1) {x}s = Mul({x}r, sin) {x}y = Add({x}c, {x}s) "
        )

    body = (
        "p4 = Unsqueeze(p, one) cos = Cos(p4) sin = Sin(p4) "
        + rotated("q", "Q", "many")
        + rotated("k", "K", "few")
    )
    made = {**weights(Q=(6, 4 * heads), K=(6, 8)), "eps": np.array(1e-5), "last": np.array([-1])}
    made |= {"many": np.array([0, 0, heads, 4]), "few": np.array([0, 0, 2, 4])}
    made |= {"one": np.array([1]), "halves": np.array([2, 2])}
    inputs = "double[B,T,6] x, double[B,T,4] p"
    outputs = f"double[B,{heads},T,4] qy, double[B,2,T,4] ky"
    return graph(rms_norm("x", "n", opset) + body, inputs, outputs, made, opset=opset)
