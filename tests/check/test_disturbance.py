"""What moving every weight and result by a rounding does to a model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check import runners
from onnxfold.check.disturbance import disturbed, disturbed_model
from onnxfold.model_io.load import Source
from tests.check.verified import single


def _runs(model: ir.Model, engine: str) -> list[dict[str, np.ndarray]]:
    feeds = {"x": np.ones(1, dtype=np.float32)}
    if engine == "interpreter":
        return disturbed(model, feeds, draws=2, seed=0)
    sources = [Source(disturbed_model(model, seed)) for seed in (0, 1)]
    runs = runners.OnnxRuntime()
    return [runs.run(source, [feeds], optimize=False)[0] for source in sources]


@pytest.mark.parametrize("engine", ["interpreter", "ONNX Runtime"])
def test_weights_move_by_roundings_and_vectors_stay(engine: str) -> None:
    """Folding a factor into a weight rounds it again; Transpose rounds nothing."""
    body = "y = Transpose (w)  b = Identity (v)  z = Neg (x)"
    proto = ir.to_proto(single(body, "float[1] x", "float[M, N] y, float[K] b"))
    largest = np.finfo(np.float32).max
    weight = np.array([[1.5] * 32, [largest] * 32], dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight[0], "v"))
    first, second = _runs(ir.from_proto(proto), engine)
    for run in (first, second):
        error = np.abs(run["y"].T / weight - 1)
        assert 0 < error[0].max() <= 2.0**-23  # the unit roundoff, and the rounding of its result
        assert np.isfinite(run["y"]).all()
        assert np.array_equal(run["b"], weight[0])
    assert not np.array_equal(first["y"], second["y"])
