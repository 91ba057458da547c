from __future__ import annotations

from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.operators.functions import SIGNATURES, Output
from tests.calls import NUMPY_TYPES, random_inputs
from tests.custom_ops.harness import CODES, TYPES, assert_right, run_op
from tests.pairs import pairs

# One below, at and above each power of two and vector or block width; odd; prime.
FEW = (1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 384, 767, 768, 1024)
MANY = (
    *(3, 8, 9, 128, 256, 257, 769, 1023, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 4099),
    *(8191, 8192, 8193, 16383, 16384, 16411),
)
# Those whose Y is a norm of X.
PLAIN = [
    name
    for name, s in SIGNATURES.items()
    if s.output is Output.NORM and not s.row_scale and not s.row_epsilon
]
ROWS = (1, 2, 3, 131, 132, 133, 1000)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", SIGNATURES)
def test_every_op_is_right_at_every_row_length(name: str, dtype: ir.DataType) -> None:
    for n, code in product(FEW, CODES if SIGNATURES[name].quantized else CODES[:1]):
        assert_right(name, random_inputs(name, (3, n), dtype, seed=n, code=code))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", SIGNATURES)
def test_every_op_is_right_at_long_row_lengths(name: str, dtype: ir.DataType) -> None:
    for n in MANY:
        assert_right(name, random_inputs(name, (2, n), dtype, seed=n))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["RMSNorm", "LayerNormAffine", "AddBiasLayerNormWithSum"])
def test_very_long_rows_do_not_lose_digits(name: str, dtype: ir.DataType) -> None:
    for n in (65536, 100003):
        assert_right(name, random_inputs(name, (2, n), dtype, seed=n))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize(
    "name", ["RMSNormScale", "LayerNorm", "AddRMSNormWithSum", "CRMSNormFull", "Center"]
)
def test_any_number_of_rows_is_right(name: str, dtype: ir.DataType) -> None:
    for rows in ROWS:
        assert_right(name, random_inputs(name, (rows, 33), dtype, seed=rows))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_hundred_thousand_short_rows_are_right(name: str, dtype: ir.DataType) -> None:
    assert_right(name, random_inputs(name, (100_000, 8), dtype))


@pytest.mark.parametrize("name", SIGNATURES)
def test_empty_tensors_give_empty_tensors(name: str) -> None:
    for shape in ((0, 5), (3, 0), (0, 0)):
        inputs = random_inputs(name, shape, ir.DataType.FLOAT)
        outputs = run_op(name, inputs)
        assert outputs[0].shape[0] == shape[0]


@pytest.mark.parametrize("rank", [1, 3, 4, 5])
def test_leading_axes_are_rows_whatever_the_rank(rank: int) -> None:
    shape = (2, 3, 1, 2, 24)[5 - rank :]
    for name in ("RMSNormScale", "AddLayerNormAffineWithSum", "CRMSNormFullAffine"):
        assert_right(name, random_inputs(name, shape, ir.DataType.FLOAT))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_several_trailing_axes_are_one_row(dtype: ir.DataType) -> None:
    for name in ("RMSNormAffine", "LayerNormScale", "AddBiasLayerNormAffineWithSum", "Center"):
        for axes in (2, 3):
            inputs = random_inputs(name, (4, 3, 5, 7), dtype, axes=axes)
            assert_right(name, inputs, axes=axes)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-12, 0.0])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_epsilon_is_added_in_float32(epsilon: float, dtype: ir.DataType) -> None:
    for name in ("RMSNormScale", "LayerNorm", "CRMSNorm", "AddRMSNorm"):
        inputs = random_inputs(name, (4, 100), dtype)
        inputs["X"] = (inputs["X"].astype(np.float32) * 1e-2).astype(inputs["X"].dtype)
        assert_right(name, inputs, epsilon=epsilon)


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm", "CRMSNorm"])
def test_a_zero_row_without_epsilon_is_nan_and_its_neighbours_are_not(name: str) -> None:
    inputs = random_inputs(name, (3, 40), ir.DataType.FLOAT)
    inputs["X"][1] = 0
    assert_right(name, inputs, epsilon=0.0)
    y = run_op(name, inputs, epsilon=0.0)[0]
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


@pairs(name=PLAIN, dtype=TYPES, value=[np.nan, np.inf, -np.inf])
def test_one_bad_element_spoils_its_own_row_alone(
    name: str, dtype: ir.DataType, value: float
) -> None:
    inputs = random_inputs(name, (3, 70), dtype)
    clean = run_op(name, inputs)
    inputs["X"][1, 66] = value
    spoilt = run_op(name, inputs)
    for before, after in zip(clean, spoilt, strict=True):
        assert before[[0, 2]].tobytes() == after[[0, 2]].tobytes()
    row = spoilt[0][1].astype(np.float64)
    assert np.isnan(row[66])
    if "RMSNorm" not in name or np.isnan(value):
        assert np.isnan(row).all()
    elif "CRMS" not in name:
        bias = inputs["bias"].astype(np.float64) if "bias" in inputs else np.zeros(70)
        np.testing.assert_array_equal(np.delete(row, 66), np.delete(bias, 66))


@pytest.mark.parametrize("n", [767, 768])
@pytest.mark.parametrize(
    "row",
    ["constant", "mean 1e3", "mean 1e4", "mean 1e6", "narrow", "first outlier", "last outlier"],
)
def test_layer_norm_keeps_its_digits_on_hard_rows(row: str, n: int) -> None:
    rng = np.random.default_rng(3)
    normal = rng.standard_normal((4, n))
    rows = {
        "constant": np.full((4, n), 1234.567),
        "mean 1e3": 1e3 + normal,
        "mean 1e4": 1e4 + normal,
        "mean 1e6": 1e6 + normal,
        "narrow": 10 + 1e-3 * normal,
        "first outlier": np.concatenate([np.full((4, 1), 1e4), normal[:, 1:]], axis=1),
        "last outlier": np.concatenate([normal[:, 1:], np.full((4, 1), 1e4)], axis=1),
    }
    inputs = random_inputs("LayerNormAffine", (4, n), ir.DataType.FLOAT)
    inputs["X"] = rows[row].astype(np.float32)
    assert_right("LayerNormAffine", inputs)
    y = run_op("LayerNormAffine", inputs)[0]
    if row == "constant":
        np.testing.assert_allclose(y, np.broadcast_to(inputs["bias"], y.shape), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["LayerNormAffine", "AddLayerNormWithSum"])
def test_layer_norm_is_right_whatever_the_mean_is_in_deviations(
    name: str, dtype: ir.DataType
) -> None:
    # Up to a mean of one deviation the moments about 0 do; rows on both sides stand side by side.
    means = np.array([0, 0.5, 0.99, 1, 1.01, 2, 30, -0.99, -1.01, 0])
    for n in (9, 64, 769, 4099):
        inputs = random_inputs(name, (len(means), n), dtype)
        normal = np.random.default_rng(n).standard_normal((len(means), n))
        normal = (normal - normal.mean(axis=-1, keepdims=True)) / normal.std(axis=-1, keepdims=True)
        inputs["X"] = (normal + means[:, None]).astype(NUMPY_TYPES[dtype])
        assert_right(name, inputs)


def test_layer_norm_is_right_where_only_the_squares_about_zero_overflow() -> None:
    inputs = random_inputs("LayerNorm", (4, 300), ir.DataType.FLOAT)
    inputs["X"] = (1.5e19 * (1 + 1e-3 * inputs["X"])).astype(np.float32)
    assert_right("LayerNorm", inputs)


def test_float16_rows_whose_squares_overflow_are_right() -> None:
    for name in ("RMSNormScale", "LayerNormAffine", "AddRMSNorm", "CRMSNorm"):
        inputs = random_inputs(name, (2, 300), ir.DataType.FLOAT16)
        sign = np.sign(inputs["X"].astype(np.float32))
        inputs["X"] = (6e4 * sign).astype(np.float16)
        assert_right(name, inputs)


def test_float32_rows_whose_squares_overflow_give_zero_as_the_bodies_do() -> None:
    inputs = random_inputs("RMSNorm", (2, 64), ir.DataType.FLOAT)
    inputs["X"] = np.full((2, 64), 3e38, np.float32)
    assert (run_op("RMSNorm", inputs)[0] == 0).all()


def test_float16_sums_overflow_as_the_addition_does() -> None:
    inputs = random_inputs("AddRMSNormWithSum", (3, 40), ir.DataType.FLOAT16)
    inputs["X"][1, 5] = inputs["residual"][1, 5] = 6e4
    y, total = run_op("AddRMSNormWithSum", inputs)
    assert np.isinf(total[1, 5])
    assert np.isnan(y[1, 5])
    assert np.isfinite(y[[0, 2]].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_terms_that_cancel_give_an_exact_zero_row(dtype: ir.DataType) -> None:
    inputs = random_inputs("AddLayerNormWithSum", (2, 50), dtype)
    inputs["residual"] = -inputs["X"]
    y, total = run_op("AddLayerNormWithSum", inputs)
    assert (total == 0).all()
    assert (y == 0).all()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_subnormal_rows_are_right(dtype: ir.DataType) -> None:
    smallest = {ir.DataType.FLOAT: 1e-40, ir.DataType.FLOAT16: 6e-8, ir.DataType.BFLOAT16: 1e-39}
    for name in ("RMSNormScale", "LayerNorm", "Center", "AddRMSNormWithSum"):
        inputs = random_inputs(name, (2, 70), dtype)
        for key in ("X", "residual"):
            if key in inputs:
                tiny = np.sign(inputs[key].astype(np.float64)) * smallest[dtype]
                inputs[key] = tiny.astype(NUMPY_TYPES[dtype])
        assert_right(name, inputs)


def test_every_float16_value_survives_the_sum() -> None:
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)]
    inputs = random_inputs("AddRMSNormWithSum", (1, finite.size), ir.DataType.FLOAT16)
    inputs["X"] = finite[None]
    inputs["residual"] = np.zeros_like(inputs["X"])
    total = run_op("AddRMSNormWithSum", inputs)[1]
    np.testing.assert_array_equal(total[0], finite)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_sums_round_to_nearest_even(dtype: ir.DataType) -> None:
    rng = np.random.default_rng(7)
    name = "AddBiasRMSNormWithSum"
    for scale in (1e-7, 1e-3, 1.0, 3e4):
        inputs = random_inputs(name, (20, 1001), dtype)
        for key in inputs:
            values = scale * rng.uniform(-2, 2, inputs[key].shape)
            inputs[key] = values.astype(NUMPY_TYPES[dtype])
        assert_right(name, inputs)
