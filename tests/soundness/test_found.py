"""What random graphs found, by hand: each was folded wrongly, crashed or failed its proof once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.target import Target
from tests.case_files import read, shapes
from tests.graphs import model as graph_of
from tests.operators.sample import Array
from tests.soundness import corpus
from tests.soundness.checking import Settings, check
from tests.soundness.random_graphs import RandomGraph

_NUMPY = {"double": np.float64, "float16": np.float16, "float": np.float32}
_CASES = read("found")
_FIXED = {"shape": np.array([0, 2, 2]), "tail": np.array([2, -1]), "last": np.array([-1])}


def _graph(name: str) -> RandomGraph:
    kind, inputs, outputs, sizes, opset, _ = _CASES[name].columns
    body = _CASES[name].body
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {}
    for key, shape in shapes(sizes).items():
        dtype = np.float32 if key.startswith("wide_") else _NUMPY[kind]
        made[key] = (0.5 + rng.random(shape)).astype(dtype)
    model = graph_of(body, inputs, outputs, made | _FIXED, int(opset))
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


@pytest.mark.parametrize("name", [name for name, case in _CASES.items() if case.columns[-1]])
def test_the_norms_that_fold_are_those_that_can(name: str) -> None:
    settings = Settings(Target.ONNX, 1 << 20, fuse=False, fuse_affine=False, exclude=None)
    folded = check(_graph(name), settings).folded
    assert folded is not None
    folds = {fold.output for fold in folded.plan.folds}
    wanted = _CASES[name].columns[-1]
    assert not folds if wanted == "-" else set(wanted.split()) <= folds
    again = onnxfold.optimize(onnxfold.optimize(_graph(name).model, check=0).model, check=0)
    assert not again.changed


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
