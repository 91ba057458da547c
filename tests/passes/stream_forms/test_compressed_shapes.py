"""Shapes that name or count the channels of a compressed stream follow it, or keep it whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.passes.centred_stream import FEEDS, C, CentredStream, T, between
from tests.passes.stream_forms.compressing import PLAN, compressed_by, is_right, is_wrong, reason_of
from tests.soundness.float64 import evaluate

_TOLD = "told = Reshape(h, shape)"
_computed = between(f"shape = Shape(h) {_TOLD}")
_counted = between("shape = Shape(h) sizes = Cast<to=11>(shape)", "sizes", reads="h")
# The shape of the stream, told to what is not of it.
_told_twice = between(
    "shape = Shape(h) channels = Slice(shape, two, three, zero) "
    "other = Concat<axis=0>(rest, channels) wide = Concat<axis=-1>(x, x, x, x, x, x, x, x) "
    "rows = Reshape(wide, other)",
    "rows",
    reads="h",
    **{"two": [2], "rest": [-1], "zero": [0], "three": [3]},
)
# Batch and tokens joined, and apart again, as TorchScript writes flatten and view.
_sliced = between(
    "shape = Shape(h) channels = Slice(shape, start, end, zero) "
    "flat = Concat<axis=0>(rest, channels) rows = Reshape(h, flat) "
    "size = Gather<axis=0>(shape, batch) sizes = Unsqueeze(size, zero) "
    "full = Concat<axis=0>(sizes, rest, channels) back = Reshape(rows, full)",
    **{"start": [2], "end": [3], "zero": [0], "rest": [-1], "batch": 0},
)
_TOKEN = np.random.default_rng(3).standard_normal((1, 1, C))
# A class token for every sample, as TorchScript writes expand(n, -1, -1).
_expanded = between(
    "sizes = Shape(ids) size = Gather<axis=0>(sizes, first) batch = Unsqueeze(size, at) "
    "listed = Concat<axis=0>(batch, open) wanted = Reshape(listed, rest) "
    "ones = ConstantOfShape<value = int64[1] {1}>(three) minuses = Mul(ones, minus) "
    "is_open = Equal(wanted, minuses) target = Where(is_open, ones, wanted) "
    "tokens = Expand(token, target) joined = Concat<axis=1>(tokens, h)",
    token=_TOKEN - _TOKEN.mean(),
    **{"at": [0], "open": [-1, -1], "minus": -1, "first": 0, "rest": [-1], "three": [3]},
)


@pytest.mark.parametrize("nodes", [_counted, _told_twice])
def test_a_reader_of_the_number_of_channels_keeps_them(
    nodes: Callable[[CentredStream], str],
) -> None:
    reason = reason_of(CentredStream().model(nodes))
    assert reason["code"] == "exact_reader"
    assert reason["nodes"] == ["shape"]


def test_another_number_of_channels_is_seen_by_who_is_told_it() -> None:
    is_wrong(CentredStream().model(_counted))
    changed, shown = compressed_by(CentredStream().model(_told_twice), PLAN)
    assert shown.failures
    with pytest.raises(ValueError, match="cannot reshape array of size 240"):  # 30 rows of 8
        evaluate(changed, FEEDS)


def test_a_shape_that_follows_from_the_stream_itself_goes_along() -> None:
    is_right(CentredStream().model(_computed), "table", "W", "b")
    is_right(CentredStream().model(_sliced), "table", "W", "b")
    is_right(CentredStream().model(_expanded), "table", "W", "b", "token")


@pytest.mark.parametrize(
    "nodes",
    [
        *(between(_TOLD, shape=shape) for shape in ([0, 0, C], [-1, T, C], [0, 0, -1])),
        between(f"shape = Constant<value_ints = [0, 0, {C}]>() {_TOLD}"),
        between(f"sizes = Shape(ids) shape = Concat<axis=0>(sizes, last) {_TOLD}", last=[C]),
        *(between("told = Expand(h, shape)", shape=shape) for shape in ([C], [2, 1, 1, C])),
    ],
    ids=[
        *("constant", "inferred batch", "inferred channels", "constant node", "concatenated"),
        *("fewer axes", "more axes"),
    ],
)
def test_a_shape_that_names_the_channels_names_one_less(
    nodes: Callable[[CentredStream], str],
) -> None:
    is_right(CentredStream().model(nodes), "table", "W", "b")
