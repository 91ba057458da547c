"""A value that lacks an element of an axis, as it is given back from its counterpart."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.proof.relation import Cut, Relation

U = np.array([[1.0, 2.0, 5.0], [3.0, -1.0, 4.0]])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cut", [Cut.PADDED, Cut.READ])
def test_an_element_more_is_made_and_one_that_is_padding_is_not_taken_away(
    cut: Cut, reverse: bool
) -> None:
    """Where the last element is taken from the others, their differences are what remains."""
    relation = Relation(short=1, cut=cut, reverse=reverse)
    longer = relation.counterpart if reverse else relation.original
    shorter = relation.original if reverse else relation.counterpart
    made = longer(U, np.random.default_rng(0), 1.0)
    assert made.shape == (2, 4)
    assert np.array_equal(made[:, :3] - made[:, 3:], U)
    if cut is Cut.PADDED:
        assert np.array_equal(made[:, 3], [0.0, 0.0])
        with pytest.raises(ArithmeticError, match="not 0"):
            shorter(U, np.random.default_rng(0), 1.0)
    else:
        assert np.array_equal(shorter(U, np.random.default_rng(0), 1.0), U[:, :2] - U[:, 2:])
