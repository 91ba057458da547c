"""The library for whole rows returns the same bits as numpy."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.errors import WeightOverflowError
from onnxfold.graph import whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.weights import native_rows as row_edits
from onnxfold.weights.edited import EditedTensor, edited, evaluated, unrounded
from onnxfold.weights.evaluation import Centre, Edit, Scale, Shift
from onnxfold.weights.native_rows import RowEdit, RowProgram

_TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

Array = npt.NDArray[np.generic]


def _bits(array: Array) -> npt.NDArray[np.unsignedinteger]:
    return array.view(f"u{array.itemsize}")


def _run(W: Array, *edits: RowEdit, wide: bool = False) -> Array | None:
    program = RowProgram.of(W, list(edits))
    assert program is not None
    result = np.empty(W.shape, np.float64 if wide else W.dtype)
    return result if program.run(W, 0, result) else None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_finite_number_of_16_bits_is_widened(dtype: type) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    numbers = numbers[np.isfinite(numbers.astype(np.float32))].reshape(2, -1)
    widened = _run(numbers, wide=True)
    assert widened is not None
    np.testing.assert_array_equal(_bits(widened), _bits(numbers.astype(np.float64)))


def _around(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Numbers, the midpoints between neighbors, and doubles at and next to all of them."""
    both = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2])
    near = np.concatenate([both, np.nextafter(both, np.inf), np.nextafter(both, -np.inf)])
    return np.concatenate([near, -near]).reshape(1, -1)


def _stored(wide: npt.NDArray[np.float64], dtype: np.dtype[np.generic]) -> Array | None:
    zeros = np.zeros(wide.shape, dtype)
    return _run(zeros, RowEdit("shift", wide.reshape(-1)))


def test_every_half_and_every_middle_between_two_is_rounded_to_the_nearest_even() -> None:
    positive = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    wide = _around(positive)
    # 0 + (-0) is 0, by the library and by numpy.
    expected = (0.0 + wide).astype(np.float16)
    stored = _stored(wide, np.dtype(np.float16))
    assert stored is not None
    np.testing.assert_array_equal(_bits(stored), _bits(expected))


def test_every_normal_bfloat16_and_every_middle_is_rounded_to_the_nearest_even() -> None:
    positive = np.arange(0x0081, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16)
    wide = _around(positive.astype(np.float64))
    stored = _stored(wide, np.dtype(ml_dtypes.bfloat16))
    assert stored is not None
    magnitude = np.abs(wide)
    nearest = _bits(stored).astype(np.int64) & 0x7FFF
    # The neighbors of what was stored, as doubles: none is nearer, and a tie is even.
    below, own, above = (
        (nearest + step).astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
        for step in (-1, 0, 1)
    )
    error = np.abs(magnitude - own)
    others = np.minimum(np.abs(magnitude - below), np.abs(magnitude - above))
    assert np.all((error < others) | ((error == others) & (nearest % 2 == 0)))
    np.testing.assert_array_equal(np.signbit(wide), _bits(stored) >> 15 == 1)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        (np.float16, 65520.0),
        (np.float32, 2.0**128 - 2.0**103),
        (ml_dtypes.bfloat16, 2.0**128 - 2.0**119),
    ],
)
def test_what_rounds_to_infinity_is_left_to_numpy(dtype: type, limit: float) -> None:
    kind = np.dtype(dtype)
    wide = np.full((1, 40), 1.0)
    wide[0, 17] = -np.nextafter(limit, 0)
    assert _stored(wide, kind) is not None
    wide[0, 17] = -limit
    assert _stored(wide, kind) is None


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("wide", [False, True])
def test_a_number_that_is_not_finite_is_left_to_numpy(
    dtype: np.dtype[np.generic], number: float, wide: bool
) -> None:
    W = np.ones((3, 20), dtype)
    W[2, 13] = number
    assert _run(W, wide=wide) is None


def test_small_bfloat16_are_left_to_numpy() -> None:
    wide = np.array([[1.0, 2.0**-127, 0.0]])
    assert _stored(wide, np.dtype(ml_dtypes.bfloat16)) is None


@pytest.mark.parametrize("spread", [(4, 1, 6), (1, 5, 6), (4, 5, 6)])
def test_what_differs_in_rows_and_columns_is_no_row_edit(spread: tuple[int, ...]) -> None:
    edit = RowEdit.spread("scale", np.ones(spread), (4, 5, 6))
    assert edit is None


def test_strided_weights_have_no_program() -> None:
    assert RowProgram.of(np.ones((4, 6), np.float32).T, []) is None
    assert RowProgram.of(np.ones((4, 6), np.float64), []) is None


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Array, tuple[Edit, ...]]:
    shape = draw(
        st.sampled_from([(1, 1), (3, 7), (2, 8), (5, 129), (4, 5, 17), (2, 3, 2, 300), (40, 2049)])
    )
    dtype = draw(st.sampled_from(_TYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    W = (rng.standard_normal(shape) * 2.0 ** draw(st.integers(-20, 6))).astype(dtype)
    edits: list[Edit] = []
    for _ in range(draw(st.integers(1, 4))):
        axis = draw(st.integers(0, len(shape) - 1))
        fiber = whole_axes(shape, (axis,))
        assert fiber is not None
        channels = Channels.along([(axis, shape[axis])])
        kind = draw(st.sampled_from(("centre", "scale", "shift")))
        vector = rng.standard_normal(channels.size)
        if kind == "centre":
            edits.append(Centre(fiber))
        else:
            edits.append(Scale(channels, vector) if kind == "scale" else Shift(channels, vector))
    return W, tuple(edits)


def _both(W: Array, edits: tuple[Edit, ...]) -> tuple[Array, Array]:
    tensor: ir.TensorProtocol = ir.Tensor(W, dtype=ir.DataType.from_numpy(W.dtype), name="W")
    for edit in edits:
        tensor = edited(tensor, edit, "W")
    return tensor.numpy(), unrounded(tensor)


@given(_cases())
@settings(deadline=None)
def test_edits_give_the_bits_of_numpy(case: tuple[Array, tuple[Edit, ...]]) -> None:
    W, edits = case
    try:
        by_library = _both(W, edits)
    except WeightOverflowError as error:
        by_library = str(error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_edits, "_library", lambda: None)
        try:
            by_numpy = _both(W, edits)
        except WeightOverflowError as error:
            by_numpy = str(error)
    if isinstance(by_library, str) or isinstance(by_numpy, str):
        assert by_library == by_numpy
        return
    for one, other in zip(by_library, by_numpy, strict=True):
        np.testing.assert_array_equal(_bits(np.asarray(one)), _bits(np.asarray(other)))


@given(_cases(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_sums_over_rows_have_the_bits_of_numpy(
    case: tuple[Array, tuple[Edit, ...]], seed: int
) -> None:
    W, edits = case
    W = W.reshape(-1, W.shape[-1])
    kept = tuple(edit for edit in edits if not isinstance(edit, Centre) and _of_columns(edit, W))
    tensor = evaluated(EditedTensor(ir.Tensor(W), kept, "W"))
    factors = np.random.default_rng(seed).standard_normal(W.shape[0])
    by_library = list(tensor.weighted(factors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_edits, "_library", lambda: None)
        by_numpy = list(evaluated(EditedTensor(ir.Tensor(W), kept, "W")).weighted(factors))
    for one, other in zip(by_library, by_numpy, strict=True):
        np.testing.assert_array_equal(_bits(one), _bits(other))


def _of_columns(edit: Scale | Shift, W: Array) -> bool:
    return edit.channels == Channels.along([(1, W.shape[1])])


@pytest.mark.campaign
@pytest.mark.skipif(
    os.environ.get("ONNXFOLD_ISA") is not None, reason="is the run for one instruction set"
)
@pytest.mark.parametrize("level", ["v2", "v3"])
def test_lower_instruction_sets_give_the_same_bits(level: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "ONNXFOLD_ISA": level}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
