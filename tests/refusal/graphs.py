"""One small float64 graph per reason to leave a norm alone (tests/cases/refusals.txt)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.plan import Fold, WeightCentring
from onnxfold.passes.plan import Plan
from onnxfold.refusal import RefusalCode
from tests.case_files import read, shapes
from tests.graphs import Array, model, without_shapes

__all__ = ["CASES", "Case", "case"]

CASES = read("refusals")
B, T, C = 2, 4, 6
_SIZES = "W 6 6, left 6 3, right 6 3, kernel 6 3 1, scale 6, beta 6, beta4 4"


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the node at fault for which its norm is left, and the plan that is forbidden."""

    code: RefusalCode
    culprit: str
    model: onnx.ModelProto
    feeds: dict[str, Array]
    axes: dict[str, int]

    def forbidden(self) -> Plan:
        """Fold the norm all the same, and center the weights along the given axes."""
        sizes = {t.name: tuple(t.dims) for t in self.model.graph.initializer}
        return Plan(
            (Fold("ln", "ln"),),
            tuple(
                WeightCentring(name, Fiber((AxisBlock(axis, 1, sizes[name][axis], 1),)), 0)
                for name, axis in self.axes.items()
            ),
        )


def case(name: str) -> Case:
    """Return the case of a reason, newly made."""
    culprit, outputs, axes, opset, more = CASES[name].columns
    results = ", ".join(f"double {each}" for each in ("ln", *outputs.split()))
    inputs = ", ".join(filter(None, ("double[batch,4,6] x", more)))
    proto = without_shapes(model(CASES[name].body, inputs, results, _constants(), int(opset)))
    for node in proto.graph.node:
        node.name = node.output[0]
    stored = {tensor.name for tensor in proto.graph.initializer}
    feeds = {value.name: _feed(value.name) for value in proto.graph.input}
    return Case(
        RefusalCode(name),
        culprit,
        proto,
        {given: feed for given, feed in feeds.items() if given not in stored},
        {weight: axis for weight, (axis,) in shapes(axes).items()},
    )


def _constants() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {
        name: rng.standard_normal(size) + 0.5 for name, size in shapes(_SIZES).items()
    }
    made |= {"gamma": 1 + rng.random(C), "gamma4": 1 + rng.random(4), "fours": np.array([-1, 4])}
    made |= {"codes": rng.integers(-100, 120, (C, C)).astype(np.int8), "step": np.float32(0.02)}
    return made | {"axes": np.array([-1]), "two": np.array(2.0), "epsilon": np.array(2.0**-10)}


def _feed(name: str) -> Array:
    rng = np.random.default_rng(1)
    feeds = {
        "flag": np.array(True),
        "shape": np.array([B, T, C]),
        "counts": rng.integers(0, 9, (B, T, C)),
    }
    return feeds.get(name, rng.standard_normal((B, T, C)) + 1)
