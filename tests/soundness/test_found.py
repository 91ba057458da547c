"""What random graphs found, by hand: each was folded wrongly, crashed or failed its proof once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.options import Target
from tests.operators.sample import Array
from tests.soundness import corpus
from tests.soundness.checking import Settings, check
from tests.soundness.random_graphs import RandomGraph

_NUMPY = {"double": np.float64, "float16": np.float16, "float": np.float32}
_LN = "LayerNormalization<axis=-1, epsilon=0.0009765625>"

# name: (type of the weights, inputs, outputs, nodes, weights, opset)
_CASES: dict[str, tuple[str, str, str, str, dict[str, tuple[int, ...]], int]] = {
    "a norm along a symbolic axis says nothing of another axis": (
        "double",
        "double[batch,4,3] x",
        "y",
        "h = MatMul(x, W) t = Transpose<perm=[1,2,0]>(h) m = ReduceMean<axes=[-1]>(t) "
        "c = Sub(t, m) s = Mul(c, c) v = ReduceMean<axes=[-1]>(s) a = Add(v, e) r = Sqrt(a) "
        f"d = Div(c, r) b = Transpose<perm=[2,0,1]>(d) y = {_LN}(b, gamma)",
        {"W": (3, 6), "e": (), "gamma": (6,)},
        17,
    ),
    "a new bias has the type of the operator, not of the weight behind a Cast": (
        "double",
        "double[batch,3,4] x",
        "y",
        "k = Cast<to=11>(W) h = Conv(x, k) s = BatchNormalization(h, g, b, m, v) y = Relu(s)",
        {"W": (6, 3, 1), "g": (6,), "b": (6,), "m": (6,), "v": (6,)},
        17,
    ),
    "a scale behind an absorbed shift scales the new bias too": (
        "double",
        "double[batch,3,4] x",
        "y",
        "h = Conv(x, W) s = BatchNormalization(h, g, b, m, v) z = Mul(s, e) y = Relu(z)",
        {"W": (6, 3, 1), "g": (6,), "b": (6,), "m": (6,), "v": (6,), "e": ()},
        17,
    ),
    "two subtractions of one mean": (
        "double",
        "double[batch,4,3] x",
        "y",
        "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) c = Sub(h, m) d = Sub(h, m) s = Mul(d, d) "
        "v = ReduceMean<axes=[-1]>(s) r = Sqrt(v) a = Add(r, e) y = Div(c, a)",
        {"W": (3, 6), "e": ()},
        17,
    ),
    "a variance E[x^2] - E[x]^2 beside a centred numerator that others read": (
        "double",
        "double[batch,4,3] x",
        "y, z",
        "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) c = Sub(h, m) s = Mul(h, h) "
        "q = ReduceMean<axes=[-1]>(s) p = Mul(m, m) v = Sub(q, p) a = Add(v, e) r = Sqrt(a) "
        "y = Div(c, r) z = Sigmoid(c)",
        {"W": (3, 6), "e": ()},
        17,
    ),
    "a gamma in float32 that float16 cannot hold": (
        "float16",
        "float16[batch,4,3] x",
        "y",
        "h = MatMul(x, W) f = Cast<to=1>(h) m = ReduceMean<axes=[-1]>(f) c = Sub(f, m) "
        "s = Mul(c, c) v = ReduceMean<axes=[-1]>(s) a = Add(v, wide_e) r = Sqrt(a) d = Div(c, r) "
        "g = Mul(d, wide_gamma) y = Cast<to=10>(g)",
        {"W": (3, 6), "wide_e": (), "wide_gamma": (6,)},
        17,
    ),
    "a body of float32 around a norm of float16 whose epsilon stands outside": (
        "float16",
        "float16[batch,4,3] x",
        "y",
        "h = MatMul(x, W) f = Cast<to=1>(h) m = ReduceMean<axes=[-1]>(f) c = Sub(f, m) "
        "s = Mul(c, c) v = ReduceMean<axes=[-1]>(s) r = Sqrt(v) a = Add(r, wide_e) d = Div(c, a) "
        "y = Cast<to=10>(d)",
        {"W": (3, 6), "wide_e": ()},
        17,
    ),
    "CastLike of a value by itself": (
        "double",
        "double[batch,4,3] x",
        "y",
        f"h = MatMul(x, W) c = CastLike(h, h) y = {_LN}(c, gamma)",
        {"W": (3, 6), "gamma": (6,)},
        17,
    ),
    "a scale that alone tells the size of a symbolic axis": (
        "double",
        "double[batch,width] x",
        "y",
        f"y = {_LN}(x, gamma, beta)",
        {"gamma": (6,), "beta": (6,)},
        17,
    ),
    "no centring of what only a scale tells the size of": (
        "double",
        "double[1,1,width] x, double[1,1,width] z",
        "y, u",
        f"a = Mul(x, W) b = Div(a, z) y = {_LN}(b, gamma) u = {_LN}(b, delta)",
        {"W": (4, 8, 1), "gamma": (6,), "delta": (6,)},
        21,
    ),
    "a beta of another rank behind a contrib norm": (
        "double",
        "double[3,4] x",
        "y",
        "h = MatMul(x, W) r = Reshape(h, shape) m = ReduceMean<axes=[2]>(r) c = Sub(r, m) "
        "s = Mul(c, c) v = ReduceMean<axes=[2]>(s) a = Add(v, e) q = Sqrt(a) d = Div(c, q) "
        "g = Mul(d, gamma) y = Add(g, beta)",
        {"W": (4, 4), "e": (), "gamma": (1, 1, 2), "beta": (1, 1, 2)},
        9,
    ),
    "a Transpose of the stream before one that is pulled in front of a subtraction": (
        "double",
        "double[batch,4,3] x",
        "y, z",
        f"h = MatMul(x, W) t = Transpose<perm=[0,2,1]>(h) y = {_LN}(t, gamma) "
        "m = ReduceMean<axes=[-1]>(h) c = Sub(h, m) u = Transpose<perm=[0,2,1]>(c) "
        "z = InstanceNormalization(u, g, b)",
        {"W": (3, 6), "gamma": (4,), "g": (6,), "b": (6,)},
        17,
    ),
    "a dead norm and a dead reader see no difference": (
        "double",
        "double[batch,4,3] x",
        "y",
        f"h = MatMul(x, W) y = {_LN}(h, gamma) dead = Sigmoid(h) dead2 = Exp(dead) "
        "dead3 = LayerNormalization<axis=-2>(h, wide)",
        {"W": (3, 6), "gamma": (6,), "wide": (4, 6)},
        17,
    ),
}


def _graph(name: str) -> RandomGraph:
    kind, inputs, outputs, nodes, shapes, opset = _CASES[name]
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g ({inputs}) => ({outputs}) {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for key, shape in shapes.items():
        numbers: Array = np.asarray(0.5 + rng.random(shape))
        dtype = np.float32 if key.startswith("wide_") else _NUMPY[kind]
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers.astype(dtype), key))
    if "Reshape" in nodes:
        sizes = np.array([0, 2, 2], dtype=np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(sizes, "shape"))
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes_of = [dim.dim_value or (6 if dim.dim_param == "width" else 2) for dim in dims]
        feeds[value.name] = (rng.standard_normal(sizes_of) + 3).astype(_NUMPY[kind])
    return RandomGraph(model, feeds, Counter())


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", _CASES)
def test_what_once_went_wrong_is_right(name: str, target: Target) -> None:
    for fuse_affine in (False, True):
        settings = Settings(target, 1 << 20, fuse=True, fuse_affine=fuse_affine, exclude=None)
        assert check(_graph(name), settings).failure is None


def test_dead_readers_do_not_keep_a_norm() -> None:
    settings = Settings(Target.ONNX, 1 << 20, fuse=False, fuse_affine=False, exclude=None)
    folded = check(_graph("a dead norm and a dead reader see no difference"), settings).folded
    assert folded is not None
    assert "y" in {fold.output for fold in folded.plan.folds}


def test_a_norm_along_a_symbolic_axis_is_no_reason_to_fold_the_next() -> None:
    settings = Settings(Target.ONNX, 1 << 20, fuse=False, fuse_affine=False, exclude=None)
    name = "a norm along a symbolic axis says nothing of another axis"
    folded = check(_graph(name), settings).folded
    assert folded is not None
    assert not folded.plan.folds


@pytest.mark.parametrize("name", list(corpus.names()))
def test_the_corpus_of_regressions_is_folded_right(name: str) -> None:
    graph, settings = corpus.load(name)
    assert check(graph, settings).failure is None


def test_a_norm_of_what_is_drawn_from_constants_is_proved() -> None:
    """Random numbers of a training Dropout are not constants, although all its inputs are."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g () => (float[2,6] y) {
            ratio = Constant<value = float {0.4}>() train = Constant<value = bool {1}>()
            h = Dropout(W, ratio, train) m = ReduceMean<axes=[-1]>(h) c = Sub(h, m)
            s = Mul(c, c) v = ReduceMean<axes=[-1]>(s) e = Constant<value = float {0.01}>()
            a = Add(v, e) r = Sqrt(a) y = Div(c, r)
        }"""
    )
    numbers = np.random.default_rng(0).standard_normal((2, 6))
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers.astype(np.float32), "W"))
    result = onnxfold.optimize(model, check=0)
    assert result.changed
    assert "left_out" not in result.report
