"""RMSNorms in the spellings of dynamo and jax2onnx, which sessions cannot fuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfold
from tests import graphs
from tests.sessions import executed

WIDTH = 8
DYNAMO = "square = Pow(x, TWO)", "inverse = Reciprocal(root)  normed = Mul(x, inverse)"
JAX = "square = Mul(x, x)", "normed = Div(x, root)"
KERAS = "square = Pow(x, TWO)", "normed = Div(x, root)", "kept = Min(shifted, INF)"


def rms(
    spelling: tuple[str, ...] = DYNAMO, *, gamma: bool = True, kind: str = "float"
) -> onnx.ModelProto:
    """An RMSNorm before a linear layer."""
    square, quotient, *guards = spelling
    scaled = "n = Mul(G, normed)" if gamma else "n = Identity(normed)"
    body = (
        f"{square} mean = ReduceMean<keepdims=1>(square, LAST) shifted = Add(mean, EPSILON) "
        f"{' '.join(guards)} root = Sqrt({'kept' if guards else 'shifted'}) {quotient} {scaled} "
        "y = MatMul(n, W)"
    )
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
    made = graphs.weights(G=(WIDTH,), W=(WIDTH, WIDTH))
    made |= {"TWO": np.array(2.0), "EPSILON": np.array(np.float32(1e-5), np.float64)}
    made |= {"LAST": np.array([-1]), "INF": np.array(np.inf)}
    stream = f"{kind}[B,4,{WIDTH}]"
    return graphs.model(body, f"{stream} x", f"{stream} y", made, dtype=dtype)


def operators(given: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in given.graph.node]


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("spelling", [DYNAMO, JAX, KERAS], ids=["dynamo", "jax", "keras"])
def test_a_session_makes_one_operator_of_a_quotient(
    spelling: tuple[str, ...], gamma: bool, tmp_path: Path
) -> None:
    """With a scale of ones if gamma is missing."""
    given = rms(spelling, gamma=gamma)
    result = onnxfold.optimize(given)
    assert "SimplifiedLayerNormalization" not in operators(executed(given, tmp_path))
    assert operators(executed(result.model, tmp_path)) == ["SimplifiedLayerNormalization", "MatMul"]
    assert onnxfold.optimize(result.model).model == result.model


@pytest.mark.parametrize("spelling", [DYNAMO, JAX])
def test_an_operator_of_the_opset_gives_its_gamma_away_at_once(spelling: tuple[str, str]) -> None:
    """It once kept gamma like a quotient, and a second run moved it."""
    result = onnxfold.optimize(rms(spelling), norm_form="op")
    assert operators(result.model) == ["RMSNormalization", "MatMul"]
    assert not onnxfold.optimize(result.model, norm_form="op", check=None).changed
    kept = {each.name: numpy_helper.to_array(each) for each in result.model.graph.initializer}
    (given,) = (each for each in rms(spelling).graph.initializer if each.name == "W")
    assert not np.array_equal(kept["W"], numpy_helper.to_array(given))


def test_no_weight_changes() -> None:
    """The product by gamma has to stay, so that nothing were gained by moving gamma."""
    made = onnxfold.optimize(rms()).model
    kept = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    for each in rms().graph.initializer:
        if each.name in "GW":
            np.testing.assert_array_equal(kept[each.name], numpy_helper.to_array(each))


def test_what_a_session_makes_no_operator_of_stays() -> None:
    assert "Reciprocal" in operators(onnxfold.optimize(rms(kind="float16")).model)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_statistics_in_double_stay_there(target: str) -> None:
    """No operator of floats takes them in as many digits, nor does a second run after a fold."""
    wide = rms(kind="double")
    narrow = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]>\n'
        f"graph (float[B,4,{WIDTH}] u) => (float[B,4,{WIDTH}] v)"
        " { x = Cast<to=11>(u)  w = Cast<to=1>(n)  v = MatMul(w, V) }"
    )
    into, *out = list(narrow.graph.node)
    del narrow.graph.node[:]
    narrow.graph.node.extend([into, *wide.graph.node[:-1], *out])
    made = {each.name: numpy_helper.to_array(each) for each in wide.graph.initializer}
    made["V"] = made.pop("W").astype(np.float32)
    for name, array in made.items():
        narrow.graph.initializer.append(numpy_helper.from_array(array, name))
    gamma = operators(narrow).index("Mul")  # which no session needs in order to fuse the rest
    assert operators(onnxfold.optimize(narrow, target=target).model) == [
        op_type for place, op_type in enumerate(operators(narrow)) if place != gamma
    ]
