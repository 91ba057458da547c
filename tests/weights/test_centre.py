"""Centred weights against exact fractions and the enumeration of indices."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxfold import model_io
from onnxfold.errors import InvariantError
from onnxfold.graph import AxisBlock, Fiber, whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.weights import edited, evaluation
from onnxfold.weights.edited import centred, centred_tensor, is_centred_weight
from onnxfold.weights.means import is_centred, split_digits
from tests.model_io.files import linear, save
from tests.operators.projector import project, set_numbers

Array = npt.NDArray[Any]
_SETTINGS = settings(max_examples=120, deadline=None, derandomize=True, database=None)
_TYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
# Half the distance of neighboring numbers of size 1, and the smallest positive number.
_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 0.0}


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _drawn(rng: random.Random, dtype: npt.DTypeLike) -> tuple[Array, Fiber]:
    shape = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 3)))
    blocks = []
    for axis, dim in enumerate(shape):
        if rng.random() < 0.6:
            inner = rng.choice(_divisors(dim))
            size = rng.choice(_divisors(dim // inner))
            blocks.append(AxisBlock(axis, inner, size, dim // inner // size))
    numbers = np.random.default_rng(rng.getrandbits(32))
    scale = 10.0 ** rng.randint(-3, 2)
    array = (scale * (numbers.standard_normal(shape) + rng.choice((0, 1, 100)))).astype(dtype)
    return array, Fiber.of(blocks)


def _exactly(array: Array, fiber: Fiber) -> list[Fraction]:
    """P W in fractions, in row-major order."""
    sets = set_numbers(array.shape, fiber).tolist()
    numbers = [Fraction(float(x)) for x in array.reshape(-1)]
    totals: dict[int, Fraction] = {}
    for number, key in zip(numbers, sets, strict=True):
        totals[key] = totals.get(key, Fraction(0)) + number
    return [n - totals[key] / fiber.size for n, key in zip(numbers, sets, strict=True)]


@pytest.mark.parametrize("dtype", _TYPES, ids=lambda t: np.dtype(t).name)
def test_a_centred_weight_is_the_exact_result_rounded_once(dtype: npt.DTypeLike) -> None:
    name = np.dtype(dtype).name

    @_SETTINGS
    @given(st.randoms(use_true_random=False))
    def holds(rng: random.Random) -> None:
        W, fiber = _drawn(rng, dtype)
        result = centred(W, fiber)
        assert result.dtype == W.dtype
        assert result.shape == W.shape
        largest = float(np.abs(W.astype(np.float64)).max())
        # The float64 sum of n elements and its quotient are off by at most n + 1 roundings.
        slack = (fiber.size + 2) * 2.0**-53 * largest
        for got, exact in zip(result.reshape(-1), _exactly(W, fiber), strict=True):
            bound = _UNIT[name] * abs(exact) * (1 + 2**-20) + _TINY[name] / 2 + slack
            assert abs(Fraction(float(got)) - exact) <= Fraction(float(bound))

    holds()


@_SETTINGS
@given(st.randoms(use_true_random=False))
def test_it_agrees_with_the_enumeration_of_indices(rng: random.Random) -> None:
    W, fiber = _drawn(rng, np.float64)
    bound = 4 * fiber.size * 2.0**-53 * float(np.abs(W).max())
    np.testing.assert_allclose(centred(W, fiber), project(W, fiber), rtol=0, atol=bound)


@_SETTINGS
@given(st.randoms(use_true_random=False))
def test_what_was_centred_counts_as_centred_and_what_was_not_does_not(rng: random.Random) -> None:
    W, fiber = _drawn(rng, rng.choice(_TYPES))
    largest = float(np.abs(W.astype(np.float64)).max())
    assert is_centred(centred(W, fiber), fiber, largest)
    if fiber.blocks:
        shifted = (np.abs(W.astype(np.float64)) + largest).astype(W.dtype)
        assert not is_centred(shifted, fiber)


def test_one_set_off_among_many_is_noticed() -> None:
    fiber = Fiber((AxisBlock(1, 1, 8, 1),))
    W = centred(np.random.default_rng(0).standard_normal((1000, 8)).astype(np.float32), fiber)
    assert is_centred(W, fiber)
    for row in (0, 1, 501, 999):
        damaged = W.copy()
        damaged[row, 3] += 1e-3
        assert not is_centred(damaged, fiber)


@pytest.mark.parametrize("dtype", _TYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("axis", [0, 1])
def test_chunks_do_not_show(axis: int, dtype: npt.DTypeLike) -> None:
    """Larger than one piece of the work space, with sets across its borders and along them."""
    W = (np.random.default_rng(1).standard_normal((700, 600)) + 1).astype(dtype)
    fiber = Fiber((AxisBlock(axis, 1, W.shape[axis], 1),))
    wide = W.astype(np.float64)
    expected = (wide - wide.mean(axis=axis, keepdims=True)).astype(dtype)
    # The means may differ in their last bits by the order of summation: one unit in the last place.
    unit = 2 * _UNIT[np.dtype(dtype).name]
    bound = unit * np.abs(expected.astype(np.float64)) + 700 * 2.0**-53 * float(np.abs(wide).max())
    difference = np.abs(centred(W, fiber).astype(np.float64) - expected.astype(np.float64))
    assert np.all(difference <= bound)


@pytest.mark.parametrize("inner", [1, 4, 100])
def test_blocks_that_span_chunks_are_centred(inner: int) -> None:
    W = np.random.default_rng(2).standard_normal((800, 400))
    size = 800 // inner // 2
    fiber = Fiber((AxisBlock(0, inner, size, 2),))
    shown = W.reshape(2, size, inner, 400)
    expected = (shown - shown.mean(axis=1, keepdims=True)).reshape(W.shape)
    np.testing.assert_allclose(centred(W, fiber), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", _TYPES, ids=lambda t: np.dtype(t).name)
def test_sets_of_one_element_become_zero(dtype: npt.DTypeLike) -> None:
    W = np.random.default_rng(3).standard_normal((3, 4)).astype(dtype)
    assert not np.any(centred(W, Fiber(())))
    assert not np.any(centred(np.array(2.5, dtype=dtype), Fiber(())))
    assert centred(np.array(2.5, dtype=dtype), Fiber(())).shape == ()


def test_views_that_are_not_contiguous_are_centred_and_left_alone() -> None:
    base = np.random.default_rng(4).standard_normal((6, 8)).astype(np.float32)
    before = base.copy()
    W = base.T[::2]
    fiber = Fiber((AxisBlock(1, 1, 6, 1),))
    np.testing.assert_array_equal(centred(W, fiber), centred(np.ascontiguousarray(W), fiber))
    np.testing.assert_array_equal(base, before)


def test_a_weight_without_elements_stays_as_it_is() -> None:
    W = np.zeros((0, 4), dtype=np.float32)
    assert centred(W, Fiber((AxisBlock(1, 1, 4, 1),))).shape == (0, 4)


def test_a_fiber_that_does_not_fit_is_a_defect() -> None:
    with pytest.raises(InvariantError):
        split_digits((3, 4), Fiber((AxisBlock(1, 1, 3, None),)))


def test_a_centred_tensor_is_computed_when_it_is_read() -> None:
    W = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)
    fiber = Fiber((AxisBlock(1, 1, 4, 1),))
    source = ir.Tensor(W, name="W", doc_string="words")
    tensor = centred_tensor(source, fiber, "W")
    assert (tensor.name, tensor.dtype, tensor.doc_string) == ("W", ir.DataType.FLOAT, "words")
    assert tuple(tensor.shape.numpy()) == (3, 4)
    np.testing.assert_array_equal(tensor.numpy(), centred(W, fiber))
    W[:] = 0
    assert not np.any(tensor.numpy())


def test_centring_twice_is_centring_once_but_for_rounding() -> None:
    W = (np.random.default_rng(6).standard_normal((5, 16)) + 3).astype(np.float32)
    fiber = Fiber((AxisBlock(1, 1, 16, 1),))
    once = centred(W, fiber)
    np.testing.assert_allclose(centred(once, fiber), once, rtol=2.0**-23, atol=2.0**-24)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1000, 48), (48, 1000), (7, 5, 96), (301,)])
@pytest.mark.parametrize("axis", [0, -1])
def test_parts_are_the_rows_of_the_whole(
    dtype: type, shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_CHUNK_ELEMENTS", 1000)
    monkeypatch.setattr(edited, "_PART_BYTES", 10_000)
    rng = np.random.default_rng(3)
    W = rng.standard_normal(shape).astype(dtype)
    fiber = whole_axes(shape, (axis % len(shape),))
    assert fiber is not None
    factor = evaluation.Scale(Channels.along([(0, shape[0])]), rng.standard_normal(shape[0]))
    tensor = edited.edited(edited.edited(ir.tensor(W), factor, "W"), evaluation.Centre(fiber), "W")
    parts = list(tensor.parts())
    assert (len(parts) > 1) == (W.size > 1000)  # a few rows, and the rest
    assert max(part.nbytes for part in parts) <= max(10_000, 2 * 1000 * W.itemsize)
    np.testing.assert_array_equal(np.concatenate(parts), tensor.numpy())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [20, 128, 200])
def test_a_weight_is_centred_in_memory_as_in_a_file(tmp_path: Path, rows: int, axis: int) -> None:
    rng = np.random.default_rng(rows)
    W = rng.standard_normal((rows, 200)).astype(np.float32)
    fiber = Fiber((AxisBlock(axis, 1, W.shape[axis], 1),))
    for array, answer in ((W, False), (centred(W, fiber), True)):
        weight = numpy_helper.from_array(array, "W")
        model = model_io.load(save(linear(weight), tmp_path / "m.onnx"))
        stored = model.graph.initializers["W"].const_value
        assert stored is not None
        assert is_centred_weight(stored, fiber) == answer
        assert is_centred_weight(ir.Tensor(array), fiber) == answer
