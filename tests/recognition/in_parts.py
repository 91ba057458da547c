"""A layer norm in operators: the text of its parts, for models in ONNX text."""

from __future__ import annotations

import onnx

from tests.recognition.replay import model, with_constants

CONSTANTS = "two = Constant<value = float {2.0}>()\ne = Constant<value = float {1e-5}>()\n"
CENTRE = "u = ReduceMean<axes=[-1]>(x)\nd = Sub(x, u)\n"
DEVIATION = "q = Pow(d, two)\nv = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\ns = Sqrt(ve)\n"
AFFINE = "float[B,3,8] x, float[8] g, float[8] b"


def norm(
    tail: str, inputs: str = "float[B,3,8] x", outputs: str = "float[] y", **given: object
) -> onnx.ModelProto:
    """A layer norm up to the deviation, and what follows."""
    return with_constants(model(CONSTANTS + CENTRE + DEVIATION + tail, inputs, outputs), **given)
