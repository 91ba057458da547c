"""Parts of one weight that are centered along several fibers: together where none is in two."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.plan import WeightCentring, joined
from onnxfold.weights.edited import centred_tensor


def _part(size: int, chosen: str) -> Fiber:
    """Sets of so many neighbors among 12 channels; the sets marked 1 are chosen."""
    sets = 12 // size
    blocks = [AxisBlock(0, 1, size, sets)]
    return Fiber.of(blocks).within([AxisBlock(0, size, sets, 1)], (c == "1" for c in chosen))


def _joined(*fibers: Fiber) -> list[Fiber] | None:
    weights = joined(WeightCentring("W", fiber, 48) for fiber in fibers)
    return None if weights is None else [weight.fiber for weight in weights]


def test_parts_of_other_sets_stay_two_where_they_share_no_channel() -> None:
    pairs, half = _part(2, "111000"), _part(6, "01")
    assert _joined(pairs, half, _part(2, "000000")) == [pairs, half]
    array = np.random.default_rng(0).standard_normal(12)
    made = [
        centred_tensor(centred_tensor(ir.tensor(array), a, "W"), b, "W").numpy()
        for a, b in ((pairs, half), (half, pairs))
    ]
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_allclose(made[0][:6].reshape(3, 2).sum(axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(made[0][6:].sum(), 0, atol=1e-15)


def test_parts_that_share_a_channel_are_not_joined() -> None:
    assert _joined(_part(2, "111100"), _part(6, "01")) is None
    assert _joined(_part(2, "110000"), _part(6, "11")) is None  # all of it, and a part
    assert _joined(_part(2, "110000"), _part(2, "001000")) == [_part(2, "111000")]
