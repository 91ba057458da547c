"""Faults that converters make, planted: each is found, with the node's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.check.blame import Blame, blame, rank
from onnxfold.check.runners import CannotRun
from onnxfold.check.truth import Truth, truth_of
from onnxfold.model_io import from_proto
from onnxfold.model_io.load import Source
from tests.check.converted import (
    WIDTH,
    change_weight,
    drop,
    dynamic,
    encoder,
    half,
    rename_values,
    rows,
    static,
)

pytest.importorskip("onnxruntime.quantization")


def source(model: onnx.ModelProto) -> Source:
    return Source(from_proto(model))


@pytest.fixture(scope="module")
def original() -> Source:
    return source(encoder())


@pytest.fixture(scope="module")
def truth(original: Source) -> Truth:
    return truth_of(original, samples=0, data=rows(4))


def blamed(original: Source, changed: onnx.ModelProto, truth: Truth) -> tuple[Blame, ...]:
    return blame(original, source(changed), truth.feeds, truth.outputs)


def _qdq(scale: str) -> Callable[[Path], onnx.ModelProto]:
    return lambda folder: change_weight(
        static(encoder(), folder, rows(8, seed=1)), scale, lambda s: s / 10
    )


def _operators(scale: str) -> Callable[[Path], onnx.ModelProto]:
    from onnxruntime.quantization import QuantFormat

    data, form = rows(8, seed=1), QuantFormat.QOperator
    return lambda folder: change_weight(
        static(encoder(), folder, data, quant_format=form), scale, lambda s: s / 10
    )


def _huge(w: np.ndarray) -> np.ndarray:
    w = w.copy()
    w[2, 3] = np.inf
    return w


def _broken(model: onnx.ModelProto) -> onnx.ModelProto:
    """A value that another part reads is taken for one of another name."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    next(n for n in changed.graph.node if n.name == "node_products").input[0] = "v"
    return changed


# The planted fault, the node of the original, and the node of the file.
PLANTED: dict[str, tuple[Callable[[Path], onnx.ModelProto], str, str]] = {
    "a scale of activations": (_qdq("bent_scale"), "node_down", "bent_DequantizeLinear"),
    "a scale of scores": (_qdq("scores_scale"), "node_weights", "scores_DequantizeLinear"),
    "a scale of a weight": (_qdq("Wup_scale"), "node_up", "Wup_DequantizeLinear"),
    "a scale of integer operators": (_operators("bent_scale"), "node_down", "node_down_quant"),
    "a scale of a weight of integer operators": (
        _operators("Wup_scale"),
        "node_up",
        "node_up_quant",
    ),
    "a scale of int8": (
        lambda f: change_weight(dynamic(encoder(), f), "Wdown_scale", lambda s: s / 10),
        "node_down",
        "node_down_quant",
    ),
    "a weight that overflows": (
        lambda _: change_weight(half(encoder()), "Wup", _huge),
        "node_up",
        "node_up",
    ),
    "a weight in float16 that is stored wrongly": (
        lambda _: change_weight(half(encoder()), "Wo", lambda w: -w),
        "node_out",
        "node_out",
    ),
    "a mask of the wrong sign": (
        lambda _: change_weight(encoder(), "far", lambda far: -far),
        "node_bar",
        "node_bar",
    ),
    "a bias dropped": (lambda _: drop(encoder(), "node_outb"), "node_outb", "node_sum"),
    "a bend dropped": (lambda _: drop(encoder(), "node_bent"), "node_bent", "node_down"),
    "a node dropped among other names": (
        lambda _: rename_values(drop(encoder(), "node_outb")),
        "node_outb",
        "MatMul_21",
    ),
    "a weight under other names": (
        lambda _: rename_values(change_weight(encoder(), "Wup", lambda w: 2 * w)),
        "node_up",
        "MatMul_18",
    ),
    "an operand of another node": (lambda _: _broken(encoder()), "node_products", "node_products"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_node(
    tmp_path: Path, original: Source, truth: Truth, name: str
) -> None:
    make, node, changed_node = PLANTED[name]
    found = blamed(original, make(tmp_path), truth)
    assert [one.node for one in found] == [node], found
    assert found[0].changed_node == changed_node
    assert found[0].error_out > 2 * found[0].error_in
    assert rank(original, source(make(tmp_path)), truth.feeds, truth.outputs)[0] == node


def test_one_value_that_does_not_run_does_not_excuse_the_others(
    original: Source, truth: Truth
) -> None:
    """A wrong index ends the run of the original, unlike a wrong mask."""
    model = encoder()
    model.graph.node.insert(0, onnx.helper.make_node("Neg", ["ids"], ["turned"], name="turn"))
    next(n for n in model.graph.node if n.name == "node_x").input[1] = "turned"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["ids"], ["same"], name="same"))
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    next(n for n in changed.graph.node if n.name == "turn").op_type = "Abs"
    changed = change_weight(changed, "far", lambda far: -far)
    first = source(model)
    found = blame(
        first, source(changed), truth.feeds, truth_of(first, samples=0, data=truth.feeds).outputs
    )
    assert {one.node for one in found} <= {"turn", "node_bar"}
    assert found


def test_a_file_that_does_not_run_is_not_looked_into(original: Source, truth: Truth) -> None:
    with pytest.raises(CannotRun):
        blamed(original, drop(encoder(), "node_kt"), truth)


def test_a_result_of_another_shape_is_found(original: Source) -> None:
    """A Transpose that is dropped where the sizes happen to be equal."""
    feeds = rows(2, time=WIDTH)
    truth = truth_of(original, samples=0, data=feeds)
    (found,) = blamed(original, drop(encoder(), "node_kt"), truth)
    assert found.node == "node_kt"


def test_names_that_mean_something_else_are_not_blamed(original: Source, truth: Truth) -> None:
    """Two results exchange their names, and a third one is wrong."""
    changed = change_weight(encoder(), "Wup", lambda w: 2 * w)
    exchanged = {"q": "v", "v": "q", "scaled": "products", "products": "scaled"}
    for node in changed.graph.node:
        for names in (node.input, node.output):
            names[:] = [exchanged.get(name, name) for name in names]
    (found,) = blamed(original, changed, truth)
    assert found.node == "node_up"


def test_nothing_is_blamed_where_nothing_is_wrong(original: Source, truth: Truth) -> None:
    assert blamed(original, encoder(), truth) == ()
    assert rank(original, source(encoder()), truth.feeds, truth.outputs) == []
