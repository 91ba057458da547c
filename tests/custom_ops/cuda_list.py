"""What must hold of the CUDA kernels, on the device and in their emulation: CHECKS.

Each check takes the kernels and whether to be thorough: a device takes the whole list, an emulation
on the host the part of it that is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES, Statistics
from tests.calls import NUMPY_TYPES, random_inputs
from tests.custom_ops.bounds import CODES, TYPES, assert_outputs_right
from tests.custom_ops.cuda_kernels import Kernels
from tests.oracle import Array

__all__ = ["CHECKS", "LENGTHS", "row_boundaries"]

LENGTHS = (
    *(1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 384, 767, 768, 769),
    *(1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 4099, 8191, 8192, 8193, 16383, 16384),
    *(16411, 65536, 100003),
)
# Each kernel template, with everything that its arguments may hold.
FULLEST = (
    *("RMSNormAffine", "LayerNormAffine", "Center", "CRMSNormAffine", "CRMSNormFullAffine"),
    *("AddBiasRMSNormAffineWithSum", "AddBiasLayerNormAffineWithSum"),
)
# These include the extended kernels.
EXTENDED = (
    *("AddBiasScaledRMSNormAffineWithSum", "AddBiasScaledRowScaleWithSum"),
    *("RMSNormRowEpsilonAffine", "ScaleRowsBiasGelu", "LayerNormAffineQuantize"),
    *("AddRMSNormAffineQuantizeRowsWithSum", "AddLayerNormAffineQuantizeRowsWithSum"),
)
FEW_SMS, MANY_SMS = 1, 1000  # so that a handful of rows are many, or few
ROW_VECTORS = (8, 16, 32, 64, 128, 256, 1024, 2048, 3072, 4096)  # the table of plan.cpp

Check = Callable[[Kernels, bool], None]


def row_boundaries(dtype: ir.DataType) -> Iterator[int]:
    """Row lengths on both sides of each boundary of the table, aligned and shifted."""
    width = 16 // NUMPY_TYPES[dtype].itemsize
    for vectors in ROW_VECTORS:
        last = vectors * width
        # The longest shifted row of so many vectors, its neighbor, and the aligned ones.
        yield from (last - 2 * width + 2 + width - 1, last - width + 2, last, last + width)


def assert_right(
    kernels: Kernels,
    name: str,
    inputs: dict[str, Array],
    *,
    epsilon: float = 1e-5,
    offset: int = 0,
    constants_offset: int = 0,
    multiprocessors: int = 132,
) -> list[Array]:
    outputs = kernels.run(
        name,
        inputs,
        epsilon=epsilon,
        offset=offset,
        constants_offset=constants_offset,
        multiprocessors=multiprocessors,
    )
    assert_outputs_right(name, inputs, outputs, epsilon=epsilon)
    return outputs


def every_op_at_every_length(kernels: Kernels, thorough: bool) -> None:
    short = LENGTHS if thorough else (1, 7, 32, 65, 129, 384, 769)
    for name in SIGNATURES:
        for dtype in TYPES:
            for n in LENGTHS if name in FULLEST and (thorough or n_is_quick(dtype)) else short:
                rows = 3 if n < 10000 else 2
                code = CODES[n % 3]
                inputs = random_inputs(name, (rows, n), dtype, seed=n, code=code)
                assert_right(kernels, name, inputs)


def n_is_quick(dtype: ir.DataType) -> bool:
    return dtype is ir.DataType.FLOAT16


def boundaries_of_the_table(kernels: Kernels, thorough: bool) -> None:
    for name in (*FULLEST, *EXTENDED) if thorough else (FULLEST[-1], EXTENDED[-1]):
        for dtype in TYPES:
            for n in row_boundaries(dtype):
                for multiprocessors in (FEW_SMS, MANY_SMS):
                    inputs = random_inputs(name, (9, n), dtype, seed=n)
                    assert_right(kernels, name, inputs, multiprocessors=multiprocessors)


def rows_of_eight_vectors_for_each_thread(kernels: Kernels, thorough: bool) -> None:
    """Which have neither scale nor bias."""
    names = ("RMSNorm", "LayerNorm", "Center", "AddRMSNorm", "AddBiasLayerNormWithSum")
    for name in names if thorough else (names[2], names[-1]):
        for dtype in TYPES:
            width = 16 // NUMPY_TYPES[dtype].itemsize
            for vectors in (129, 255, 256):
                inputs = random_inputs(name, (9, vectors * width), dtype, seed=vectors)
                assert_right(kernels, name, inputs, multiprocessors=FEW_SMS)


def every_shift(kernels: Kernels, thorough: bool) -> None:
    lengths = (*range(1, 41), *range(1016, 1033)) if thorough else (*range(1, 18), 1021)
    for name in FULLEST:
        for dtype in TYPES:
            for n in lengths:
                assert_right(kernels, name, random_inputs(name, (19, n), dtype, seed=n))


def any_number_of_rows(kernels: Kernels, thorough: bool) -> None:
    counts = (0, 1, 2, 3, 131, 132, 133, 1000, *((100_000,) if thorough else ()))
    for name in ("RMSNormScale", "AddLayerNormWithSum", "CRMSNormFull", "Center"):
        for dtype in TYPES:
            for rows in counts:
                for n in (33, 64):
                    assert_right(kernels, name, random_inputs(name, (rows, n), dtype, seed=rows))


def rows_without_elements(kernels: Kernels, thorough: bool) -> None:
    del thorough
    for name in SIGNATURES:
        kernels.run(name, random_inputs(name, (3, 0), ir.DataType.FLOAT))


def misaligned_pointers(kernels: Kernels, thorough: bool) -> None:
    for name in (*FULLEST, *EXTENDED):
        for dtype in TYPES:
            for n in (64, 100, 129, 4096) if thorough else (64, 129):
                inputs = random_inputs(name, (5, n), dtype, seed=n)
                for offset in (2, 4, 8):
                    if offset % NUMPY_TYPES[dtype].itemsize == 0:
                        assert_right(kernels, name, inputs, offset=offset)
                        assert_right(kernels, name, inputs, constants_offset=offset)


def in_place_changes_no_bit(kernels: Kernels, thorough: bool) -> None:
    lengths = (1, 9, 64, 127, 769, 1024, 4099, 16384, 40000) if thorough else (9, 64, 769, 4099)
    for name in ("RMSNorm", "LayerNormAffine", "Center", "CRMSNormScale", *FULLEST[-2:]):
        for dtype in TYPES:
            for n in lengths:
                inputs = random_inputs(name, (7, n), dtype, seed=n)
                apart = kernels.run(name, inputs)
                for way in "xr" if SIGNATURES[name].residual else "x":
                    within = kernels.run(name, inputs, in_place=way)
                    assert [a.tobytes() for a in within] == [a.tobytes() for a in apart], name


def rows_that_blocks_share(kernels: Kernels, thorough: bool) -> None:
    """Longer than the table, and few: whole vectors, odd lengths, misaligned, in place."""
    lengths = (33_000, 65_544, *((1 << 20, 1_000_003) if thorough else (20_001,)))
    for name in FULLEST:
        ways = ("x", "r") if SIGNATURES[name].residual else ("x",)
        for dtype in TYPES:
            for n in lengths:
                inputs = random_inputs(name, (2, n), dtype, seed=n)
                apart = assert_right(kernels, name, inputs, multiprocessors=MANY_SMS)
                for way in ways if SIGNATURES[name].statistics is not Statistics.CRMS_FULL else ():
                    within = kernels.run(name, inputs, in_place=way, multiprocessors=MANY_SMS)
                    assert [a.tobytes() for a in within] == [a.tobytes() for a in apart], name
            offset = NUMPY_TYPES[dtype].itemsize
            assert_right(kernels, name, inputs, offset=offset, multiprocessors=MANY_SMS)
    # Parts whose means are far from each other's, and from what is left of them in float32.
    inputs = random_inputs("LayerNormAffine", (2, 40_000), ir.DataType.FLOAT)
    steps = np.repeat([1e4, -1e4, 1e6, 1e6 + 1], 10_000)
    for means in (steps, steps[20_000:].repeat(2)):
        inputs["X"] = (means + inputs["X"]).astype(np.float32)
        assert_right(kernels, "LayerNormAffine", inputs, multiprocessors=MANY_SMS)


def bits_repeat(kernels: Kernels, thorough: bool) -> None:
    del thorough
    name = "AddLayerNormAffineWithSum"
    for dtype in TYPES:
        for n in (40, 257, 1024, 5000):
            inputs = random_inputs(name, (50, n), dtype)
            first = kernels.run(name, inputs, multiprocessors=FEW_SMS)
            again = kernels.run(name, inputs, multiprocessors=FEW_SMS)
            assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
            # A row alone goes the same way where the multiprocessors are few enough for both.
            row = {key: a[16:32] if key in ("X", "residual") else a for key, a in inputs.items()}
            alone = kernels.run(name, row, multiprocessors=FEW_SMS)
            assert [a.tobytes() for a in alone] == [a[16:32].tobytes() for a in first]


def hard_rows(kernels: Kernels, thorough: bool) -> None:
    del thorough
    name = "LayerNormAffine"
    for n in (63, 767, 768, 5000, 40000):
        rng = np.random.default_rng(3)
        normal = rng.standard_normal((4, n))
        outlier = np.full((4, 1), 1e4)
        rows = (
            *(np.full((4, n), 1234.567), 1e3 + normal, 1e4 + normal, 1e6 + normal),
            *(10 + 1e-3 * normal, np.concatenate([outlier, normal[:, 1:]], axis=1)),
            np.concatenate([normal[:, 1:], outlier], axis=1),
        )
        inputs = random_inputs(name, (4, n), ir.DataType.FLOAT)
        for row in rows:
            inputs["X"] = row.astype(np.float32)
            assert_right(kernels, name, inputs)
        inputs["X"] = rows[0].astype(np.float32)
        y = kernels.run(name, inputs)[0]
        assert np.abs(y - inputs["bias"]).max() <= 1e-5


def epsilon_in_float32(kernels: Kernels, thorough: bool) -> None:
    del thorough
    for name in ("RMSNormScale", "LayerNorm", "CRMSNorm", "AddRMSNorm"):
        for dtype in TYPES:
            for epsilon in (1e-3, 1e-12, 0.0):
                inputs = random_inputs(name, (4, 100), dtype)
                inputs["X"] = (inputs["X"].astype(np.float32) * 1e-2).astype(NUMPY_TYPES[dtype])
                assert_right(kernels, name, inputs, epsilon=epsilon)
    inputs = random_inputs("RMSNorm", (3, 40), ir.DataType.FLOAT)
    inputs["X"][1] = 0
    assert np.isnan(assert_right(kernels, "RMSNorm", inputs, epsilon=0.0)[0][1]).all()


def bad_elements_stay_in_their_row(kernels: Kernels, thorough: bool) -> None:
    for name in FULLEST:
        for n in (70, 72):
            inputs = random_inputs(name, (5, n), ir.DataType.FLOAT16)
            clean = kernels.run(name, inputs)
            for value in (np.nan, np.inf, -np.inf):
                spoilt = {key: array.copy() for key, array in inputs.items()}
                spoilt["X"][2, [0, n - 1]] = value
                outputs = kernels.run(name, spoilt)
                for before, after in zip(clean, outputs, strict=True):
                    others = [0, 1, 3, 4]
                    assert before[others].tobytes() == after[others].tobytes(), name
                row = outputs[0][2].astype(np.float64)
                assert np.isnan(row[0]), name
                if "CRMS" in name:
                    continue
                if "RMSNorm" not in name or np.isnan(value):
                    assert np.isnan(row).all(), name
                else:
                    bias = inputs.get("bias", np.zeros(n, np.float16)).astype(np.float64)
                    np.testing.assert_array_equal(row[1 : n - 1], bias[1 : n - 1])


def extreme_values(kernels: Kernels, thorough: bool) -> None:
    del thorough
    for name in ("RMSNormScale", "LayerNormAffine", "AddRMSNorm", "CRMSNorm"):
        inputs = random_inputs(name, (2, 300), ir.DataType.FLOAT16)
        inputs["X"] = (6e4 * np.sign(inputs["X"].astype(np.float32))).astype(np.float16)
        assert_right(kernels, name, inputs)
    inputs = {"X": np.full((2, 64), 3e38, np.float32)}
    assert (kernels.run("RMSNorm", inputs)[0] == 0).all()
    inputs = random_inputs("AddRMSNormWithSum", (3, 40), ir.DataType.FLOAT16)
    inputs["X"][1, 5] = inputs["residual"][1, 5] = 6e4
    y, total = kernels.run("AddRMSNormWithSum", inputs)
    assert np.isinf(total[1, 5])
    assert np.isnan(y[1, 5])
    assert np.isfinite(y[[0, 2]].astype(np.float32)).all()
    smallest = {ir.DataType.FLOAT: 1e-40, ir.DataType.FLOAT16: 6e-8, ir.DataType.BFLOAT16: 1e-39}
    for dtype in TYPES:
        for name in ("RMSNormScale", "LayerNorm", "Center", "AddRMSNormWithSum"):
            inputs = random_inputs(name, (2, 70), dtype)
            for key in {"X", "residual"} & set(inputs):
                sign = np.sign(inputs[key].astype(np.float64))
                inputs[key] = (sign * smallest[dtype]).astype(NUMPY_TYPES[dtype])
            assert_right(kernels, name, inputs)


def squares_about_zero_may_overflow(kernels: Kernels, thorough: bool) -> None:
    """LayerNorm needs none of them: its deviations' squares are 2e37 in all, whatever the plan."""
    del thorough
    for name in ("LayerNormAffine", "AddLayerNormWithSum"):
        for dtype in (ir.DataType.FLOAT, ir.DataType.BFLOAT16):
            for n in (60, 300, 769, 4099, 16_411, 40_000):
                inputs = random_inputs(name, (5, n), dtype, seed=n)
                spread = 1.5e19 * (1 + 1e-3 * inputs["X"].astype(np.float64))
                inputs["X"] = spread.astype(NUMPY_TYPES[dtype])
                inputs["X"][2] = inputs["X"][1] / 1.5e19  # a typical row, next to them
                for multiprocessors in (FEW_SMS, MANY_SMS):
                    assert_right(kernels, name, inputs, multiprocessors=multiprocessors)


def sums_round_as_additions_do(kernels: Kernels, thorough: bool) -> None:
    del thorough
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)][None]
    inputs = {"X": finite, "residual": np.zeros_like(finite)}
    np.testing.assert_array_equal(kernels.run("AddRMSNormWithSum", inputs)[1], finite)
    rng = np.random.default_rng(7)
    name = "AddBiasRMSNormWithSum"
    for dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        for scale in (1e-7, 1e-3, 1.0, 3e4):
            inputs = random_inputs(name, (20, 1001), dtype)
            for key, array in inputs.items():
                values = scale * rng.uniform(-2, 2, array.shape)
                inputs[key] = values.astype(NUMPY_TYPES[dtype])
            assert_right(kernels, name, inputs)
    for dtype in TYPES:
        inputs = random_inputs("AddLayerNormWithSum", (2, 50), dtype)
        inputs["residual"] = -inputs["X"]
        for output in kernels.run("AddLayerNormWithSum", inputs):
            assert (output.astype(np.float32) == 0).all()


def a_centred_row_has_one_norm(kernels: Kernels, thorough: bool) -> None:
    """CRMSNorm is the RMSNorm of the row with its missing element; RMSNorm makes mean(y^2) 1."""
    del thorough
    stored = random_inputs("CRMSNorm", (4, 63), ir.DataType.FLOAT)["X"]
    full = np.concatenate([stored, -stored.sum(axis=-1, keepdims=True)], axis=-1)
    y = kernels.run("RMSNorm", {"X": full}, epsilon=0.0)[0]
    np.testing.assert_allclose(np.mean(y.astype(np.float64) ** 2, axis=-1), 1, atol=1e-5)
    short = kernels.run("CRMSNorm", {"X": stored}, epsilon=0.0)[0]
    np.testing.assert_allclose(short, y[:, :-1], rtol=4e-6)
    whole = kernels.run("CRMSNormFull", {"X": stored}, epsilon=0.0)[0]
    np.testing.assert_allclose(whole, y, rtol=4e-6, atol=4e-6)


def codes_keep_within_their_type(kernels: Kernels, thorough: bool) -> None:
    """Each number of float8 is its own code; what is too large is the largest, zero is zero."""
    del thorough
    name, float8 = "RMSNormScaleQuantize", ir.DataType.FLOAT8E4M3FN
    bits = np.arange(256, dtype=np.uint8).view(float8.numpy())
    exact = bits[np.isfinite(bits.astype(np.float32))].astype(np.float32)
    ones = np.ones((2, exact.size), np.float32)
    inputs = {"X": ones, "scale": exact, "y_scale": np.float32(1), "y_zero_point": bits[0]}
    inputs = {key: np.asarray(array) for key, array in inputs.items()}
    for way, expected in ((1.0, exact), (1e6, np.sign(exact) * 448)):
        inputs["scale"] = exact * np.float32(way) if way == 1 else np.sign(exact) * np.float32(way)
        codes = kernels.run(name, inputs, epsilon=0.0)[0].astype(np.float32)
        np.testing.assert_array_equal(codes, np.broadcast_to(expected, codes.shape))
    for code in CODES[:2]:
        inputs = random_inputs("RMSNormQuantize", (2, 64), ir.DataType.FLOAT, code=code)
        inputs["y_scale"] = np.asarray(1e-6, np.float32)
        limits = np.iinfo(code.numpy())
        codes = kernels.run("RMSNormQuantize", inputs)[0]
        expected = np.where(inputs["X"] > 0, limits.max, limits.min)
        np.testing.assert_array_equal(codes, expected)


CHECKS: Sequence[Check] = (
    codes_keep_within_their_type,
    every_op_at_every_length,
    boundaries_of_the_table,
    rows_of_eight_vectors_for_each_thread,
    every_shift,
    any_number_of_rows,
    rows_without_elements,
    misaligned_pointers,
    in_place_changes_no_bit,
    rows_that_blocks_share,
    bits_repeat,
    hard_rows,
    epsilon_in_float32,
    bad_elements_stay_in_their_row,
    extreme_values,
    squares_about_zero_may_overflow,
    sums_round_as_additions_do,
    a_centred_row_has_one_norm,
)
