"""Inputs whose number of channels a model leaves open, though a convolution takes one alone."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfold.target import Target
from tests.soundness.folding import fold

# As exporters of vision models write it: batch, channels, height and width are open.
_VISION = """
<ir_version: 8, opset_import: ["": 17]>
vision (float[b,c,h,w] pixels) => (y) {
  grid = Conv <kernel_shape=[8,8], strides=[8,8]> (pixels, patches, patches_bias)
  rows = Reshape (grid, flat)  x = Transpose <perm=[0,2,1]> (rows)
  n = LayerNormalization <axis=-1> (x, gamma, beta)  f = MatMul (n, W)  g = Add (f, bias)
  r = Add (x, g)  m = LayerNormalization <axis=-1> (r, gamma, beta)  p = MatMul (m, V)
  y = Add (p, bias)
}
"""


def test_norms_behind_a_convolution_of_open_channels_are_proved() -> None:
    model = onnx.parser.parse_model(_VISION)
    rng = np.random.default_rng(0)
    shapes = {"patches": (12, 3, 8, 8), "patches_bias": (12,), "W": (12, 12), "V": (12, 12)}
    shapes |= dict.fromkeys(("gamma", "beta", "bias"), (12,))
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    tensors = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    sizes = numpy_helper.from_array(np.array([0, 12, -1]), "flat")
    model.graph.initializer.extend([*tensors, sizes])
    folded = fold(model, Target.ONNX)
    assert folded.proof.passed, folded.proof.failures
    assert len(folded.plan.folds) == 2
