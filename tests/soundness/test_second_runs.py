"""A second run of optimize over random graphs, on what the first one made, changes nothing."""

from __future__ import annotations

import random

import onnx
import pytest

import onnxfold
from tests.soundness.random_graphs import gated_graph, mixture_graph, random_graph
from tests.soundness.random_graphs.factors import factor_graph

pytestmark = pytest.mark.campaign
_GRAPHS, _GROUPS = 32, 4
# What random graphs changed in a second run: of two parts of one weight that are centred along
# other fibers, of norms that share a centring in half, of norms of constants that were deferred, of
# embeddings of a fixed length, of a scale for a fold that did not come as a beta stayed, of
# products in norms that stay in several operators, of norms between Reshapes, of norms in half, of
# gammas of norms whose x - mean(x) is read by others, of values without shapes that deferral made,
# of sizes with names of their own, of gammas of spelled-out norms that fold all the same, and of a
# scale before a norm of what enters attention scores.
_FOUND = (17, 18, 21, 23, 41, 72, 84, 109, 153, 173, 182, 1349, 2730, 2829, 3709)
# Of gammas within deferred norms, of constants added to parts of what got its first bias from a
# beta, of folds that are proved one after the other, of parts of a weight whose other readers got
# one of their own, of readers of a mean that are gone once their norm has folded, of norms that no
# output needs, of norms of constants beside constants, of betas of zeros with gammas that tables
# take, of a centering in half that is spelled out, of norms of deferred norms, and of a norm that
# computes an unread result of a function, and of a norm over more axes than a centering that is
# inserted for another.
_FOUND_WHERE_ALL_MOVES = (
    289,
    605,
    717,
    2032,
    1916,
    1439,
    2265,
    2389,
    2471,
    3585,
    3617,
    3742,
    3771,
    6024,
)
# 86 and 191 have signs behind norms that are spelled out.
_FOUND_AMONG_FACTORS = (86, 167, 191, 236, 249)
_FOUND_GATED = (13, 49)
# Of a sum before a centering for two norms, and of an embedding's positions that are computed.
_FOUND_AMONG_MIXTURES = (60, 300)


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_second_run_over_norms_among_factors_changes_nothing(target: str, group: int) -> None:
    for seed in range(group, _GRAPHS, _GROUPS):
        _unchanged(factor_graph(seed), target=target, defer=("off", "all")[seed // _GROUPS % 2])


@pytest.mark.parametrize("defer", ["off", "all"])
@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("seed", _FOUND_AMONG_FACTORS)
def test_a_second_run_over_what_was_found_among_factors_changes_nothing(
    seed: int, target: str, defer: str
) -> None:
    _unchanged(factor_graph(seed), target=target, defer=defer)


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_second_run_over_a_gated_stream_changes_nothing(target: str, group: int) -> None:
    for seed in (*range(group, _GRAPHS, _GROUPS), *_FOUND_GATED[group : group + 1]):
        model = gated_graph(random.Random(seed)).model  # noqa: S311 # no secret
        _unchanged(model, target=target, fold="always", fuse_affine="never")


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("seed", [*range(0, 30, 5), *_FOUND_AMONG_MIXTURES])
def test_a_second_run_over_experts_and_joined_layers_changes_nothing(
    seed: int, target: str
) -> None:
    model = mixture_graph(random.Random(seed)).model  # noqa: S311 # no secret
    _unchanged(model, target=target)


@pytest.mark.parametrize("defer", ["off", "all"])
@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("seed", _FOUND)
def test_a_second_run_over_a_random_graph_changes_nothing(
    seed: int, target: str, defer: str
) -> None:
    _unchanged(random_graph(seed).model, target=target, defer=defer)


@pytest.mark.parametrize("defer", ["off", "all"])
@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("seed", _FOUND_WHERE_ALL_MOVES)
def test_a_second_run_changes_nothing_where_all_folds_and_moves(
    seed: int, target: str, defer: str
) -> None:
    model = random_graph(seed).model
    _unchanged(model, target=target, fold="always", fuse_affine="always", defer=defer)


def _unchanged(model: onnx.ModelProto, **options: str) -> None:
    """Expect a second run to return the bytes that the first one made."""
    once = onnxfold.optimize(model, check=0, **options)
    assert "left_out" not in once.report
    again = onnxfold.optimize(once.model, check=0, **options)
    assert not again.changed
    assert again.model.SerializeToString() == once.model.SerializeToString()
