"""No small graph has a fold that the plan misses: all of them, by number of values."""

from __future__ import annotations

import pytest

from tests.lanes import quick
from tests.soundness.small_graphs import counts, shapes

# How many there are; the 29,750 of 7 values are for the module's command.
_COUNTS = {2: 1, 3: 6, 4: 39, 5: 302, 6: 2775}


@pytest.mark.parametrize("values", quick(_COUNTS, slow=lambda values: values > 5))
def test_all_small_graphs_fold_as_far_as_any_subset_of_weights_lets_them(values: int) -> None:
    total, short = counts(list(shapes(values)))
    assert total["graphs"] == _COUNTS[values]
    assert not short
    assert total["oracle"] > 0 or values == 2
