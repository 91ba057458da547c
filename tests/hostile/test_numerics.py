"""Numbers in bad condition: the answer of the original within its own noise, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import onnxfold
from onnxfold.report.printed_result import print_result
from onnxfold.weights import edited
from tests.hostile.conditions import CONDITIONS, bad_conditions
from tests.hostile.seeds import WIDTH, layer_norm_model
from tests.pairs import pairs

SHAPES = {"W": (WIDTH, WIDTH), "b": (WIDTH,), "g": (WIDTH,), "c": (WIDTH,), "V": (WIDTH, WIDTH)}
TYPES = (np.float32, np.float16)


def spoiled(name: str, value: float) -> np.ndarray[Any, Any]:
    array = np.random.default_rng(1).standard_normal(SHAPES[name])
    array.flat[3] = value
    return array


def codes(result: onnxfold.Result) -> list[str]:
    return [n["reason"]["code"] for n in result.report["inspect"]["norms"] if n["reason"]]


@pairs(dtype=TYPES, value=[np.nan, np.inf, -np.inf], name=["W", "b"], check=[0, 2])
def test_a_weight_with_inf_or_nan_is_not_centred_and_the_report_says_why(
    dtype: Any, value: float, name: str, check: int
) -> None:
    model = layer_norm_model(dtype, **{name: spoiled(name, value)})
    result = onnxfold.optimize(model, check=check)
    assert codes(result) == ["non_finite_weight"]
    assert result.report["inspect"]["norms"][0]["reason"]["nodes"] == [name]
    assert result.plan.folds == ()


@pairs(dtype=TYPES, value=[np.nan, np.inf], name=["g", "c", "V"])
def test_inf_and_nan_behind_the_mean_do_not_hinder_the_fold(
    dtype: Any, value: float, name: str
) -> None:
    result = onnxfold.optimize(layer_norm_model(dtype, **{name: spoiled(name, value)}))
    assert len(result.plan.folds) == 1
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize("number", ["g", "b"])
def test_nan_in_what_a_norm_keeps_is_kept_and_proved(number: str) -> None:
    """A norm of many nodes, whose remaining numbers are compared one by one."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N,3,4] x) => (float[N,3,4] y)
        <float two = {2}>
        {
            h = MatMul(x, W)  m = ReduceMean<axes=[-1]>(h)  d = Sub(h, m)  q = Pow(d, two)
            v = ReduceMean<axes=[-1]>(q)  e = Add(v, epsilon)  s = Sqrt(e)  n = Div(d, s)
            a = Mul(n, g)  y = Add(a, b)
        }""")
    numbers = {"W": np.random.default_rng(3).standard_normal((4, 4)), "epsilon": np.array(0.001)}
    numbers |= {
        "g": np.arange(1.0, 5.0).reshape(1, 1, 4),
        "b": np.arange(5.0, 9.0).reshape(1, 1, 4),
    }
    numbers[number].flat[0] = np.nan
    for name, array in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    result = onnxfold.optimize(model)
    assert result.proof is not None
    assert result.proof.passed
    assert len(result.plan.folds) == 1


def test_a_norm_whose_epsilon_is_nan_is_left_for_no_number_can_be_compared() -> None:
    model = layer_norm_model(epsilon=np.nan)
    result = onnxfold.optimize(model)
    assert codes(result) == ["not_proved"]
    assert result.plan.folds == ()
    assert onnxfold.verify(model, result.model).passed


@pytest.mark.parametrize("dtype", TYPES)
def test_a_weight_that_centring_takes_out_of_range_is_left(dtype: Any) -> None:
    largest = float(np.finfo(dtype).max)
    inside = np.full((WIDTH, WIDTH), largest)
    inside[:, ::2] = -largest
    assert len(onnxfold.optimize(layer_norm_model(dtype, W=inside)).plan.folds) == 1
    outside = np.full((WIDTH, WIDTH), -largest / 2)
    outside[:, 0] = largest
    assert codes(onnxfold.optimize(layer_norm_model(dtype, W=outside))) == ["non_finite_weight"]


def test_only_the_norm_behind_such_a_weight_is_left() -> None:
    first, second = layer_norm_model(W=spoiled("W", np.inf)), layer_norm_model()
    for model, prefix in ((first, "a_"), (second, "b_")):
        onnx.compose.add_prefix(model, prefix, inplace=True)
    both = onnx.compose.merge_models(first, second, io_map=[])
    result = onnxfold.optimize(both)
    assert len(result.plan.folds) == 1
    assert codes(result) == ["non_finite_weight"]


@pairs(dtype=TYPES, epsilon=[0.0, 1e-12, 1e-5], case=CONDITIONS)
def test_bad_conditions_give_the_same_answer_or_none(dtype: Any, epsilon: float, case: str) -> None:
    given = bad_conditions(dtype, np.random.default_rng(2))
    model = layer_norm_model(dtype, epsilon, **given[case])
    result = onnxfold.optimize(model, target="ort")  # others keep norms of so small an epsilon
    few_bits = (dtype, case) == (np.float16, "denormal")
    assert codes(result) == (["non_finite_weight"] if few_bits else [])
    verification = onnxfold.verify(model, result.model, seed=3)
    assert verification.passed


def test_a_large_weight_of_few_bits_is_left_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(edited, "_PART_BYTES", 100)  # large is more than this
    given = bad_conditions(np.float16, np.random.default_rng(2))["denormal"]
    model = layer_norm_model(np.float16, **given)
    assert codes(onnxfold.optimize(model, tmp_path / "o.onnx")) == ["non_finite_weight"]
    assert codes(onnxfold.optimize(model, tmp_path / "o.onnx", check=None)) == ["non_finite_weight"]


def test_an_output_of_which_nothing_was_compared_is_named() -> None:
    result = onnxfold.optimize(layer_norm_model(g=np.full(WIDTH, np.nan)))
    checked = result.report["verification"]
    assert checked["passed"]
    assert checked["nothing_compared"] == ["y"]
    assert checked["outputs"][0]["nothing_compared"]
    assert checked["outputs"][0]["compared"] == 0
    console = Console(record=True, width=500)
    print_result(console, result.report, verbose=False)
    assert "nothing was compared for 'y'" in console.export_text()


def test_an_empty_output_was_not_compared() -> None:
    model = layer_norm_model()
    assert onnxfold.verify(model, model, inputs=(f"x:0,{WIDTH}",)).outputs[0].nothing_compared


def test_an_output_that_was_compared_is_not_named() -> None:
    checked = onnxfold.optimize(layer_norm_model()).report["verification"]
    assert checked["nothing_compared"] == []
    assert checked["outputs"][0]["compared"] == checked["outputs"][0]["elements"] > 0
