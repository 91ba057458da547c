"""A large weight is compared part by part, and never whole in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.equality import paired_rows
from onnxfold.proof.stored import Comparison, compared, fits, has_zero_mean
from onnxfold.weights.edited import edited
from onnxfold.weights.evaluation import Centre, Scale


@pytest.mark.parametrize("axis", [0, 1])
def test_a_large_weight_is_compared_part_by_part(axis: int) -> None:
    """Whole, the differences alone would take eight bytes per element several times over."""
    drawn = np.random.default_rng(0).standard_normal((4096, 2048), dtype=np.float32)
    fiber = Fiber((AxisBlock(axis, 1, drawn.shape[axis], 1),))
    new = (drawn - drawn.mean(axis=axis, dtype=np.float64, keepdims=True)).astype(np.float32)
    wrong = new.copy()
    wrong[-1, -1] += np.float32(1e-3)
    old, stored = ir.tensor(drawn), ir.tensor(new)
    tracemalloc.start()
    try:
        assert compared(old, stored, [fiber]) == Comparison(False, fiber, centred=True)
        assert has_zero_mean(stored, fiber)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * drawn.size
    assert compared(old, ir.tensor(wrong), [fiber]) == Comparison(same=False)
    assert not has_zero_mean(ir.tensor(wrong), fiber)
    assert compared(old, ir.tensor(drawn.copy()), [fiber]).same


@pytest.mark.parametrize("odd", [0, 4095])
def test_a_weight_is_centered_only_if_all_its_rows_are(odd: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((4096, 512), dtype=np.float32)
    fiber = Fiber((AxisBlock(1, 1, 512, 1),))
    new = (drawn - drawn.mean(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    new[odd] = drawn[odd] + np.float32(0.25)
    found = compared(ir.tensor(drawn), ir.tensor(new), [fiber])
    assert found == Comparison(False, fiber, centred=False)


def test_a_large_edited_weight_is_never_whole_in_memory() -> None:
    """Scaled, then centered: neither the one before nor the one after is made as a whole."""
    drawn = np.random.default_rng(0).standard_normal((16384, 2048), dtype=np.float32)
    fiber = Fiber((AxisBlock(1, 1, 2048, 1),))
    factor = np.linspace(0.5, 2.0, 16384)
    old = edited(ir.tensor(drawn), Scale(Channels.along([(0, 16384)]), factor), "W")
    new = edited(old, Centre(fiber), "W")
    tracemalloc.start()
    try:
        assert compared(old, new, [fiber]) == Comparison(False, fiber, centred=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < drawn.nbytes // 2


def test_rows_in_parts_of_other_sizes_are_paired() -> None:
    rows = np.arange(20).reshape(10, 2)
    first, second = (np.split(rows, places) for places in ([1, 4, 9], [3, 4, 8]))
    pairs = list(paired_rows(first, second))
    assert [len(a) for a, _ in pairs] == [1, 2, 1, 4, 1, 1]
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert np.array_equal(np.concatenate([a for a, _ in pairs]), rows)


def test_a_fiber_fits_a_tensor_that_has_its_axes_and_digits() -> None:
    tensor = ir.tensor(np.zeros((4, 6), np.float32))
    fits_of = {(axis, size): fits(Fiber((AxisBlock(axis, 1, size, 1),)), tensor)
               for axis in range(3) for size in (3, 4)}  # fmt: skip
    assert [place for place, told in fits_of.items() if told] == [(0, 4), (1, 3)]
