"""Positions of a vector's elements in a tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxfold.errors import InvariantError
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.channels import Channels


def _next_axis(fiber: Fiber) -> Fiber:
    return Fiber.of(replace(block, axis=block.axis + 1) for block in fiber.blocks)


def test_channels_go_where_all_their_digits_go() -> None:
    channels = Channels.along([(0, 4), (2, 3)])
    assert channels.mapped(_next_axis) == Channels.along([(1, 4), (3, 3)])
    assert channels.mapped(lambda fiber: None) is None
    half = Fiber((AxisBlock(0, 1, 2, 2),))
    assert channels.mapped(lambda fiber: half) is None


def test_a_vector_is_spread_over_a_tensor_that_has_its_channels() -> None:
    channels, vector = Channels.along([(1, 3)]), np.arange(3.0)
    spread = channels.spread(vector, (2, 3, 4))
    assert spread.shape == (1, 3, 1)
    assert spread.reshape(-1).tolist() == vector.tolist()
    for shape in ((2,), (2, 4)):
        with pytest.raises(InvariantError, match="do not fit"):
            channels.spread(vector, shape)
    with pytest.raises(InvariantError, match="a vector of 2 elements has 3 channels"):
        channels.spread(vector[:2], (2, 3))
