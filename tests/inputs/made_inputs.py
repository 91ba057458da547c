"""Small models, and inputs made up for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.inputs import InputSpec, make_inputs
from tests.graphs import Array, graph

__all__ = ["Samples", "made", "parsed"]

Samples = list[dict[str, np.ndarray]]


ARRAYS: dict[str, Array] = {
    "T": np.zeros((7, 4), np.float32),
    "P": np.zeros((3, 4), np.float32),
    "G": np.zeros(4, np.float32),
    "S": np.array([-1]),
    "axis": np.array([1]),
    "wave": np.ones((1, 1, 1), np.float32),
    "gray": np.ones((1, 1, 1, 1), np.float32),
    "rgb": np.ones((8, 3, 1, 1), np.float32),
    "six": np.ones((8, 6, 1, 1), np.float32),
    "bias": np.ones(8, np.float32),
    "mean": np.ones((1, 3, 1, 1), np.float32),
    "short": np.ones((1, 1, 2), np.float32),
}


def parsed(inputs: str, body: str = "", outputs: str = "float y", **arrays: Array) -> ir.Model:
    """Return a model of these nodes, which may read `ARRAYS`; otherwise it hands on an input."""
    last = inputs.rsplit(maxsplit=1)[-1]
    return graph(body or f"y = Identity ({last})", inputs, outputs, ARRAYS | arrays, 17)


def made(
    model: ir.Model, spec: InputSpec | None = None, *, count: int = 4, seed: int = 0
) -> Samples:
    return make_inputs(model, spec or InputSpec(), count=count, seed=seed)
