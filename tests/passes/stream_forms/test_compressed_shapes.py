"""Shapes that name or count the channels of a compressed stream follow it, or keep it whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from tests.passes.centred_stream import FEEDS, C, CentredStream, T
from tests.passes.stream_forms.compressing import PLAN, compressed_by, is_right, is_wrong, reason_of
from tests.soundness.float64 import evaluate


def _told(shape: list[int]) -> Callable[[CentredStream], str]:
    def between(graph: CentredStream) -> str:
        graph.weights["shape"] = np.array(shape, np.int64)
        return graph.node("Reshape", ["h", "shape"], "told")

    return between


def _told_by_a_node(graph: CentredStream) -> str:
    graph.node("Constant", [], "shape", value=numpy_helper.from_array(np.array([0, 0, C])))
    return graph.node("Reshape", ["h", "shape"], "told")


def _told_in_parts(graph: CentredStream) -> str:
    graph.weights["last"] = np.array([C], np.int64)
    graph.node("Shape", ["ids"], "sizes")
    graph.node("Concat", ["sizes", "last"], "shape", axis=0)
    return graph.node("Reshape", ["h", "shape"], "told")


def _computed(graph: CentredStream) -> str:
    graph.node("Shape", ["h"], "shape")
    return graph.node("Reshape", ["h", "shape"], "told")


def _counted(graph: CentredStream) -> str:
    graph.node("Shape", ["h"], "shape")
    graph.outputs.append(graph.node("Cast", ["shape"], "sizes", to=TensorProto.DOUBLE))
    return "h"


def _told_twice(graph: CentredStream) -> str:
    """The shape of the stream, told to what is not of it."""
    graph.node("Shape", ["h"], "shape")
    graph.weights |= {"first": np.array([0]), "two": np.array([2]), "rest": np.array([-1])}
    graph.weights["zero"] = np.array([0])
    graph.node("Slice", ["shape", "two", "three", "zero"], "channels")
    graph.weights["three"] = np.array([3])
    graph.node("Concat", ["rest", "channels"], "other", axis=0)
    graph.node("Concat", ["x", "x", "x", "x", "x", "x", "x", "x"], "wide", axis=-1)
    graph.outputs.append(graph.node("Reshape", ["wide", "other"], "rows"))
    return "h"


@pytest.mark.parametrize("between", [_counted, _told_twice])
def test_a_reader_of_the_number_of_channels_keeps_them(
    between: Callable[[CentredStream], str],
) -> None:
    reason = reason_of(CentredStream().model(between))
    assert reason["code"] == "exact_reader"
    assert reason["nodes"] == ["shape"]


def test_another_number_of_channels_is_seen_by_who_is_told_it() -> None:
    is_wrong(CentredStream().model(_counted))
    changed, shown = compressed_by(CentredStream().model(_told_twice), PLAN)
    assert shown.failures
    with pytest.raises(ValueError, match="cannot reshape array of size 240"):  # 30 rows of 8
        evaluate(changed, FEEDS)


def _sliced(graph: CentredStream) -> str:
    """Batch and tokens joined, and apart again, as TorchScript writes flatten and view."""
    graph.weights |= {"start": np.array([2]), "end": np.array([3]), "zero": np.array([0])}
    graph.weights |= {"rest": np.array([-1]), "batch": np.array(0), "at": np.array([0])}
    graph.node("Shape", ["h"], "shape")
    graph.node("Slice", ["shape", "start", "end", "zero"], "channels")
    graph.node("Concat", ["rest", "channels"], "flat", axis=0)
    graph.node("Reshape", ["h", "flat"], "rows")
    graph.node("Gather", ["shape", "batch"], "size", axis=0)
    graph.node("Unsqueeze", ["size", "at"], "sizes")
    graph.node("Concat", ["sizes", "rest", "channels"], "full", axis=0)
    return graph.node("Reshape", ["rows", "full"], "back")


def _expanded(graph: CentredStream) -> str:
    """A class token for every sample, as TorchScript writes expand(n, -1, -1)."""
    token = np.random.default_rng(3).standard_normal((1, 1, C))
    graph.weights["token"] = token - token.mean()
    graph.weights |= {"at": np.array([0]), "open": np.array([-1, -1]), "minus": np.array(-1)}
    graph.weights |= {"first": np.array(0), "rest": np.array([-1])}
    graph.node("Shape", ["ids"], "sizes")
    graph.node("Gather", ["sizes", "first"], "size", axis=0)
    graph.node("Unsqueeze", ["size", "at"], "batch")
    graph.node("Concat", ["batch", "open"], "listed", axis=0)
    graph.node("Reshape", ["listed", "rest"], "wanted")
    graph.weights["three"] = np.array([3])
    one = numpy_helper.from_array(np.array([1]))
    graph.node("ConstantOfShape", ["three"], "ones", value=one)
    graph.node("Mul", ["ones", "minus"], "minuses")
    graph.node("Equal", ["wanted", "minuses"], "is_open")
    graph.node("Where", ["is_open", "ones", "wanted"], "target")
    graph.node("Expand", ["token", "target"], "tokens")
    return graph.node("Concat", ["tokens", "h"], "joined", axis=1)


def test_a_shape_that_follows_from_the_stream_itself_goes_along() -> None:
    is_right(CentredStream().model(_computed), "table", "W", "b")
    is_right(CentredStream().model(_sliced), "table", "W", "b")
    is_right(CentredStream().model(_expanded), "table", "W", "b", "token")


@pytest.mark.parametrize(
    "between",
    [_told([0, 0, C]), _told([-1, T, C]), _told([0, 0, -1]), _told_by_a_node, _told_in_parts],
    ids=["constant", "inferred batch", "inferred channels", "constant node", "concatenated"],
)
def test_a_shape_that_names_the_channels_names_one_less(
    between: Callable[[CentredStream], str],
) -> None:
    is_right(CentredStream().model(between), "table", "W", "b")
