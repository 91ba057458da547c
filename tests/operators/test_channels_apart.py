"""A channel left out of what an operator follows is one left out of its result, in its place."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from onnxfold.graph import Fiber, ModelInfo, whole_axes
from onnxfold.operators import facets
from onnxfold.operators.families.rules import keeps_order
from onnxfold.operators.families.transfer import Carried
from onnxfold.operators.row import Operator
from onnxfold.operators.table import find
from onnxfold.streams.model_transfers import ModelTransfers, Point
from tests.operators.rows import LAWS, name_of
from tests.operators.sample import Array, Draw, Sample
from tests.operators.samplers import SAMPLERS

_SAMPLES = 60
_APART = [law for law in LAWS if facets.keeps_channels_apart(law)]


def _others_changed(sample: Sample, draw: Draw) -> list[tuple[bool, bool]]:
    """For each axis that is carried: whether its order stays, and its last channel is mixed in."""
    view = sample.view()
    node = next(iter(view.nodes()))
    before, found = sample.arrays(), []
    for output, axis, carried in _carried(view):
        arrays = [array.copy() for array in before]
        for index, fiber in carried:
            _change_last(arrays[index], fiber, draw)
        results = [sample.evaluator()(inputs)[output] for inputs in (before, arrays)]
        kept = [np.moveaxis(result, axis, -1)[..., :-1] for result in results]
        ordered = keeps_order(view, node, whole_axes(results[0].shape, [axis]) or Fiber(()))
        found.append((ordered, not np.array_equal(*kept, equal_nan=True)))
    return found


def _carried(view: ModelInfo) -> list[tuple[int, int, tuple[tuple[int, Fiber], ...]]]:
    """Return (output, axis, what is carried) of every axis that inputs have whole as well."""
    node, transfers, found = next(iter(view.nodes())), ModelTransfers(view, ()), []
    for number, value in enumerate(node.outputs):
        for axis, size in enumerate(view.shape(value) or ()):
            fiber = whole_axes(view.shape(value) or (), [axis])
            origin = None if fiber is None else transfers.backward(Point(value, fiber))
            if not isinstance(origin, Carried) or not isinstance(size, int) or size < 2:
                continue
            whole = all(len(f.blocks) == 1 and f.whole for _, f in origin.inputs)
            if whole and all(f.blocks[0].size == size for _, f in origin.inputs):
                found.append((number, axis, origin.inputs))
    return found


def _change_last(array: Array, fiber: Fiber, draw: Draw) -> None:
    last = np.moveaxis(array, fiber.blocks[0].axis, -1)[..., -1]
    last += draw.normal(last.shape).astype(array.dtype)


def _answers(law: Operator) -> Iterator[tuple[bool, bool]]:
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        yield from _others_changed(SAMPLERS[law.key](draw), draw)


@pytest.mark.parametrize("law", _APART, ids=name_of)
def test_the_last_channel_reaches_the_last_channel_alone(law: Operator) -> None:
    mixed = [mixes for ordered, mixes in _answers(law) if ordered]
    assert mixed
    assert not any(mixed)


def test_a_slice_that_turns_the_order_is_noticed() -> None:
    assert any(mixes for ordered, mixes in _answers(find("", "Slice")) if not ordered)
