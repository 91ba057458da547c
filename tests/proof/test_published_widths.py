"""Models as wide as published ones are proved on smaller tensors, which Reshapes must fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import onnxfold
from tests.graphs import Array, model, weights


def _constants(integers: dict[str, list[int]], **shapes: tuple[int, ...]) -> dict[str, Array]:
    made = weights(W=(768, 768), gamma=(768,), beta=(768,), **shapes)
    floats = {name: array.astype(np.float32) for name, array in made.items()}
    return floats | {name: np.array(numbers) for name, numbers in integers.items()}


def _positions_of_deberta() -> onnx.ModelProto:
    """Return 512 rows of a table, normalized, as 12 heads of 64, once for every text."""
    return model(
        "n = LayerNormalization(table, gamma, beta) m = MatMul(n, W) k = Add(m, b) "
        "r = Reshape(k, heads) t = Transpose<perm=[1,0,2]>(r) rows = Shape(q) "
        "batch = Slice(rows, zero, one) repeats = Concat<axis=0>(batch, one, one) "
        "c = Tile(t, repeats) u = Transpose<perm=[0,2,1]>(c) y = MatMul(q, u)",
        "float[N,7,64] q",
        "float[N,7,512] y",
        _constants({"heads": [512, 12, 64], "zero": [0], "one": [1]}, table=(512, 768), b=(768,)),
    )


def _positions_of_yolos() -> onnx.ModelProto:
    """Return a grid of 32 x 54 positions, resized to 32 x 32, with tokens beside it."""
    return model(
        "g = Transpose<perm=[0,2,1]>(table) h = Reshape(g, grid) "
        'i = Resize<mode="cubic", coordinate_transformation_mode="pytorch_half_pixel">'
        "(h, , , sizes) j = Reshape(i, flat) k = Transpose<perm=[0,2,1]>(j) "
        "l = Concat<axis=1>(k, tokens) p = MatMul(x, V) z = Add(p, l) "
        "n = LayerNormalization(z, gamma, beta) y = MatMul(n, W)",
        "float[N,1125,768] x",
        "float[N,1125,768] y",
        _constants(
            {"grid": [1, 768, 32, 54], "sizes": [1, 768, 32, 32], "flat": [1, 768, 1024]},
            table=(1, 1728, 768), tokens=(1, 101, 768), V=(768, 768),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("made", [_positions_of_deberta, _positions_of_yolos])
def test_positions_as_many_as_published_ones_are_proved(
    made: Callable[[], onnx.ModelProto],
) -> None:
    result = onnxfold.optimize(made(), target="ort", fold="always", check=0)
    assert "left_out" not in result.report
    assert "SimplifiedLayerNormalization" in [node.op_type for node in result.model.graph.node]
