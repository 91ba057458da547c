"""Where the sets of a fiber are looked for in another tensor."""

from __future__ import annotations

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.proof.mean_proofs import images


def test_a_digit_may_be_one_of_an_axis_of_more_elements() -> None:
    """Pairs of neighbors along 4 may be pairs along 6, which has three."""
    pairs = Fiber((AxisBlock(1, 1, 2, 2),))
    assert Fiber((AxisBlock(1, 1, 2, 3),)) in set(images(pairs, (3, 4), (5, 6)))
    assert all(each.axes == (1,) for each in images(pairs, (3, 4), (5, 6)))
