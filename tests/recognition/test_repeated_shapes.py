"""One value that exporters reshape twice, by two constants of equal numbers."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.norms import NormKind
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer
from tests.graphs import graph

_NORM = (
    "a = Reshape(x, s1) b = Reshape(x, s2) m = ReduceMean<axes=[-1]>(a) d = Sub(b, m) "
    "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, epsilon) r = Sqrt(e) y = Div(d, r)"
)


@pytest.mark.parametrize(("second", "equal"), [([2, 3, 4], True), ([2, 1, 3, 4], False)])
def test_the_mean_of_a_value_in_one_shape_is_that_of_its_twin(
    second: list[int], equal: bool
) -> None:
    shapes = {"s1": np.array([2, 3, 4]), "s2": np.array(second)}
    dims = ",".join(map(str, second if equal else [2, 2, 3, 4]))
    model = graph(
        _NORM,
        "float[2,12] x",
        f"float[{dims}] y",
        shapes | {"epsilon": np.array(1e-5, np.float32)},
    )
    found = [site.kind for site in find_norms(infer(model))]
    assert (found == [NormKind.LAYER_NORM]) == equal
