"""Small graphs around one norm, and their affine fusions, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Precision, run
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.passes.affine.apply import apply
from onnxfold.passes.affine.decide import decide_affine
from onnxfold.passes.affine.plan import AffineFusion, AffinePlan
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.proofs import prove_affine
from onnxfold.proof import Proof
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer
from tests.graphs import Array

__all__ = [
    "BOUND", "LARGE", "Fused", "error", "forced", "fuse", "outputs", "proof_of", "proved_with",
    "rightly",
]  # fmt: skip

LARGE = 1 << 40
# Weights are float64 and so is the run: a few hundred roundings of 2^-53, far below.
BOUND = 1e-12


@dataclass(frozen=True, slots=True)
class Fused:
    """A model after affine fusion, what was decided, and the proof of it."""

    model: ir.Model
    decision: AffinePlan
    proof: Proof

    @property
    def moved(self) -> tuple[int, int]:
        """How many gammas and betas moved."""
        fusions = self.decision.fusions
        return sum(f.gamma for f in fusions), sum(f.beta for f in fusions)

    @property
    def reason(self) -> str:
        """The code of the only refusal."""
        ((_, refusal),) = self.decision.refusals
        return refusal.code.value


def fuse(model: ir.Model, limit: int = LARGE) -> Fused:
    """Fuse what can be fused; ``model`` is not changed."""
    view = prepare(model).info
    sites = find_norms(view)
    assert sites
    decision = decide_affine(view, sites, allow_split_bytes=limit)
    apply(Editor(view), decision, Settings())
    return Fused(view.model, decision, proof_of(model, view.model, decision.fusions))


def forced(model: ir.Model, fusions: tuple[AffineFusion, ...]) -> Fused:
    """Carry out fusions that were decided for another model of the same names."""
    view = prepare(model).info
    decision = AffinePlan(fusions)
    apply(Editor(view), decision, Settings())
    return Fused(view.model, decision, proof_of(model, view.model, fusions))


def rightly(model: ir.Model, moved: tuple[int, int], limit: int = LARGE) -> Fused:
    """Fuse; so many gammas and betas move, proved, and the function is the same."""
    fused = fuse(model, limit)
    assert fused.moved == moved, fused.decision.refusals
    assert fused.proof.passed, fused.proof.failures
    assert error(model, fused.model) < BOUND
    return fused


def proved_with(
    model: ir.Model, fused: Fused, name: str, change: Callable[[Array], object] | float = 1e-9
) -> bool:
    """Prove the result once a constant of it is changed, or its last element by a number."""
    value = fused.model.graph.initializers[name]
    assert value.const_value is not None
    wrong = value.const_value.numpy().copy()
    if isinstance(change, float):
        wrong.flat[-1] += change
    else:
        wrong = change(wrong)
    change_constant(value, ir.tensor(wrong, name=name))
    return proof_of(model, fused.model, fused.decision.fusions).passed


def proof_of(original: ir.Model, result: ir.Model, fusions: tuple[AffineFusion, ...]) -> Proof:
    """Prove fusions of an original in a result of them."""
    return prove_affine(infer(prepare(original).model), infer(result), fusions)


def outputs(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    """Run a model in float64 on seeded inputs: normal ones, and integers below 8."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 2 for dim in (value.shape or ())]
        whole = value.dtype is not None and value.dtype.is_integer()
        feeds[value.name or ""] = rng.integers(0, 8, shape) if whole else rng.standard_normal(shape)
    return run(model, feeds, precision=Precision.FLOAT64)


def error(before: ir.Model, after: ir.Model) -> float:
    """The largest difference of any output, relative to its largest element."""
    first, second = (
        {name: array.astype(np.float64) for name, array in outputs(model).items()}
        for model in (before, after)
    )
    assert set(first) == set(second)
    return max(
        float(np.max(np.abs(first[name] - second[name])) / np.max(np.abs(first[name])))
        for name in first
    )
