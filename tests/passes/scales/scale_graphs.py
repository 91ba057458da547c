"""Small graphs of a linear layer with scales after it, and their fusions, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph.edit import Editor
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.scales.decide import apply, decide_scales
from onnxfold.passes.scales.plan import ScaleFusion, ScalesPlan
from onnxfold.pipeline.proofs import prove_scales
from onnxfold.proof import Proof
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error

__all__ = ["BIASED", "BOUND", "Absorbed", "absorb", "applied", "assert_moved", "scale_model"]

# Weights are float64 and so is the run: a few hundred roundings of 2^-53, far below.
BOUND = 1e-12
BIASED = "m = MatMul(x, W) a = Add(m, b) "
_SHAPES = {
    "W": (6, 5), "U": (5, 6), "V": (6, 6), "V2": (6, 6), "K": (5, 4, 2), "D": (4, 1, 2),
    "QKV": (6, 14), "H": (6, 12), "b": (5,), "b2": (5,), "b3": (5,), "d": (6,), "k": (5,),
    "ls": (5,), "column": (5, 1), "four": (4, 1), "per_head": (1, 5), "qkv": (14,), "hb": (12,),
    "bq": (4,), "bk": (4,), "b8": (8,), "d3": (6,), "pair": (2,), "cos": (4, 4), "sin": (4, 4),
}  # fmt: skip
_FIXED: dict[str, Array] = {
    "eight": np.array(8.3),
    "yes": np.array(True),
    "zeros": np.array([1.0, 0.0, 2.0, 0.0, -1.0]),
    "ones": np.ones(6),
    "noughts": np.zeros(6),
    "s5": np.abs(np.random.default_rng(9).standard_normal(5)) + 0.5,
    "heads": np.array([0, 0, 1, 5]),
    "heads2": np.array([0, 0, 2, 2]),
    "heads3": np.array([0, 0, 2, -1]),
    "heads4": np.array([0, 0, 3, 4]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "four1": np.array([4]),
    "eight1": np.array([8]),
    "end": np.array([1 << 62]),
    "last": np.array([-1]),
    "thrice": np.array([1, 1, 3]),
    "copies": np.array([1, 3, 1, 1]),
    "sizes": np.array([4, 4, 6]),
    "sizes2": np.array([8, 6]),
    "halves": np.array([4, 4]),
    "i0": np.array(0),
    "i1": np.array(1),
    "i2": np.array(2),
}


def scale_model(body: str, more: dict[str, Array] | None = None) -> ir.Model:
    """Return a model of x: [B, 4, 6] with the constants that the text names."""
    made = weights(**_SHAPES) | _FIXED | (more or {})
    model = graph(body, "double[B,4,6] x", "double[] y", made)
    for value in model.graph.outputs:
        value.shape = None
    return model


@dataclass(frozen=True, slots=True)
class Absorbed:
    """A model whose layers absorb the scales after them, the decision, and the proof."""

    model: ir.Model
    fusions: tuple[ScaleFusion, ...]
    proof: Proof


def absorb(model: ir.Model, limit: int = 1 << 30) -> Absorbed:
    """Let layers do what they can; ``model`` is not changed."""
    view = infer(prepare(model).model)
    fusions, _ = decide_scales(view, find_norms(view), allow_split_bytes=limit)
    return applied(model, fusions)


def applied(
    model: ir.Model,
    fusions: tuple[ScaleFusion, ...],
    claimed: tuple[ScaleFusion, ...] | None = None,
) -> Absorbed:
    """Carry out fusions, right or wrong; the proof receives the same ones, or ``claimed``."""
    copy = prepare(model).model
    apply(Editor(infer(copy)), ScalesPlan(fusions), Settings())
    told = fusions if claimed is None else claimed
    proof = prove_scales(infer(prepare(model).model), infer(copy), told)
    return Absorbed(copy, fusions, proof)


def assert_moved(body: str, count: int, more: dict[str, Array] | None = None) -> Absorbed:
    """Check that ``count`` operators are removed, that nothing more changes, and none is left."""
    before = scale_model(body, more)
    done = absorb(before)
    assert len(done.fusions) == count
    assert len(done.model.graph) == len(before.graph) - count
    assert error(before, done.model) < BOUND
    assert done.proof.passed, done.proof.failures
    assert not absorb(done.model).fusions
    return done
