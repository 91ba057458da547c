"""Edited tensors: chunks, threads and the short way of one scale give the defined bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.errors import WeightOverflowError
from onnxfold.graph import whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.weights import edited as edited_module
from onnxfold.weights import evaluation
from onnxfold.weights.edited import edited, unrounded
from onnxfold.weights.evaluation import Centre, Edit, Scale

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def _weight(dtype: type, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((700, 900)).astype(dtype)


def _edited(W: Array, *edits: Edit) -> Array:
    tensor: ir.TensorProtocol = ir.Tensor(W, name="W")
    for edit in edits:
        tensor = edited(tensor, edit, "W")
    return np.asarray(tensor.numpy())


def _channels(axis: int) -> Channels:
    return Channels.along([(axis, (700, 900)[axis])])


def _centre(axis: int) -> Centre:
    fiber = whole_axes((700, 900), (axis,))
    assert fiber is not None
    return Centre(fiber)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1])
def test_one_scale_is_the_float64_product_rounded_once(dtype: type, axis: int) -> None:
    W = _weight(dtype)
    g = np.random.default_rng(1).standard_normal((700, 900)[axis]).astype(np.float32)
    factor = g.astype(np.float64).reshape((-1, 1) if axis == 0 else (1, -1))
    expected = (W.astype(np.float64) * factor).astype(dtype)
    scaled = _edited(W, Scale(_channels(axis), g.astype(np.float64)))
    np.testing.assert_array_equal(scaled, expected)


@pytest.mark.parametrize(
    ("factor", "rounded"),
    [
        (1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),  # just above the middle of two numbers
        (1 + 2.0**-8, 1.0),  # the middle, to even
        (1 + 3 * 2.0**-8 - 2.0**-40, 1 + 2.0**-7),  # just below the middle
        (-1 - 2.0**-8 - 2.0**-40, -1 - 2.0**-7),
    ],
)
def test_a_bfloat16_is_rounded_once_and_not_by_way_of_float32(
    factor: float, rounded: float
) -> None:
    one = np.ones((4, 6), dtype=ml_dtypes.bfloat16)
    scaled = _edited(one, Scale(Channels.along([(0, 4)]), np.full(4, factor)))
    np.testing.assert_array_equal(scaled.astype(np.float64), rounded)


def test_a_scale_beyond_float32_is_not_rounded_before_the_product() -> None:
    W = _weight(np.float32)
    g = np.full(700, 1.0 + 2.0**-24)  # rounds to 1 in float32
    scaled = _edited(W, Scale(_channels(0), g))
    np.testing.assert_array_equal(scaled, (W.astype(np.float64) * g[0]).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_number_of_threads_changes_no_bit(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    W = _weight(np.float32)
    g = np.random.default_rng(1).standard_normal(700)
    edits = (Scale(_channels(0), g), _centre(axis))
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(evaluation, "_threads", lambda threads=threads: threads)
        results.append(_edited(W, *edits))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_what_is_stored_is_the_unrounded_value_rounded() -> None:
    W = _weight(np.float32)
    g = np.random.default_rng(1).standard_normal(900)
    tensor = edited(
        edited(ir.Tensor(W, name="W"), Scale(_channels(1), g), "W"),
        _centre(0),
        "W",
    )
    np.testing.assert_array_equal(tensor.numpy(), unrounded(tensor).astype(np.float32))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_weight_with_inf_or_nan_is_not_centred(value: float) -> None:
    W = _weight(np.float32)
    W[500, 6] = value
    with pytest.raises(WeightOverflowError, match="contains inf or NaN"):
        _edited(W, _centre(1))


def test_a_weight_that_leaves_the_range_of_its_type_is_not_centred() -> None:
    W = np.full_like(_weight(np.float16), -60000)
    W[7, 3] = 60000
    with pytest.raises(WeightOverflowError, match="would leave the range of float16"):
        _edited(W, _centre(1))


@pytest.mark.parametrize("axis", [0, 1])
def test_half_floats_of_few_bits_are_refused_in_parts_too(
    monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    monkeypatch.setattr(edited_module, "_PART_BYTES", 100_000)
    monkeypatch.setattr(evaluation, "_CHUNK_ELEMENTS", 10_000)
    W = (_weight(np.float32) * 2.0**-20).astype(np.float16)
    small = edited(ir.Tensor(W, name="W"), _centre(axis), "W")
    with pytest.raises(WeightOverflowError, match="too few bits"):
        list(small.parts())
    W[-1, ::2] = 1
    parts = list(edited(ir.Tensor(W, name="W"), _centre(axis), "W").parts())
    assert len(parts) > 2
    np.testing.assert_array_equal(np.concatenate(parts), _edited(W, _centre(axis)))
